package ticketing

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ticketing-project/ticketing/clients/go/internal/wire"
)

// REQ-ALIVE-PING REQ-ALIVE-ONEPING: nothing received, or nothing sent, for keepalive_s brings one ping.
func TestSilence(t *testing.T) {
	r := readyRig(t)
	r.pass(4999 * time.Millisecond)
	r.expectSent()
	r.pass(time.Millisecond)
	r.expectSent("ping echo=0")
	r.reply("ping", wire.Fields{"echo": uint64(0)})
	r.pass(4999 * time.Millisecond)
	r.expectSent() // It has sent and received since.
	r.pass(time.Millisecond)
	r.expectSent("ping echo=0")
	r.pass(5 * time.Second)
	r.expectSent() // One is unanswered at most.
	r.pass(5 * time.Second)
	if len(r.disconnects) != 1 || len(r.connects) != 2 {
		t.Fatal(r.disconnects, r.connects)
	}
}

func TestAClientThatOnlyReceivesPings(t *testing.T) {
	r := readyRig(t)
	for range 4 {
		r.pass(1200 * time.Millisecond)
		r.reply("dropped", wire.Fields{"token": uint64(99), "reason": uint64(wire.DropOperator)})
	}
	r.pass(200 * time.Millisecond)
	r.expectSent("ping echo=0")
}

func TestRounds(t *testing.T) {
	r := newRig(t, severalHosts)
	r.lose()
	r.welcome(wire.RoleStandalone, "")
	r.succeeded(r.opened)
	r.lose() // The endpoint just lost comes last.
	r.lose()
	if want := []endpoint{hostA, hostB, hostA, hostB}; !slices.Equal(r.connects, want) {
		t.Fatal(r.connects)
	}
}

func TestOpenFailsAfterOneRound(t *testing.T) {
	r := newRig(t, severalHosts)
	r.lose()
	r.pass(time.Second) // Connect and greeting have a second with several endpoints.
	result := r.outcome(r.opened)
	text := result.err.Error()
	if !strings.Contains(text, "10.0.0.1:5225: cut") || !strings.Contains(text, "10.0.0.2:5225: no greeting within 1000 ms") {
		t.Fatal(text)
	}
	r.failedWithin(result, ErrConnection)
}

func (r *rig) failedWithin(result outcome, sentinel error) {
	r.t.Helper()
	c := newCall()
	c.done <- result
	r.failedWith(c, sentinel)
}

func TestConnectFor(t *testing.T) {
	r := newRig(t, func(s *coreSettings) { s.connectForNs = 5 * nsPerS })
	for r.now < 1004*nsPerS {
		r.lose()
		r.waits(r.opened)
		r.pass(1600 * time.Millisecond)
	}
	r.welcome(wire.RoleStandalone, "")
	r.succeeded(r.opened)
}

// REQ-CONNECT-BACKOFF: 50 ms doubling to 1 s, each ± 50 %, the first without waiting.
func TestBackoff(t *testing.T) {
	b := backoff{seed: []byte("seed")}
	spread := map[bool]int{}
	for step := range 200 {
		ns := b.nextNs()
		base := 50 * nsPerMs
		for range min(step-1, 16) {
			base = min(2*base, nsPerS)
		}
		if step == 0 && ns != 0 || step > 0 && (ns < base/2 || ns > base*3/2) {
			t.Fatal(step, ns, base)
		}
		spread[ns > base]++
	}
	if spread[true] < 40 || spread[false] < 40 {
		t.Fatal(spread)
	}
	b.reset()
	if b.nextNs() != 0 {
		t.Fatal("no reset")
	}
}

// The back-off starts afresh only after a connection that answered a request or lived 5 s.
func TestBackoffIsKeptByShortConnections(t *testing.T) {
	r := readyRig(t)
	r.reconnect()
	r.lose()
	if len(r.connects) != 2 {
		t.Fatal("at once, though the connection was short")
	}
	r.pass(time.Second)
	r.welcome(wire.RoleStandalone, "")
	r.hold("k", 60_000, 3)
	r.lose()
	if len(r.connects) != 4 {
		t.Fatal("not at once, though a request was answered")
	}
}

func TestFollowerNamesTheLeader(t *testing.T) {
	r := newRig(t)
	r.welcome(wire.RoleFollower, leader.String())
	if r.connects[1] != leader {
		t.Fatal(r.connects)
	}
	r.lose()
	text := r.outcome(r.opened).err.Error()
	if !strings.Contains(text, "--advertise") || !strings.Contains(text, "a follower; it names 10.0.0.9:7000") {
		t.Fatal(text)
	}
}

func TestLeaderless(t *testing.T) {
	r := newRig(t, severalHosts)
	r.welcome(wire.RoleUnknown, "")
	r.expectSent()
	r.pass(time.Second)
	if r.connects[1] != hostB {
		t.Fatal(r.connects)
	}
	r.welcome(wire.RoleUnknown, "")
	r.reply("leader", wire.Fields{"leader": []byte(hostA.String())})
	if r.connects[2] != hostA {
		t.Fatal(r.connects) // Named by L it counts as untried, once.
	}
	r.welcome(wire.RoleLeader, hostA.String())
	r.succeeded(r.opened)
}

