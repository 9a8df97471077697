package ticketing

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ticketing-project/ticketing/clients/go/internal/wire"
)

var (
	hostA  = endpoint{host: "10.0.0.1", port: 5225}
	hostB  = endpoint{host: "10.0.0.2", port: 5225}
	leader = endpoint{host: "10.0.0.9", port: 7000}
)

// rig drives a core under a scripted transport and a clock that is turned by hand.
type rig struct {
	t           *testing.T
	core        *core
	now         int64
	connects    []endpoint
	serial      uint64
	disconnects []uint64
	events      []Event
	logs        []string
	closed      int
	opened      *call
	greeting    []byte
	hello       wire.Fields
}

// frame is a frame that the core wrote.
type frame struct {
	name   string
	fields wire.Fields
}

func (f frame) String() string {
	parts := []string{f.name}
	for _, name := range slices.Sorted(maps.Keys(f.fields)) {
		value := f.fields[name]
		if data, isBytes := value.([]byte); isBytes {
			value = string(data)
		}
		if keys, isKeys := value.([][]byte); isKeys {
			value = fmt.Sprintf("%s", keys)
		}
		parts = append(parts, fmt.Sprintf("%s=%v", name, value))
	}
	return strings.Join(parts, " ")
}

func newRig(t *testing.T, changes ...func(*coreSettings)) *rig {
	t.Helper()
	settings := &coreSettings{
		endpoints: []endpoint{hostA}, clientID: 42, seed: []byte("0123456789abcdef"), label: "test;go/0",
		replyTimeoutNs: 10 * nsPerS, releaseOnClose: true, observed: true,
	}
	for _, change := range changes {
		change(settings)
	}
	r := &rig{t: t, core: newCore(settings), now: 1000 * nsPerS, opened: newCall()}
	r.core.open(r.opened, r.now)
	r.run()
	return r
}

// readyRig is a rig whose client has been welcomed.
func readyRig(t *testing.T, changes ...func(*coreSettings)) *rig {
	t.Helper()
	r := newRig(t, changes...)
	r.welcome(wire.RoleStandalone, "")
	r.succeeded(r.opened)
	return r
}

func severalHosts(s *coreSettings) { s.endpoints = []endpoint{hostA, hostB} }

// run carries out the effects.
func (r *rig) run() {
	for len(r.core.effects) > 0 {
		effects := r.core.effects
		r.core.effects = nil
		for _, e := range effects {
			switch e := e.(type) {
			case settled:
				select {
				case e.call.done <- e.outcome:
				default:
					r.t.Fatal("a call was settled twice")
				}
			case connectTo:
				r.connects, r.serial = append(r.connects, e.endpoint), e.serial
			case disconnect:
				r.disconnects = append(r.disconnects, e.serial)
			case notify:
				r.events = append(r.events, e.event)
			case logLine:
				r.logs = append(r.logs, e.text)
			case ticketEnded:
				for _, listener := range e.listeners {
					listener.ended(e.err)
				}
			case coreClosed:
				r.closed++
			}
		}
	}
}

// greet lets the connection stand and speaks the greeting; it returns the hello, which is checked.
func (r *rig) greet() {
	r.t.Helper()
	r.core.link.connected(r.serial, r.now)
	r.greeting = append([]byte("TICKET\x04\x04\x00\xff"), fmt.Sprintf("nonce%011d", r.serial)...)
	r.receive(r.greeting)
	frames := r.sent()
	if len(frames) != 1 || frames[0].name != "hello" {
		r.t.Fatalf("the greeting was answered with %v", frames)
	}
	r.hello = frames[0].fields
	hello := wire.Hello{
		Version: wire.ProtocolVersion, ClientID: 42, Connection: uint32(r.hello["connection"].(uint64)),
		Nonce: wire.ClientNonce(r.core.settings.seed, r.hello["connection"].(uint64)), Label: []byte("test;go/0"),
	}
	if !wire.SameProof(hello.Mac(nil, r.greeting), r.hello["mac"].([]byte)) {
		r.t.Fatal("the mac of the hello is wrong")
	}
}

// welcome greets and says W.
func (r *rig) welcome(role byte, named string) {
	r.t.Helper()
	r.greet()
	r.reply("welcome", r.welcomeFields(role, 5, named))
}

func (r *rig) welcomeFields(role byte, keepaliveS uint16, named string) wire.Fields {
	w := wire.Welcome{Role: role, KeepaliveS: keepaliveS, Fingerprint: make([]byte, 32), Leader: []byte(named)}
	return wire.Fields{
		"role": uint64(role), "keepalive_s": uint64(keepaliveS), "fingerprint": w.Fingerprint, "leader": w.Leader,
		"proof": w.Proof(nil, r.greeting, r.hello["client_nonce"].([]byte)),
	}
}

func (r *rig) receive(data []byte) {
	r.core.receive(r.serial, data, r.now)
	r.run()
}

