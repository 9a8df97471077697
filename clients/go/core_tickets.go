package ticketing

import (
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/ticketing-project/ticketing/clients/go/internal/wire"
)

// ticketState is where a ticket is in its life.
type ticketState int

const (
	// confirming: granted after so long a wait that an extend must first say what is left.
	confirming ticketState = iota
	held
	releasing
	released
	lost
	handedOver
	// clientClosed: the client ended.
	clientClosed
)

func (s ticketState) String() string {
	return [...]string{"not confirmed", "held", "being released", "released", "lost", "handed over", "closed"}[s]
}

// heldTicket is a granted acquisition as the core sees it; a [Ticket] stands in front of it.
type heldTicket struct {
	alarm
	token           uint64
	keys, shownKeys []string
	leaseMs         uint32
	autoExtend      bool
	acquireID       uint64
	// acquire is the acquire whose caller still waits for this ticket.
	acquire    *request
	grantedNs  int64
	expiresNs  int64
	state      ticketState
	lostReason LostReason
	// extendNs is when the client extends by itself next.
	extendNs int64
	// extending is the one extend that is unanswered; deferred wait for it.
	extending *request
	deferred  []*request
	handOver  *call
	// gone: the server has said that the ticket ended, so nothing more is sent about it.
	gone         bool
	release      *request
	releaseCalls []*call
	releaseErr   error
	listeners    []*endListener
	// done is closed at the loss, once somebody has asked for it.
	done chan struct{}
	// fake: a ticket without a server, for the tests of programs; what it would send has its answer at once.
	fake bool
}

// marginNs is what two clocks may differ by over this time: 0.2 %, rounded up.
func marginNs(sumNs int64) int64 {
	return (sumNs*wire.ClientExpiryMarginPerMille + 999) / 1000
}

func lostError(t *heldTicket) *Error {
	reason := t.lostReason
	if reason == "" {
		reason = LostExpired
	}
	err := newError(KindLost, "the ticket for %s with token %d is lost (%s)", quoted(t.shownKeys), t.token, reason)
	err.Reason = reason
	return err
}

func ticketClosed(t *heldTicket) error {
	return newError(KindClosed, "the client of the ticket for %s is closed", quoted(t.shownKeys))
}

// ticketDesk has all tickets of one client.
type ticketDesk struct {
	core *core
	// held has held tickets by token, those that are being confirmed included.
	held map[uint64]*heldTicket
	// heldKeys has the tokens of held tickets by key.
	heldKeys map[string]uint64
	expired  expiredTickets
}

// Beginning.

// granted: an acquire was answered with A and its caller still wants it.
func (d *ticketDesk) granted(r *request, token uint64, waitedMs uint32, nowNs int64) {
	t := d.enter(token, r, nowNs)
	leaseNs := int64(t.leaseMs) * nsPerMs
	waitedNs := int64(waitedMs) * nsPerMs
	margin := marginNs(waitedNs + leaseNs)
	if margin*wire.ClientLongWaitDivisor > leaseNs {
		d.sendExtend(t, t.leaseMs, forConfirming, nowNs)
		d.core.deadlines.set(&r.alarm, r, r.boundNs) // The caller still waits.
		return
	}
	t.expiresNs = r.queuedNs + waitedNs + leaseNs - margin
	if t.autoExtend {
		t.extendNs = r.queuedNs + waitedNs + leaseNs/wire.ClientExtendDivisor
	}
	d.handOut(t, nowNs)
}

// adopted: the extend of an adoption was answered with X.
func (d *ticketDesk) adopted(r *request, leaseMs uint32, nowNs int64) {
	if _, has := d.held[r.token]; has {
		d.core.requests.fail(r, newError(KindNotHeld, "this client holds token %d already", r.token))
		return
	}
	t := d.enter(r.token, r, nowNs)
	d.prolong(t, r.queuedNs, leaseMs)
	d.handOut(t, nowNs)
}

func (d *ticketDesk) enter(token uint64, r *request, nowNs int64) *heldTicket {
	t := &heldTicket{
		token: token, keys: r.keys, shownKeys: r.shownKeys, leaseMs: r.leaseMs, autoExtend: r.autoExtend,
		acquireID: r.id, acquire: r, grantedNs: nowNs, extendNs: never,
	}
	r.ticket = t
	d.takeIn(t)
	return t
}

func (d *ticketDesk) takeIn(t *heldTicket) {
	d.held[t.token] = t
	for _, key := range t.keys {
		d.heldKeys[key] = t.token
	}
}

func (d *ticketDesk) handOut(t *heldTicket, nowNs int64) {
	r := t.acquire
	if nowNs >= t.expiresNs {
		t.lostReason = LostExpired
		d.leave(t, lost, nil)
		d.core.requests.fail(r, lostError(t))
		return
	}
	t.state, t.grantedNs, t.acquire = held, nowNs, nil
	d.setDue(t)
	if d.core.settings.observed {
		d.core.emit(notify{Granted{t.shownKeys, t.token, time.Duration(nowNs - r.calledNs)}})
	}
	d.core.requests.settle(r, outcome{ticket: t})
}

// Time.