// On L, idle or not, the client closes and reconnects, also where it names the same address.
func TestLeaderMoves(t *testing.T) {
	for _, named := range []string{"", hostA.String(), leader.String()} {
		r := readyRig(t)
		_, c := r.acquire(acquireOptions{}, "k")
		r.sent()
		r.reply("leader", wire.Fields{"leader": []byte(named)})
		want := hostA
		if named == leader.String() {
			want = leader
		}
		if len(r.disconnects) != 1 || r.connects[1] != want {
			t.Fatal(named, r.disconnects, r.connects)
		}
		r.welcome(wire.RoleLeader, named)
		r.expectSent("acquire key=k lease_ms=30000 request_id=1 wait_ms=4294967295")
		r.waits(c)
	}
}

func TestNotServing(t *testing.T) {
	r := readyRig(t)
	req, c := r.acquire(acquireOptions{}, "k")
	r.sent()
	r.failed(req.id, wire.ErrorNotServing, "")
	r.waits(c)
	r.dropped("after not_serving")
}

func TestAuthErrors(t *testing.T) {
	r := newRig(t, severalHosts)
	r.greet()
	r.failed(0, wire.ErrorAuthFailed, "")
	r.greet()
	fields := r.welcomeFields(wire.RoleStandalone, 5, "")
	fields["proof"] = make([]byte, 32)
	r.reply("welcome", fields)
	r.failedWith(r.opened, ErrAuth)
}

// A round without a welcome but with an auth error fails what is unanswered; the next call begins anew.
func TestAuthErrorLater(t *testing.T) {
	r := readyRig(t)
	_, c := r.acquire(acquireOptions{}, "k")
	r.sent()
	r.lose()
	r.greet()
	r.failed(0, wire.ErrorAuthFailed, "")
	r.failedWith(c, ErrAuth)
	r.pass(time.Minute)
	if len(r.connects) != 2 {
		t.Fatal(r.connects)
	}
	_, c = r.acquire(acquireOptions{}, "k")
	r.welcome(wire.RoleStandalone, "")
	r.expectSent("acquire key=k lease_ms=30000 request_id=2 wait_ms=4294967295")
	r.waits(c)
}

func TestFingerprintIsPinned(t *testing.T) {
	r := newRig(t, func(s *coreSettings) { s.fingerprint = make([]byte, 32); s.fingerprint[0] = 1 })
	r.welcome(wire.RoleStandalone, "")
	r.failedWith(r.opened, ErrAuth)
}

func TestNoCommonVersion(t *testing.T) {
	r := newRig(t)
	r.receive([]byte("TICKET\x05\x07\x00\xff0123456789abcdef"))
	r.expectSent()
	if text := r.outcome(r.opened).err.Error(); !strings.Contains(text, "the server speaks 5 to 7, this client 4") {
		t.Fatal(text)
	}
}

func TestHandshakeTimeouts(t *testing.T) {
	r := newRig(t)
	r.pass(3 * time.Second)
	if text := r.outcome(r.opened).err.Error(); !strings.Contains(text, "no greeting within 3000 ms") {
		t.Fatal(text)
	}
	r = newRig(t)
	r.greet()
	r.pass(5 * time.Second)
	if text := r.outcome(r.opened).err.Error(); !strings.Contains(text, "no welcome within 5000 ms") {
		t.Fatal(text)
	}
}

func TestWhatIsNoServer(t *testing.T) {
	for data, says := range map[string]string{
		"HTTP/1.1 400":                                    "no greeting",
		"\x15\x03\x01\x00\x02":                            "use ticketings://",
		"TICKET\x04\x04\x09\xff0123456789abcdef":          "mode 9 is unknown",
		"TICKET\x04\x04\x00\xff0123456789abcdefA\x00":     "",
		"TICKET\x04\x04\x00\xff0123456789abcdefP\x00\x08": "",
	} {
		r := newRig(t)
		r.receive([]byte(data))
		if says == "" {
			r.waits(r.opened)
			r.receive(make([]byte, 9))
		}
		if text := r.outcome(r.opened).err.Error(); !strings.Contains(text, says) {
			t.Fatalf("%q: %s", data, text)
		}
	}
}

