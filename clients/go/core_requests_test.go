package ticketing

import (
	"bytes"
	"testing"
	"time"

	"github.com/ticketing-project/ticketing/clients/go/internal/wire"
)

// REQ-TICKET-EXPIRY: a ticket ends at the moment before sending + wait + lease, less 0.2 %.
func TestGrant(t *testing.T) {
	r := readyRig(t)
	req, c := r.acquire(fixed(1000), "k")
	queued := r.now
	r.expectSent("acquire key=k lease_ms=1000 request_id=1 wait_ms=4294967295")
	r.pass(300 * time.Millisecond)
	r.granted(req.id, 7, 200)
	ticket := r.succeeded(c).ticket
	if want := queued + 1200*nsPerMs - 2_400_000; ticket.expiresNs != want || ticket.token != 7 {
		t.Fatalf("expires at %d, not %d", ticket.expiresNs, want)
	}
	if got := r.kinds(); got != "connected granted" {
		t.Fatal(got)
	}
}

func TestNoLeaseIsRenewed(t *testing.T) {
	r := readyRig(t)
	req, c := r.acquire(acquireOptions{}, "k")
	r.expectSent("acquire key=k lease_ms=30000 request_id=1 wait_ms=4294967295")
	r.granted(req.id, 7, 0)
	r.succeeded(c)
	r.pass(9 * time.Second)
	for _, f := range r.sent() {
		if f.name != "ping" {
			t.Fatal(f)
		}
		r.reply("ping", wire.Fields{"echo": uint64(0)})
	}
	r.pass(time.Second)
	r.expectSent("extend key=k lease_ms=30000 request_id=2 token=7")
	r.reply("extended", wire.Fields{"request_id": uint64(2), "lease_ms": uint64(30000)})
	if got := r.kinds(); got != "connected granted extended" {
		t.Fatal(got)
	}
}

func TestTry(t *testing.T) {
	r := readyRig(t)
	req, c := r.acquire(waiting(1000, 0), "k")
	r.sent()
	r.about("timed_out", req.id)
	r.failedWith(c, ErrHeld)
	_, c = r.acquire(waiting(1000, 0), "k")
	r.sent()
	r.pass(4 * time.Second)
	r.receive(nil)
	r.core.link.receivedNs = r.now // The server is not silent, it only does not answer.
	r.pass(6 * time.Second)
	result := r.outcome(c)
	if err, is := result.err.(*Error); !is || err.Kind != KindConnection || !err.Timeout() {
		t.Fatal(result.err)
	}
	for _, f := range r.sent() {
		if f.name != "ping" && f.String() != "cancel acquire_id=2 key=k request_id=3" {
			t.Fatal(f)
		}
	}
}

// REQ-BOUND-WAIT: the client ends a wait itself 1 s late if connected, in time if not.
func TestWaitBound(t *testing.T) {
	r := readyRig(t)
	_, c := r.acquire(waiting(1000, 2000), "k")
	r.sent()
	r.pass(2900 * time.Millisecond)
	r.waits(c)
	r.pass(100 * time.Millisecond)
	r.failedWith(c, ErrTimeout)
	r.expectSent("cancel acquire_id=1 key=k request_id=2")
	_, c = r.acquire(waiting(1000, 2000), "k")
	r.lose()
	r.pass(1999 * time.Millisecond)
	r.waits(c)
	r.pass(time.Millisecond)
	r.failedWith(c, ErrTimeout)
	if got := r.kinds(); got != "connected timed_out disconnected timed_out" {
		t.Fatal(got)
	}
}

func TestOverloadedAndErrors(t *testing.T) {
	r := readyRig(t)
	req, c := r.acquire(acquireOptions{}, "k")
	r.sent()
	r.about("overloaded", req.id)
	r.failedWith(c, ErrOverloaded)
	for code, sentinel := range map[uint64]error{
		wire.ErrorLeaseTooLong: ErrInvalidArgument, wire.ErrorForbidden: ErrAuth,
	} {
		req, c = r.acquire(acquireOptions{}, "k")
		r.sent()
		r.failed(req.id, code, "no")
		r.failedWith(c, sentinel)
	}
	if len(r.disconnects) != 0 {
		t.Fatal("the connection was left")
	}
	req, c = r.acquire(acquireOptions{}, "k")
	_, other := r.acquire(acquireOptions{}, "l")
	r.sent()
	r.failed(req.id, wire.ErrorBadFrame, "key")
	r.failedWith(c, ErrProtocol)
	r.waits(other)
	r.dropped("after bad_frame")
}

// REQ-RESEND-ALL REQ-RESEND-CHECK: what is unanswered is sent again, byte for byte, in id order; then an extend for
// each held ticket in token order.
func TestResend(t *testing.T) {
	r := readyRig(t)
	second := r.hold("b", 60_000, 9)
	r.hold("a", 60_000, 4)
	_, c := r.acquire(acquireOptions{}, "renewed")
	r.sent()
	r.granted(3, 11, 0)
	r.succeeded(c)
	_, waits := r.acquire(waiting(1000, 60_000), "c")
	_, set := r.acquire(acquireOptions{}, "y", "x", "y")
	released := r.release(second)
	var first []byte
	first = r.core.requests.appendOutput(first, r.now)
	r.lose()
	if r.connects[1] != hostA {
		t.Fatal(r.connects)
	}
	r.welcome(wire.RoleStandalone, "")
	if r.hello["connection"] != uint64(2) {
		t.Fatal(r.hello)
	}
	again := r.core.requests.appendOutput(nil, r.now)
	if !bytes.HasPrefix(again, first) {
		t.Fatalf("%x\n%x", first, again)
	}
	extends := append(wire.ExtendFrame(7, 4, 1, "a"), wire.ExtendFrame(8, 11, 30_000, "renewed")...)
	if !bytes.Equal(again[len(first):], extends) {
		t.Fatalf("%x", again[len(first):])
	}
	r.about("not_held", 6) // The first sending did it.
	r.succeeded(released)
	r.about("not_held", 7)
	r.waits(waits)
	r.waits(set)
	if got := r.kinds(); got != "connected granted granted granted disconnected connected released lost" {
		t.Fatal(got)
	}
}