func (d *ticketDesk) setDue(t *heldTicket) {
	dueNs := never
	if t.state == held {
		dueNs = t.expiresNs
	}
	if t.extending == nil {
		dueNs = min(dueNs, t.extendNs)
	}
	d.core.deadlines.set(&t.alarm, t, dueNs)
}

// due: time for the next extend, or the end.
func (d *ticketDesk) due(t *heldTicket, nowNs int64) {
	if d.loseIfOver(t, nowNs) {
		return
	}
	if nowNs >= t.extendNs && t.extending == nil {
		d.extendByItself(t, nowNs)
	}
	d.setDue(t)
}

// loseIfOver tells whether the ticket is lost; one whose time has come is lost now.
func (d *ticketDesk) loseIfOver(t *heldTicket, nowNs int64) bool {
	if t.state == held && nowNs >= t.expiresNs {
		d.expired.add(t)
		d.lose(t, LostExpired)
	}
	return t.state == lost
}

func (d *ticketDesk) prolong(t *heldTicket, queuedNs int64, leaseMs uint32) {
	leftNs := int64(leaseMs) * nsPerMs
	t.expiresNs = max(t.expiresNs, queuedNs+leftNs-marginNs(leftNs))
	t.extendNs = never
	if t.autoExtend {
		t.extendNs = queuedNs + int64(t.leaseMs)*nsPerMs/wire.ClientExtendDivisor
	}
}

// afterReconnect sends, in token order, an extend for each held ticket that has none unanswered.
func (d *ticketDesk) afterReconnect(nowNs int64) {
	for _, token := range slices.Sorted(maps.Keys(d.held)) {
		t := d.held[token]
		if !d.loseIfOver(t, nowNs) && t.extending == nil {
			d.extendByItself(t, nowNs)
			d.setDue(t)
		}
	}
}

// Losing.

// dropped is D: the ticket ended without its client. An unknown token means nothing.
func (d *ticketDesk) dropped(token uint64, reason LostReason) {
	if t := d.held[token]; t != nil {
		t.gone = true
		d.lose(t, reason)
	} else if t := d.expired.take(token); t != nil {
		t.gone = true
	}
}

// lose: the ticket is lost. Say so once, to everybody who waits for it or on it.
func (d *ticketDesk) lose(t *heldTicket, reason LostReason) {
	t.lostReason = reason
	err := lostError(t)
	if t.acquire != nil {
		d.leave(t, lost, err)
		d.core.requests.fail(t.acquire, err)
		t.acquire = nil
		return
	}
	d.core.emit(logLine{slog.LevelWarn, err.text})
	if d.core.settings.observed {
		d.core.emit(notify{Lost{t.shownKeys, t.token, reason}})
	}
	d.leave(t, lost, err)
	d.failWaiting(t, err)
}

// failWaiting ends the calls that wait for something of a ticket that is no longer held.
func (d *ticketDesk) failWaiting(t *heldTicket, err error) {
	if t.extending != nil {
		d.core.requests.fail(t.extending, err)
		d.core.requests.withdraw(t.extending)
		t.extending = nil
	}
	for _, r := range t.deferred {
		d.core.requests.fail(r, err)
	}
	t.deferred = nil
	if t.handOver != nil {
		d.core.emit(settled{t.handOver, outcome{err: err}})
		t.handOver = nil
	}
}

// leave: the ticket is no longer held. The error is what its listeners are told.
func (d *ticketDesk) leave(t *heldTicket, state ticketState, err error) {
	t.state = state
	delete(d.held, t.token)
	for _, key := range t.keys {
		if d.heldKeys[key] == t.token {
			delete(d.heldKeys, key)
		}
	}
	t.extendNs = never
	d.core.deadlines.clear(&t.alarm)
	if len(t.listeners) > 0 {
		d.core.emit(ticketEnded{t.listeners, err})
		t.listeners = nil
	}
}

// Ending.

// endAll: the client ends. Its tickets are lost with it where there is a reason, else just closed.
func (d *ticketDesk) endAll(reason LostReason) {
	for _, t := range d.expired.byToken {
		t.gone = true
	}
	for _, token := range slices.Sorted(maps.Keys(d.held)) {
		t := d.held[token]
		if reason != "" {
			t.gone = true
			d.lose(t, reason)
		} else {
			err := ticketClosed(t)
			d.leave(t, clientClosed, err)
			d.failWaiting(t, err)
		}
	}
}

// expiredTickets are those that were lost by the clock alone: a D about one still means something.
// As it comes at the end of the lease if at all, an entry is forgotten after a while.
type expiredTickets struct {
	byToken map[uint64]*heldTicket
	oldest  []*heldTicket
}

const expiredKeptNs = 60 * nsPerS

func (e *expiredTickets) add(t *heldTicket) {
	if e.byToken == nil {
		e.byToken = make(map[uint64]*heldTicket)
	}
	e.byToken[t.token] = t
	e.oldest = append(e.oldest, t)
	for t.expiresNs-e.oldest[0].expiresNs > expiredKeptNs {
		e.take(e.oldest[0].token)
		e.oldest = e.oldest[1:]
	}
}

// take takes a ticket out, if it is there.
func (e *expiredTickets) take(token uint64) *heldTicket {
	t := e.byToken[token]
	delete(e.byToken, token)
	return t
}
