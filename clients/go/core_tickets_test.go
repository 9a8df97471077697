package ticketing

import (
	"testing"
	"time"

	"github.com/ticketing-project/ticketing/clients/go/internal/wire"
)

// REQ-TICKET-LONGWAIT: where the margin is large beside the lease, an extend first says what is left.
func TestLongWaitIsConfirmed(t *testing.T) {
	r := readyRig(t)
	req, c := r.acquire(waiting(100, 60_000), "k")
	r.sent()
	r.granted(req.id, 7, 50_000)
	r.waits(c)
	r.expectSent("extend key=k lease_ms=100 request_id=2 token=7")
	queued := r.now
	r.reply("extended", wire.Fields{"request_id": uint64(2), "lease_ms": uint64(80)})
	ticket := r.succeeded(c).ticket
	if want := queued + 80*nsPerMs - 160_000; ticket.expiresNs != want {
		t.Fatalf("expires at %d, not %d", ticket.expiresNs, want)
	}
	req, c = r.acquire(waiting(100, 60_000), "k")
	r.sent()
	r.granted(req.id, 8, 50_000)
	r.sent()
	r.about("not_held", req.id+1)
	r.failedWith(c, ErrLost)
}

func TestLostAtBirth(t *testing.T) {
	r := readyRig(t)
	req, c := r.acquire(fixed(100), "k")
	r.sent()
	r.pass(200 * time.Millisecond)
	r.granted(req.id, 7, 0)
	r.failedWith(c, ErrLost)
}

// REQ-LOST-ONCE: once, at D, at N to an extend, or at its time.
func TestLostOnce(t *testing.T) {
	r := readyRig(t)
	byD, byN, byClock := r.hold("d", 60_000, 1), r.hold("n", 60_000, 2), r.hold("c", 500, 3)
	r.kinds()
	r.reply("dropped", wire.Fields{"token": uint64(1), "reason": uint64(wire.DropOperator)})
	r.reply("dropped", wire.Fields{"token": uint64(1), "reason": uint64(wire.DropOperator)})
	r.reply("dropped", wire.Fields{"token": uint64(77), "reason": uint64(wire.DropOperator)})
	req, c := r.extend(byN, 1000)
	r.sent()
	r.about("not_held", req.id)
	r.failedWith(c, ErrLost)
	r.pass(499 * time.Millisecond)
	if got := r.kinds(); got != "lost lost lost" {
		t.Fatal(got)
	}
	for ticket, reason := range map[*heldTicket]LostReason{byD: LostOperator, byN: LostNotHeld, byClock: LostExpired} {
		if ticket.state != lost || ticket.lostReason != reason {
			t.Fatal(ticket.state, ticket.lostReason)
		}
		_, c := r.extend(ticket, 1000)
		r.failedWith(c, ErrLost)
	}
	r.expectSent()
	r.failedWith(r.release(byD), ErrLost)
	r.failedWith(r.release(byN), ErrLost)
	r.expectSent()
	released := r.release(byClock) // By the clock alone: the server may still hold it.
	r.expectSent("release key=c request_id=5 token=3")
	r.about("released", 5)
	r.failedWith(released, ErrLost)
	r.failedWith(r.release(byClock), ErrLost)
}

func TestNothingIsSentAfterALateD(t *testing.T) {
	r := readyRig(t)
	ticket := r.hold("k", 500, 3)
	r.pass(600 * time.Millisecond)
	r.reply("dropped", wire.Fields{"token": uint64(3), "reason": uint64(wire.DropLeaseOver)})
	r.failedWith(r.release(ticket), ErrLost)
	r.expectSent()
}

func TestExpiredTicketsAreForgotten(t *testing.T) {
	var e expiredTickets
	for token := range uint64(1000) {
		e.add(&heldTicket{token: token, expiresNs: int64(token) * nsPerS})
	}
	if len(e.byToken) != 61 || len(e.oldest) != 61 {
		t.Fatal(len(e.byToken), len(e.oldest))
	}
}

