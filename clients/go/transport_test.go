package ticketing

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// authority is a private CA.
type authority struct {
	t    *testing.T
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pool *x509.CertPool
	file string
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{t: t, dir: t.TempDir(), pool: x509.NewCertPool()}
	var err error
	a.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "a private authority"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &a.key.PublicKey, a.key)
	must(t, err)
	a.cert, err = x509.ParseCertificate(der)
	must(t, err)
	a.pool.AddCert(a.cert)
	a.file = a.write("ca.pem", "CERTIFICATE", der)
	return a
}

func (a *authority) write(name, kind string, der []byte) string {
	path := filepath.Join(a.dir, name)
	must(a.t, os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
	return path
}

// sign makes a certificate for a host, or a client, and returns the paths of it and of its key.
func (a *authority) sign(name string, notAfter time.Time) (certFile, keyFile string) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(a.t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: notAfter, DNSNames: []string{name},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	if address := net.ParseIP(name); address != nil {
		template.DNSNames, template.IPAddresses = nil, []net.IP{address}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, &key.PublicKey, a.key)
	must(a.t, err)
	private, err := x509.MarshalPKCS8PrivateKey(key)
	must(a.t, err)
	return a.write(name+".pem", "CERTIFICATE", der), a.write(name+".key", "PRIVATE KEY", private)
}

// expectPair acquires and releases.
func expectPair(t *testing.T, c *Client) {
	t.Helper()
	ticket, err := c.Acquire(testContext(t), keyOf(t))
	must(t, err)
	must(t, ticket.Release(testContext(t)))
}

func TestTLS(t *testing.T) {
	ca := newAuthority(t)
	cert, key := ca.sign("127.0.0.1", time.Now().Add(time.Hour))
	s := startServer(t, nil, "--tls-cert", cert, "--tls-key", key)
	defer expectNoLeak(t)()
	c, err := Dial(testContext(t), s.url, TLS(&tls.Config{RootCAs: ca.pool}))
	must(t, err)
	defer c.Close()
	expectPair(t, c)
	_, err = Dial(testContext(t), s.url)
	expect(t, err, ErrConnection)
	if !strings.Contains(err.Error(), "not trusted") {
		t.Error(err)
	}
	_, err = Dial(testContext(t), s.url, TLS(&tls.Config{RootCAs: ca.pool, ServerName: "elsewhere"}))
	expect(t, err, ErrConnection)
	plain := "ticketing://" + s.ready["listen"]
	_, err = Dial(testContext(t), plain, TLS(&tls.Config{}))
	expect(t, err, ErrInvalidArgument)
	_, err = Dial(testContext(t), plain)
	expect(t, err, ErrConnection)
}

func TestTLSWithAnExpiredCertificate(t *testing.T) {
	ca := newAuthority(t)
	cert, key := ca.sign("127.0.0.1", time.Now().Add(-time.Hour))
	s := startServer(t, nil, "--tls-cert", cert, "--tls-key", key)
	_, err := Dial(testContext(t), s.url, TLS(&tls.Config{RootCAs: ca.pool}))
	expect(t, err, ErrConnection)
	if !strings.Contains(err.Error(), "expired") {
		t.Error(err)
	}
}

func TestMutualTLS(t *testing.T) {
	ca := newAuthority(t)
	cert, key := ca.sign("127.0.0.1", time.Now().Add(time.Hour))
	s := startServer(t, nil, "--tls-cert", cert, "--tls-key", key, "--tls-client-ca", ca.file)
	own, err := tls.LoadX509KeyPair(ca.sign("client", time.Now().Add(time.Hour)))
	must(t, err)
	c := s.dial(TLS(&tls.Config{RootCAs: ca.pool, Certificates: []tls.Certificate{own}}))
	expectPair(t, c)
	_, err = Dial(testContext(t), s.url, TLS(&tls.Config{RootCAs: ca.pool}))
	expect(t, err, ErrConnection)
	if !strings.Contains(err.Error(), "give one in option TLS") {
		t.Error(err)
	}
}

func TestIPv6AndNames(t *testing.T) {
	s := startServer(t, nil, "--listen", "[::1]:0")
	expectPair(t, s.dial())
	if !strings.HasPrefix(s.url, "ticketing://[::1]:") {
		t.Fatal(s.url)
	}
	s = sharedServer(t)
	_, port, err := net.SplitHostPort(s.ready["listen"])
	must(t, err)
	c, err := Dial(testContext(t), "ticketing://localhost:"+port)
	must(t, err)
	defer c.Close()
	expectPair(t, c)
	_, err = Dial(testContext(t), "ticketing://no-such-host.invalid")
	expect(t, err, ErrConnection)
}

func TestUnixSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	s := startServer(t, nil, "--listen", "unix:"+path)
	c, err := Dial(testContext(t), "ticketing+unix://"+path)
	must(t, err)
	defer c.Close()
	expectPair(t, c)
	_, err = Dial(testContext(t), "ticketing+unix:///no/such/socket")
	expect(t, err, ErrConnection)
	if !strings.Contains(err.Error(), "no such socket") || s.url == "" {
		t.Error(err)
	}
}

func TestEnvironment(t *testing.T) {
	s := startServer(t, []string{"TICKETING_SECRET=a long enough secret"})
	t.Setenv("TICKETING_URL", s.url)
	t.Setenv("TICKETING_SECRET", "a long enough secret")
	t.Setenv("TICKETING_NAME", "from the environment")
	c, err := Dial(context.Background(), "")
	must(t, err)
	defer c.Close()
	expectPair(t, c)
	if label := c.driver.core.settings.label; label != "from_the_environment;go/"+Version {
		t.Error(label)
	}
	_, err = Dial(context.Background(), "", Secret("wrong"))
	expect(t, err, ErrAuth)
}

func TestIdentityOptions(t *testing.T) {
	s := sharedServer(t)
	c := s.dial(Name("worker 7"), ClientID(7), Seed([16]byte{1}), Fingerprint(make([]byte, 32)))
	settings := c.driver.core.settings
	if settings.label != "worker_7;go/"+Version || settings.clientID != 7 || settings.seed[0] != 1 {
		t.Error(settings)
	}
	other := s.dial(Label("whole")).driver.core.settings
	if other.label != "whole" || other.clientID == 7 || string(other.seed) == string(settings.seed) {
		t.Error(other)
	}
	_, err := Dial(testContext(t), s.url, Fingerprint([]byte(strings.Repeat("f", 32))))
	expect(t, err, ErrAuth)
}
