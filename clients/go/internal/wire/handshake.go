package wire

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
)

// Greeting is what a server speaks first.
type Greeting struct {
	Raw                                []byte
	MinVersion, MaxVersion, Mode, Slot byte
	Nonce                              []byte
}

// SpeaksOurVersion tells whether client and server have a version in common.
func (g *Greeting) SpeaksOurVersion() bool {
	return g.MinVersion <= ProtocolVersion && ProtocolVersion <= g.MaxVersion
}

// ParseGreeting reads a whole greeting. The mode matters only at a common version.
func ParseGreeting(data []byte) (*Greeting, error) {
	if len(data) != GreetingBytes || !LooksLikeGreeting(data) {
		return nil, malformed("stream", "no greeting of a ticketing server")
	}
	rest := data[len(GreetingMagic):]
	g := &Greeting{Raw: data, MinVersion: rest[0], MaxVersion: rest[1], Mode: rest[2], Slot: rest[3], Nonce: rest[4:]}
	if g.SpeaksOurVersion() && g.Mode != ModeStandalone && g.Mode != ModeCluster {
		return nil, malformed("body", "mode %d is unknown", g.Mode)
	}
	return g, nil
}

// LooksLikeGreeting tells whether these first bytes may still become a greeting.
func LooksLikeGreeting(data []byte) bool {
	n := min(len(data), len(GreetingMagic))
	return bytes.Equal(data[:n], []byte(GreetingMagic)[:n])
}

// ClientNonce is the nonce of the client's n-th hello. It is derived, so that one seed gives one
// byte stream.
func ClientNonce(seed []byte, connection uint64) []byte {
	hashed := append([]byte(NonceContext), seed...)
	sum := sha256.Sum256(binary.BigEndian.AppendUint64(hashed, connection))
	return sum[:ClientNonceBytes]
}

// Hello is what a client says of itself.
type Hello struct {
	Version      byte
	ClientID     uint64
	Connection   uint32
	Nonce, Label []byte
}

// Mac is what a hello proves itself with; greeting is all of what the server spoke.
func (h *Hello) Mac(secret, greeting []byte) []byte {
	mac := hmac.New(sha256.New, secret)
	mac.Write([]byte(MacContextClient))
	mac.Write(greeting)
	mac.Write(h.identity())
	mac.Write(h.Label)
	return mac.Sum(nil)
}

func (h *Hello) identity() []byte {
	identity := binary.BigEndian.AppendUint64([]byte{h.Version}, h.ClientID)
	identity = binary.BigEndian.AppendUint32(identity, h.Connection)
	return append(identity, h.Nonce...)
}

// Frame is H, the mac included.
func (h *Hello) Frame(secret, greeting []byte) []byte {
	identity := h.identity()
	frame := header(OpHello, len(identity)+ClientMacBytes, len(h.Label))
	frame = append(frame, identity...)
	frame = append(frame, h.Mac(secret, greeting)...)
	return append(frame, h.Label...)
}

// Welcome is what a server's proof covers beside greeting and nonce.
type Welcome struct {
	Role        byte
	KeepaliveS  uint16
	Fingerprint []byte
	Leader      []byte
}

// Proof is what a welcome proves itself with.
func (w *Welcome) Proof(secret, greeting, clientNonce []byte) []byte {
	mac := hmac.New(sha256.New, secret)
	mac.Write([]byte(MacContextServer))
	mac.Write(greeting)
	mac.Write(clientNonce)
	mac.Write(binary.BigEndian.AppendUint16([]byte{w.Role}, w.KeepaliveS))
	mac.Write(w.Fingerprint)
	mac.Write(w.Leader)
	return mac.Sum(nil)
}

// SameProof compares in constant time.
func SameProof(one, other []byte) bool { return hmac.Equal(one, other) }