// REQ-LOST-ONEEXTEND REQ-LOST-RETRY: one extend at a time; a failed one is followed by a new one a second later.
func TestExtends(t *testing.T) {
	r := readyRig(t)
	ticket := r.hold("k", 60_000, 3)
	first, c1 := r.extend(ticket, 90_000)
	second, c2 := r.extend(ticket, 120_000)
	r.expectSent("extend key=k lease_ms=90000 request_id=2 token=3")
	r.reply("extended", wire.Fields{"request_id": first.id, "lease_ms": uint64(90_000)})
	r.succeeded(c1)
	r.expectSent("extend key=k lease_ms=120000 request_id=3 token=3")
	before := ticket.expiresNs
	r.reply("extended", wire.Fields{"request_id": second.id, "lease_ms": uint64(1_000)})
	r.succeeded(c2)
	if ticket.expiresNs != before {
		t.Fatal("the end went back")
	}
}

func TestFailedRenewalIsRepeated(t *testing.T) {
	renewed := true
	r := readyRig(t)
	req, c := r.acquire(acquireOptions{lease: ptr(uint32(3000)), autoExtend: &renewed}, "k")
	r.sent()
	r.granted(req.id, 3, 0)
	r.succeeded(c)
	r.pass(time.Second)
	r.expectSent("extend key=k lease_ms=3000 request_id=2 token=3")
	r.failed(2, wire.ErrorLeaseTooLong, "")
	r.pass(999 * time.Millisecond)
	r.expectSent()
	r.pass(time.Millisecond)
	r.expectSent("extend key=k lease_ms=3000 request_id=3 token=3")
}

func ptr[T any](value T) *T { return &value }

// REQ-BOUND-RELEASE REQ-SCOPE-IDEMPOTENT: idempotent, bounded by the end of the lease, but not before a second.
func TestRelease(t *testing.T) {
	r := readyRig(t)
	ticket := r.hold("k", 60_000, 3)
	first, second := r.release(ticket), r.release(ticket)
	r.expectSent("release key=k request_id=2 token=3")
	r.about("released", 2)
	r.succeeded(first)
	r.succeeded(second)
	r.succeeded(r.release(ticket))
	_, c := r.extend(ticket, 1000)
	r.failedWith(c, ErrNotHeld)
	gone := r.release(r.hold("k", 60_000, 4))
	r.sent()
	r.about("not_held", 4)
	r.failedWith(gone, ErrLost)
	unanswered := r.hold("k", 100, 5)
	c = r.release(unanswered)
	r.sent()
	r.pass(999 * time.Millisecond)
	r.waits(c)
	r.pass(time.Millisecond)
	r.failedWith(c, ErrLost)
	r.reconnect()
	r.expectSent("release key=k request_id=6 token=5")
	r.about("not_held", 6)
	r.failedWith(r.release(unanswered), ErrLost)
}

func TestHandOver(t *testing.T) {
	r := readyRig(t, func(s *coreSettings) { s.keyPrefix = "p/" })
	ticket := r.hold("ä b", 60_000, 3)
	req, _ := r.extend(ticket, 60_000)
	c, refused := newCall(), newCall()
	r.core.tickets.handOver(ticket, c, r.now)
	r.core.tickets.handOver(ticket, refused, r.now)
	r.run()
	r.waits(c)
	r.failedWith(refused, ErrNotHeld)
	r.sent()
	r.reply("extended", wire.Fields{"request_id": req.id, "lease_ms": uint64(60_000)})
	reference := r.succeeded(c).reference
	if reference != "3:p%2F%C3%A4%20b" {
		t.Fatal(reference)
	}
	r.succeeded(r.release(ticket)) // It has no part in it any more.
	r.expectSent()
	adopted := newCall()
	if _, err := r.core.adopt(reference, fixed(5000), adopted, r.now); err != nil {
		t.Fatal(err)
	}
	r.expectSent("extend key=p/ä b lease_ms=5000 request_id=3 token=3")
	r.reply("extended", wire.Fields{"request_id": uint64(3), "lease_ms": uint64(5000)})
	if got := r.succeeded(adopted).ticket; got.token != 3 || got.shownKeys[0] != "p/ä b" {
		t.Fatal(got)
	}
	r.core.adopt("9:k", fixed(5000), refused, r.now)
	r.sent()
	r.about("not_held", 4)
	r.failedWith(refused, ErrNotHeld)
}