func (r *rig) reply(name string, fields wire.Fields) {
	r.t.Helper()
	data, err := wire.Encode("server", name, fields)
	if err != nil {
		r.t.Fatal(err)
	}
	r.receive(data)
}

func (r *rig) granted(id, token, waitedMs uint64) {
	r.t.Helper()
	r.reply("granted", wire.Fields{"request_id": id, "token": token, "waited_ms": waitedMs})
}

// about replies with a frame that has a request id alone.
func (r *rig) about(name string, id uint64) {
	r.t.Helper()
	r.reply(name, wire.Fields{"request_id": id})
}

func (r *rig) failed(id, code uint64, text string) {
	r.t.Helper()
	r.reply("error", wire.Fields{"request_id": id, "code": code, "text": []byte(text)})
}

// sent is what the core writes now.
func (r *rig) sent() []frame {
	r.t.Helper()
	var frames []frame
	for data := r.core.requests.appendOutput(nil, r.now); len(data) > 0; {
		size := wire.HeaderBytes + int(binary.BigEndian.Uint16(data[1:]))
		name, fields, err := wire.Decode("client", data[:size])
		if err != nil {
			r.t.Fatal(err)
		}
		frames, data = append(frames, frame{name, fields}), data[size:]
	}
	return frames
}

// expectSent checks what is written now, a line per frame.
func (r *rig) expectSent(lines ...string) {
	r.t.Helper()
	var got []string
	for _, f := range r.sent() {
		got = append(got, f.String())
	}
	if !slices.Equal(got, lines) {
		r.t.Fatalf("sent %q\nnot  %q", got, lines)
	}
}

// pass lets time go on, deadline by deadline.
func (r *rig) pass(d time.Duration) {
	end := r.now + int64(d)
	for next := r.core.deadlines.nextNs(); next <= end; next = r.core.deadlines.nextNs() {
		r.now = max(r.now, next)
		r.core.onTime(r.now)
		r.run()
	}
	r.now = end
}

// lose ends the connection from outside.
func (r *rig) lose() {
	r.core.link.disconnected(r.serial, "cut", r.now)
	r.run()
}

// reconnect loses the connection and is welcomed on the next.
func (r *rig) reconnect() {
	r.t.Helper()
	r.lose()
	r.welcome(wire.RoleStandalone, "")
}

func (r *rig) acquire(options acquireOptions, keys ...string) (*request, *call) {
	r.t.Helper()
	c := newCall()
	req, err := r.core.acquire(keys, options, c, r.now)
	if err != nil {
		r.t.Fatal(err)
	}
	r.run()
	return req, c
}

// hold acquires a key with a fixed lease and has it granted; the request's id is the client's next.
func (r *rig) hold(key string, leaseMs uint32, token uint64) *heldTicket {
	r.t.Helper()
	req, c := r.acquire(fixed(leaseMs), key)
	r.sent()
	r.granted(req.id, token, 0)
	return r.succeeded(c).ticket
}

func fixed(leaseMs uint32) acquireOptions { return acquireOptions{lease: &leaseMs} }

func waiting(leaseMs, waitMs uint32) acquireOptions {
	return acquireOptions{lease: &leaseMs, wait: &waitMs}
}

func (r *rig) release(t *heldTicket) *call {
	c := newCall()
	r.core.tickets.releaseTicket(t, c, r.now)
	r.run()
	return c
}

func (r *rig) extend(t *heldTicket, leaseMs uint32) (*request, *call) {
	c := newCall()
	req := r.core.tickets.extend(t, leaseMs, c, r.now)
	r.run()
	return req, c
}

func (r *rig) outcome(c *call) outcome {
	r.t.Helper()
	select {
	case result := <-c.done:
		return result
	default:
		r.t.Fatal("the call waits")
		return outcome{}
	}
}

func (r *rig) succeeded(c *call) outcome {
	r.t.Helper()
	result := r.outcome(c)
	if result.err != nil {
		r.t.Fatal(result.err)
	}
	return result
}

func (r *rig) failedWith(c *call, sentinel error) {
	r.t.Helper()
	if result := r.outcome(c); !errors.Is(result.err, sentinel) {
		r.t.Fatalf("ended with %v %v, not with %v", result.ticket, result.err, sentinel)
	}
}

func (r *rig) waits(c *call) {
	r.t.Helper()
	if len(c.done) > 0 {
		r.t.Fatalf("the call has ended: %v", (<-c.done).err)
	}
}

func (r *rig) kinds() string {
	var kinds []string
	for _, e := range r.events {
		kinds = append(kinds, e.EventKind())
	}
	r.events = nil
	return strings.Join(kinds, " ")
}

func (r *rig) dropped(what string) {
	r.t.Helper()
	if len(r.disconnects) == 0 || r.disconnects[len(r.disconnects)-1] != r.serial-1 {
		r.t.Fatalf("%s: the connection was kept", what)
	}
}
