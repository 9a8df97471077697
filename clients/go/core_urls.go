package ticketing

import (
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/ticketing-project/ticketing/clients/go/internal/wire"
)

const urlForms = "ticketing://host:port, ticketing://host:port,host:port, ticketings://host:port (TLS)" +
	" or ticketing+unix:///path"

// endpoint is where a server listens: a host and port, or the path of a Unix socket.
type endpoint struct {
	host string
	port uint16
	path string
}

func (e endpoint) String() string {
	if e.path != "" {
		return "unix:" + e.path
	}
	if strings.Contains(e.host, ":") {
		return "[" + e.host + "]:" + strconv.Itoa(int(e.port))
	}
	return e.host + ":" + strconv.Itoa(int(e.port))
}

// target is what a URL says: the endpoints in order, and whether TLS is spoken.
type target struct {
	endpoints []endpoint
	tls       bool
}

// parseURL reads a URL. Its error never repeats what may be a password.
func parseURL(text string) (target, error) {
	scheme, rest, found := strings.Cut(text, "://")
	switch scheme = strings.ToLower(scheme); {
	case !found || scheme != "ticketing" && scheme != "ticketings" && scheme != "ticketing+unix":
		return target{}, invalid("the URL %q is none of %s", text, urlForms)
	case scheme == "ticketing+unix":
		return parseUnixPath(text, rest)
	case strings.Contains(rest, "@"):
		return target{}, invalid("the URL has a user or a password in it: give the secret as option Secret" +
			" or in TICKETING_SECRET")
	}
	rest = strings.TrimSuffix(rest, "/")
	if strings.ContainsAny(rest, "/?#") {
		return target{}, invalid("the URL %q has a path or a query: it takes %s", text, urlForms)
	}
	var endpoints []endpoint
	for _, part := range strings.Split(rest, ",") {
		e, ok := parseAddress(part, wire.DefaultPort)
		if !ok {
			return target{}, invalid("the URL %q has %q, which is no host:port with a port of 1 to 65535"+
				" (IPv6 in brackets)", text, part)
		}
		if !slices.Contains(endpoints, e) {
			endpoints = append(endpoints, e)
		}
	}
	return target{endpoints: endpoints, tls: scheme == "ticketings"}, nil
}

func parseUnixPath(text, rest string) (target, error) {
	path, err := url.PathUnescape(rest)
	if err != nil || !strings.HasPrefix(path, "/") || path == "/" || strings.Contains(path, "\x00") {
		return target{}, invalid("the URL %q names no absolute path: ticketing+unix:///path", text)
	}
	return target{endpoints: []endpoint{{path: path}}}, nil
}

// parseAddress reads `host:port` or `[v6]:port`. A defaultPort of 0 means that a port has to be there.
func parseAddress(text string, defaultPort uint16) (endpoint, bool) {
	host, portText, hasPort := strings.Cut(text, ":")
	if inside, isV6 := strings.CutPrefix(text, "["); isV6 {
		var after string
		host, after, hasPort = strings.Cut(inside, "]")
		if address, err := netip.ParseAddr(host); err != nil || !address.Is6() || !hasPort {
			return endpoint{}, false
		}
		portText, hasPort = strings.CutPrefix(after, ":")
		if !hasPort && after != "" {
			return endpoint{}, false
		}
	} else if !isHost(host) {
		return endpoint{}, false
	}
	if !hasPort {
		return endpoint{host: host, port: defaultPort}, defaultPort != 0
	}
	port, err := strconv.ParseUint(portText, 10, 16)
	if err != nil || port == 0 || len(portText) > 5 {
		return endpoint{}, false
	}
	return endpoint{host: host, port: uint16(port)}, true
}

func isHost(text string) bool {
	for at := range len(text) {
		c := text[at]
		if !('A' <= c && c <= 'Z' || 'a' <= c && c <= 'z' || '0' <= c && c <= '9' || strings.IndexByte("._-", c) >= 0) {
			return false
		}
	}
	return text != ""
}