func TestUnansweredBeforeTheWelcome(t *testing.T) {
	r := newRig(t)
	_, c := r.acquire(acquireOptions{}, "k")
	r.greet()
	r.expectSent()
	r.reply("welcome", r.welcomeFields(wire.RoleStandalone, 5, ""))
	r.expectSent("acquire key=k lease_ms=30000 request_id=1 wait_ms=4294967295")
	r.waits(c)
}

// REQ-STOP-CLEAN: whatever the moment, neither waiter nor ticket is left.
func TestAbandon(t *testing.T) {
	r := readyRig(t)
	unsent, _ := r.acquire(acquireOptions{}, "a")
	r.core.abandon(unsent, r.now)
	r.expectSent()
	sent, _ := r.acquire(acquireOptions{}, "b")
	r.sent()
	r.core.abandon(sent, r.now)
	r.expectSent("cancel acquire_id=2 key=b request_id=3")
	r.granted(2, 5, 0) // It crossed the cancel, and has no effect.
	r.about("cancelled", 3)
	granted, c := r.acquire(acquireOptions{}, "c")
	r.sent()
	r.granted(4, 6, 0)
	r.succeeded(c)
	r.core.abandon(granted, r.now)
	r.expectSent("release key=c request_id=5 token=6")
	if len(r.disconnects) != 0 || len(r.core.tickets.held) != 0 {
		t.Fatal("something was left")
	}
	ping, err := r.core.ping(newCall(), r.now)
	if err != nil {
		t.Fatal(err)
	}
	r.expectSent("ping echo=6")
	r.core.abandon(ping, r.now)
	r.reply("ping", wire.Fields{"echo": uint64(6)})
	r.expectSent()
}

// A cancel is sent again until it is answered.
func TestCancelIsResent(t *testing.T) {
	r := readyRig(t)
	req, _ := r.acquire(acquireOptions{}, "b")
	r.sent()
	r.core.abandon(req, r.now)
	r.sent()
	r.reconnect()
	r.expectSent("cancel acquire_id=1 key=b request_id=2")
	r.about("cancelled", 2)
	r.reconnect()
	r.expectSent()
}

func TestPingAndWarnings(t *testing.T) {
	r := readyRig(t)
	c := newCall()
	if _, err := r.core.ping(c, r.now); err != nil {
		t.Fatal(err)
	}
	r.expectSent("ping echo=1")
	r.reply("ping", wire.Fields{"echo": uint64(1)})
	r.succeeded(c)
	r.hold("k", 60_000, 3)
	r.acquire(acquireOptions{}, "k")
	if last := r.logs[len(r.logs)-1]; last != `this client waits for "k", which it holds itself` {
		t.Fatal(last)
	}
	r.sent()
	for range 4 {
		r.pass(3 * time.Second)
		r.core.link.receivedNs, r.core.link.sentNs = r.now, r.now
	}
	if last := r.logs[len(r.logs)-1]; last != `waiting for "k" since 10s` {
		t.Fatal(last)
	}
}

// REQ-SHUT-ORDER: in one go, by the ids of the acquires, with new ids in that order.
func TestClose(t *testing.T) {
	r := readyRig(t)
	_, waits := r.acquire(acquireOptions{}, "w")
	held := r.hold("h", 60_000, 5)
	r.acquire(acquireOptions{}, "v")
	releasedBefore := r.hold("r", 60_000, 6)
	released := r.release(releasedBefore)
	r.sent()
	_, unsent := r.acquire(acquireOptions{}, "u")
	closed := newCall()
	r.core.close(closed, r.now)
	r.run()
	r.expectSent("cancel acquire_id=1 key=w request_id=7", "release key=h request_id=8 token=5", "cancel acquire_id=3 key=v request_id=9")
	r.failedWith(waits, ErrClosed)
	r.failedWith(unsent, ErrClosed)
	r.waits(closed)
	if _, err := r.core.acquire([]string{"x"}, acquireOptions{}, newCall(), r.now); err == nil {
		t.Fatal("an acquire after close")
	}
	r.about("released", 5)
	r.succeeded(released)
	for _, id := range []uint64{7, 9} {
		r.about("cancelled", id)
	}
	r.about("released", 8)
	r.succeeded(closed)
	if r.closed != 1 || held.state.String() != "released" {
		t.Fatal(r.closed, held.state)
	}
}

func TestCloseIsBounded(t *testing.T) {
	r := readyRig(t)
	r.hold("h", 60_000, 5)
	closed := newCall()
	r.core.close(closed, r.now)
	r.run()
	r.sent()
	r.pass(time.Second)
	r.succeeded(closed)
	again := newCall()
	r.core.close(again, r.now)
	r.run()
	r.succeeded(again)
	if r.closed != 1 || r.core.deadlines.nextNs() != never {
		t.Fatal("something is left")
	}
}

func TestCloseWithoutReleasing(t *testing.T) {
	r := readyRig(t, func(s *coreSettings) { s.releaseOnClose = false })
	ticket := r.hold("h", 60_000, 5)
	closed := newCall()
	r.core.close(closed, r.now)
	r.run()
	r.expectSent()
	r.succeeded(closed)
	r.failedWith(r.release(ticket), ErrClosed)
}