func TestHandOverIsStopped(t *testing.T) {
	r := readyRig(t)
	ticket := r.hold("k", 60_000, 3)
	c := newCall()
	r.core.tickets.handOver(ticket, c, r.now)
	r.core.tickets.stopHandOver(ticket, c, r.now)
	if ticket.state != held || r.core.tickets.held[3] != ticket {
		t.Fatal(ticket.state)
	}
	req, _ := r.extend(ticket, 60_000)
	r.core.tickets.handOver(ticket, newCall(), r.now)
	r.core.tickets.stopHandOver(ticket, ticket.handOver, r.now)
	r.sent()
	r.reply("extended", wire.Fields{"request_id": req.id, "lease_ms": uint64(60_000)})
	if ticket.state != held {
		t.Fatal(ticket.state)
	}
}

// After taken_over the client is closed and its tickets are lost.
func TestTakenOver(t *testing.T) {
	r := readyRig(t)
	ticket := r.hold("k", 60_000, 3)
	_, c := r.acquire(acquireOptions{}, "l")
	r.sent()
	r.failed(0, wire.ErrorTakenOver, "by 127.0.0.1")
	r.failedWith(c, ErrClosed)
	if ticket.state != lost || ticket.lostReason != LostTakenOver || r.closed != 1 {
		t.Fatal(ticket.state)
	}
	if _, err := r.core.ping(newCall(), r.now); err == nil {
		t.Fatal("a ping after it")
	}
}

func TestListenersHearOfTheEndOnce(t *testing.T) {
	r := readyRig(t)
	for name, end := range map[string]func(*heldTicket){
		"loss":    func(held *heldTicket) { r.core.tickets.dropped(held.token, LostOperator) },
		"release": func(held *heldTicket) { r.release(held) },
	} {
		var heard []error
		ticket := r.hold("k", 60_000, uint64(10+len(name)))
		ticket.listeners = append(ticket.listeners, &endListener{func(err error) { heard = append(heard, err) }})
		end(ticket)
		end(ticket)
		r.run()
		if len(heard) != 1 || (heard[0] != nil) != (name == "loss") {
			t.Fatal(name, heard)
		}
	}
}

// What waits for something of a ticket ends with it: by loss, by release, and by close.
func TestCallsEndWithTheirTicket(t *testing.T) {
	for name, end := range map[string]struct {
		end  func(r *rig, ticket *heldTicket)
		with error
	}{
		"loss": {func(r *rig, ticket *heldTicket) {
			r.reply("dropped", wire.Fields{"token": ticket.token, "reason": uint64(wire.DropOperator)})
		}, ErrLost},
		"release": {func(r *rig, ticket *heldTicket) { r.release(ticket) }, ErrNotHeld},
		"close": {func(r *rig, _ *heldTicket) {
			r.core.settings.releaseOnClose = false
			r.core.close(newCall(), r.now)
			r.run()
		}, ErrClosed},
	} {
		r := readyRig(t)
		ticket := r.hold("k", 60_000, 3)
		unanswered, extending := r.extend(ticket, 1000)
		_, deferred := r.extend(ticket, 2000)
		_, cancelled := r.extend(ticket, 3000)
		r.core.abandon(ticket.deferred[1], r.now)
		handing := newCall()
		r.core.tickets.handOver(ticket, handing, r.now)
		r.run()
		r.sent()
		end.end(r, ticket)
		r.failedWith(deferred, end.with)
		r.failedWith(handing, end.with)
		r.waits(cancelled)
		if name == "release" { // It is on the wire, so its own answer says how it went.
			r.waits(extending)
			r.reply("extended", wire.Fields{"request_id": unanswered.id, "lease_ms": uint64(60_000)})
			r.succeeded(extending)
		} else {
			r.failedWith(extending, end.with)
		}
	}
}

