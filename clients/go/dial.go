package ticketing

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/netip"
	"strconv"
	"syscall"
	"time"
)

// addressPart is what each address of a name but the last gets; the core bounds the whole attempt.
const addressPart = 500 * time.Millisecond

// transport is how connections are made.
type transport struct {
	tls *tls.Config // nil for none.
}

// stream is a connection: what is read and written, and the socket below, whose Close never blocks.
type stream struct {
	net.Conn
	socket net.Conn
}

// open connects to one endpoint, over TLS where the URL says so. Names are resolved each time.
func (t *transport) open(ctx context.Context, to endpoint) (*stream, error) {
	socket, err := dialAny(ctx, to)
	if err != nil || t.tls == nil {
		return &stream{socket, socket}, err
	}
	config := t.tls.Clone()
	if config.ServerName == "" {
		config.ServerName = to.host
	}
	conn := tls.Client(socket, config)
	if err := conn.HandshakeContext(ctx); err != nil {
		socket.Close()
		return nil, err
	}
	return &stream{conn, socket}, nil
}

func dialAny(ctx context.Context, to endpoint) (net.Conn, error) {
	dialer := net.Dialer{Control: prepareSocket}
	if to.path != "" {
		return dialer.DialContext(ctx, "unix", to.path)
	}
	addresses, err := resolve(ctx, to.host)
	if err != nil {
		return nil, err
	}
	for at, address := range addresses {
		part := ctx
		cancel := context.CancelFunc(func() {})
		if at < len(addresses)-1 {
			part, cancel = context.WithTimeout(ctx, addressPart)
		}
		var conn net.Conn
		conn, err = dialer.DialContext(part, "tcp", net.JoinHostPort(address.String(), strconv.Itoa(int(to.port))))
		cancel()
		if err == nil || ctx.Err() != nil {
			return conn, err
		}
	}
	return nil, err
}

func resolve(ctx context.Context, host string) ([]netip.Addr, error) {
	if address, err := netip.ParseAddr(host); err == nil {
		return []netip.Addr{address}, nil
	}
	addresses, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err == nil && len(addresses) == 0 {
		err = fmt.Errorf("the name %q has no address", host)
	}
	for at, address := range addresses {
		addresses[at] = address.Unmap()
	}
	return addresses, err
}

// why says what went wrong with a connection, and where it helps what to do, in words for people.
func why(err error) string {
	var dns *net.DNSError
	var untrusted *tls.CertificateVerificationError
	var noTLS tls.RecordHeaderError
	var alert tls.AlertError
	var op *net.OpError
	switch {
	case errors.As(err, &dns):
		return fmt.Sprintf("the name %q does not resolve (%s); check the URL", dns.Name, dns.Err)
	case errors.As(err, &untrusted):
		return fmt.Sprintf("the server's certificate is not trusted: %v (name its authority in option TLS)", untrusted.Err)
	case errors.As(err, &noTLS):
		return fmt.Sprintf("TLS failed: %v (is the port one for TLS?)", noTLS)
	case errors.As(err, &alert):
		return fmt.Sprintf("TLS failed: %v (if the server asks for a certificate, give one in option TLS)", alert)
	case errors.Is(err, syscall.ECONNREFUSED):
		return "connection refused (is a server running there?)"
	case errors.Is(err, fs.ErrNotExist):
		return "no such socket (is a server running there?)"
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return "the server closed the connection"
	case errors.Is(err, context.DeadlineExceeded):
		return "no answer in time"
	case errors.As(err, &op):
		return op.Err.Error()
	}
	return err.Error()
}