// What no server sends ends the connection, never the client.
func TestHostile(t *testing.T) {
	id := func(n uint64) wire.Fields { return wire.Fields{"request_id": n} }
	for what, send := range map[string]func(r *rig){
		"an unknown op":        func(r *rig) { r.receive([]byte{'?'}) },
		"a long frame":         func(r *rig) { r.receive([]byte{'T', 0, 9}) },
		"a reply to nothing":   func(r *rig) { r.about("timed_out", 99) },
		"a wrong reply":        func(r *rig) { r.about("released", 1) },
		"a second reply":       func(r *rig) { r.about("timed_out", 1); r.about("timed_out", 1) },
		"a second welcome":     func(r *rig) { r.reply("welcome", r.welcomeFields(wire.RoleStandalone, 5, "")) },
		"token 0":              func(r *rig) { r.granted(1, 0, 0) },
		"a ping never sent":    func(r *rig) { r.reply("ping", wire.Fields{"echo": uint64(0)}) },
		"an unknown reason":    func(r *rig) { r.receive([]byte{'D', 0, 9, 0, 0, 0, 0, 0, 0, 0, 1, 9}) },
		"an unknown code":      func(r *rig) { r.receive([]byte{'E', 0, 9, 0, 0, 0, 0, 0, 0, 0, 1, 99}) },
		"auth about a request": func(r *rig) { r.failed(1, wire.ErrorAuthFailed, "") },
		"forbidden about none": func(r *rig) { r.failed(0, wire.ErrorForbidden, "") },
		"a leader that is none": func(r *rig) {
			r.reply("leader", wire.Fields{"leader": []byte("nowhere")})
		},
		"an acquire after its cancel was answered": func(r *rig) {
			r.core.abandon(r.core.requests.unanswered[1], r.now)
			r.sent()
			r.reply("cancelled", id(2))
			r.granted(1, 5, 0)
		},
	} {
		r := readyRig(t)
		r.acquire(acquireOptions{}, "k")
		r.sent()
		send(r)
		if len(r.disconnects) != 1 {
			t.Errorf("%s: the connection was kept", what)
		}
		r.welcome(wire.RoleStandalone, "")
		if r.core.closedBecause != "" {
			t.Errorf("%s: closed the client", what)
		}
	}
}

func TestHostileWelcomes(t *testing.T) {
	for what, fields := range map[string]func(r *rig) []byte{
		"keepalive": func(r *rig) []byte { return rawWelcome(r, wire.RoleStandalone, 3601, "") },
		"role":      func(r *rig) []byte { return rawWelcome(r, 9, 5, "") },
		"leader":    func(r *rig) []byte { return rawWelcome(r, wire.RoleFollower, 5, "") },
	} {
		r := newRig(t)
		r.greet()
		r.receive(fields(r))
		if r.outcome(r.opened).err == nil {
			t.Error(what)
		}
	}
}

// rawWelcome is a welcome that may be wrong, with a right proof.
func rawWelcome(r *rig, role byte, keepaliveS uint16, named string) []byte {
	f := r.welcomeFields(role, keepaliveS, named)
	body := append([]byte{role, byte(keepaliveS >> 8), byte(keepaliveS)}, f["fingerprint"].([]byte)...)
	body = append(append(body, f["proof"].([]byte)...), named...)
	return append([]byte{'W', 0, byte(len(body))}, body...)
}

func TestOldConnectionsDoNotCount(t *testing.T) {
	r := readyRig(t)
	old := r.serial
	_, c := r.acquire(acquireOptions{}, "k")
	r.sent()
	r.reconnect()
	frame, _ := wire.Encode("server", "granted", wire.Fields{"request_id": uint64(1), "token": uint64(9), "waited_ms": uint64(0)})
	r.core.receive(old, frame, r.now)
	r.core.link.disconnected(old, "late", r.now)
	r.run()
	r.waits(c)
	if len(r.disconnects) != 0 {
		t.Fatal(r.disconnects)
	}
}

func TestServerTextIsSanitised(t *testing.T) {
	r := readyRig(t)
	req, c := r.acquire(acquireOptions{}, "k")
	r.sent()
	body := append([]byte{'E', 0, 13, 0, 0, 0, 0, 0, 0, 0, byte(req.id), wire.ErrorLeaseTooLong}, "\x1b[1\x7f"...)
	r.receive(body)
	if text := r.outcome(c).err.Error(); text != "ticketing: lease_too_long: ?[1?" {
		t.Fatal(text)
	}
}

// E 1 with id 0 settles all that is unanswered, and none is sent again.
func TestBadFrameAboutTheConnection(t *testing.T) {
	r := readyRig(t)
	ticket := r.hold("k", 60_000, 3)
	_, acquiring := r.acquire(acquireOptions{}, "a")
	_, extending := r.extend(ticket, 1000)
	releasing := r.release(r.hold("b", 60_000, 4))
	r.sent()
	r.failed(0, wire.ErrorBadFrame, "op")
	for _, c := range []*call{acquiring, extending, releasing} {
		r.failedWith(c, ErrProtocol)
	}
	r.welcome(wire.RoleStandalone, "")
	r.expectSent("extend key=k lease_ms=1 request_id=6 token=3") // A new one, to learn whether it is held.
}

func TestCloseWithoutAConnection(t *testing.T) {
	r := readyRig(t)
	r.hold("k", 60_000, 3)
	closed := newCall()
	r.core.close(closed, r.now)
	r.run()
	r.sent()
	r.lose() // It does not reconnect for that.
	r.succeeded(closed)
	if len(r.connects) != 1 {
		t.Fatal(r.connects)
	}
	r = newRig(t)
	r.core.close(closed, r.now)
	r.run()
	r.failedWith(r.opened, ErrClosed)
	r.succeeded(closed)
}