func TestExtendWithoutAnAnswer(t *testing.T) {
	r := readyRig(t)
	ticket := r.hold("k", 60_000, 3)
	_, first := r.extend(ticket, 1000)
	_, second := r.extend(ticket, 2000)
	r.sent()
	r.pass(5 * time.Second)
	r.sent()
	r.reply("ping", wire.Fields{"echo": uint64(0)})
	r.pass(5 * time.Second)
	for _, c := range []*call{first, second} {
		err, is := r.outcome(c).err.(*Error)
		if !is || err.Kind != KindConnection || !err.Timeout() {
			t.Fatal(err)
		}
	}
	r.reply("extended", wire.Fields{"request_id": uint64(2), "lease_ms": uint64(60_000)})
	if len(r.disconnects) != 0 || ticket.state != held {
		t.Fatal("a late answer did something")
	}
}

func TestNotHeldToAnExtendOfAReleasedTicket(t *testing.T) {
	r := readyRig(t)
	ticket := r.hold("k", 60_000, 3)
	req, extending := r.extend(ticket, 1000)
	r.release(ticket)
	r.sent()
	r.about("not_held", req.id)
	r.failedWith(extending, ErrNotHeld)
}

func TestAdoptWhatIsHeld(t *testing.T) {
	r := readyRig(t)
	r.hold("k", 60_000, 3)
	c := newCall()
	if _, err := r.core.adopt("3:k", acquireOptions{}, c, r.now); err != nil {
		t.Fatal(err)
	}
	r.sent()
	r.reply("extended", wire.Fields{"request_id": uint64(2), "lease_ms": uint64(30_000)})
	r.failedWith(c, ErrNotHeld)
	given, err := r.core.adopt("4:k", acquireOptions{}, newCall(), r.now)
	if err != nil {
		t.Fatal(err)
	}
	r.sent()
	r.core.abandon(given, r.now)
	r.reply("extended", wire.Fields{"request_id": given.id, "lease_ms": uint64(30_000)})
	if len(r.core.tickets.held) != 1 {
		t.Fatal("an abandoned adoption made a ticket")
	}
}

// A long wait that is confirmed ends with its connection, its caller, its bound and its client.
func TestConfirmingEnds(t *testing.T) {
	start := func() (*rig, *request, *call) {
		r := readyRig(t)
		req, c := r.acquire(waiting(100, 60_000), "k")
		r.sent()
		r.pass(50 * time.Millisecond)
		r.granted(req.id, 7, 50_000)
		r.sent()
		return r, req, c
	}
	r, req, _ := start()
	r.core.abandon(req, r.now)
	r.expectSent("release key=k request_id=3 token=7")
	r, _, c := start()
	r.core.close(newCall(), r.now)
	r.run()
	r.failedWith(c, ErrClosed)
	r.expectSent("release key=k request_id=3 token=7")
	r, _, c = start()
	r.reconnect()
	r.expectSent("extend key=k lease_ms=100 request_id=2 token=7")
	r.waits(c)
	r, _, c = start()
	r.failed(2, wire.ErrorLeaseTooLong, "")
	r.pass(time.Second)
	r.expectSent("extend key=k lease_ms=100 request_id=3 token=7")
	r.lose()
	r.pass(59 * time.Second)
	r.failedWith(c, ErrTimeout)
}
