package ticketing

import (
	"time"

	"github.com/ticketing-project/ticketing/clients/go/internal/wire"
)

// Extending, releasing and handing over: the parts of the desk that send something about a ticket.

// extend is a caller's; it waits for one that is under way.
func (d *ticketDesk) extend(t *heldTicket, leaseMs uint32, c *call, nowNs int64) *request {
	r := newRequest(wire.OpExtend, c, nowNs)
	r.ticket, r.leaseMs = t, leaseMs
	if err := d.notUsable(t, nowNs); err != nil {
		d.core.requests.fail(r, err)
	} else if t.extending != nil {
		t.deferred = append(t.deferred, r)
	} else {
		d.issueExtend(t, r, nowNs)
	}
	return r
}

func (d *ticketDesk) notUsable(t *heldTicket, nowNs int64) error {
	switch {
	case d.loseIfOver(t, nowNs):
		return lostError(t)
	case t.state == clientClosed:
		return ticketClosed(t)
	case t.handOver != nil:
		return newError(KindNotHeld, "the ticket for %s is handed over", quoted(t.shownKeys))
	case t.state != held:
		return newError(KindNotHeld, "the ticket for %s is %s", quoted(t.shownKeys), t.state)
	}
	return nil
}

func (d *ticketDesk) extendByItself(t *heldTicket, nowNs int64) {
	t.extendNs = never
	switch {
	case t.state == confirming:
		d.sendExtend(t, t.leaseMs, forConfirming, nowNs)
	case t.autoExtend:
		d.sendExtend(t, t.leaseMs, forRenewal, nowNs)
	default:
		d.sendExtend(t, wire.LeaseMsMin, forRenewal, nowNs)
	}
}

func (d *ticketDesk) sendExtend(t *heldTicket, leaseMs uint32, why purpose, nowNs int64) {
	r := newRequest(wire.OpExtend, nil, nowNs)
	r.ticket, r.leaseMs, r.purpose = t, leaseMs, why
	d.issueExtend(t, r, nowNs)
}

func (d *ticketDesk) issueExtend(t *heldTicket, r *request, nowNs int64) {
	if t.fake {
		r.queuedNs = nowNs
		d.extendAnswered(r, r.leaseMs, nowNs)
		return
	}
	r.id = d.core.requests.takeID()
	r.frame = wire.ExtendFrame(r.id, t.token, r.leaseMs, t.keys[0])
	r.boundNs = r.calledNs + d.core.settings.replyTimeoutNs
	t.extending = r
	d.core.deadlines.set(&r.alarm, r, r.boundNs)
	d.core.requests.issue(r, nowNs)
}

// extendAnswered is X: the lease goes on.
func (d *ticketDesk) extendAnswered(r *request, leaseMs uint32, nowNs int64) {
	t := r.ticket
	if t.extending == r {
		t.extending = nil
	}
	if r.settled {
		d.extendSettled(t, nowNs)
		return
	}
	if t.state == confirming {
		d.prolong(t, r.queuedNs, leaseMs)
		d.core.requests.settle(r, outcome{})
		d.handOut(t, nowNs)
		return
	}
	if d.loseIfOver(t, nowNs) {
		d.core.requests.fail(r, lostError(t))
		return
	}
	if t.state == held {
		d.prolong(t, r.queuedNs, leaseMs)
		if d.core.settings.observed {
			d.core.emit(notify{Extended{t.shownKeys, t.token, time.Duration(max(0, t.expiresNs-nowNs))}})
		}
	}
	d.core.requests.settle(r, outcome{})
	d.extendSettled(t, nowNs)
}

// extendRefused is N to an extend: the ticket is gone.
func (d *ticketDesk) extendRefused(r *request, nowNs int64) {
	t := r.ticket
	if t.extending == r {
		t.extending = nil
	}
	if r.settled {
		d.extendSettled(t, nowNs)
		return
	}
	if t.state == held || t.state == confirming {
		t.gone = true
		d.lose(t, LostNotHeld)
	}
	if t.state == lost {
		d.core.requests.fail(r, lostError(t))
	} else {
		d.core.requests.fail(r, newError(KindNotHeld, "the ticket for %s was released", quoted(t.shownKeys)))
	}
}

// extendFailed: an extend ended without X or N; where the client needs it, a new one follows.
func (d *ticketDesk) extendFailed(r *request, err error, nowNs int64) {
	t := r.ticket
	d.core.requests.fail(r, err)
	if t.extending == r {
		t.extending = nil
		needed := t.autoExtend || r.purpose != forCaller
		if needed && (t.state == held || t.state == confirming) {
			t.extendNs = nowNs + wire.ClientExtendRetryMs*nsPerMs
		}
	}
	d.extendSettled(t, nowNs)
}

// extendSettled: nothing is unanswered now, so go on with what had to wait for that.
func (d *ticketDesk) extendSettled(t *heldTicket, nowNs int64) {
	if t.handOver != nil && t.extending == nil {
		waiting := t.handOver
		t.handOver = nil
		if t.state == held {
			d.finishHandOver(t, waiting)
		}
	}
	for len(t.deferred) > 0 && t.extending == nil {
		r := t.deferred[0]
		t.deferred = t.deferred[1:]
		if r.settled {
			continue
		}
		err := d.notUsable(t, nowNs)
		if err == nil && nowNs >= r.calledNs+d.core.settings.replyTimeoutNs {
			err = replyTimeout("an extend before this one had no answer in time")
		}
		if err != nil {
			d.core.requests.fail(r, err)
		} else {
			d.issueExtend(t, r, nowNs)
		}
	}
	d.setDue(t)
}

// Releasing.

// releaseTicket releases once; every further call gets what the first one gets.
func (d *ticketDesk) releaseTicket(t *heldTicket, c *call, nowNs int64) {
	isLost := d.loseIfOver(t, nowNs)
	var err error
	switch {
	case t.release != nil && !t.release.settled:
		if c != nil {
			t.releaseCalls = append(t.releaseCalls, c)
		}
		return
	case t.release != nil:
		err = t.releaseErr
	case isLost && t.gone:
		err = lostError(t)
	case t.state == clientClosed:
		err = ticketClosed(t)
	case t.state == held || t.state == lost || t.state == confirming:
		if c != nil {
			t.releaseCalls = append(t.releaseCalls, c)
		}
		d.sendRelease(t, nowNs)
		return
	}
	if c != nil {
		d.core.emit(settled{c, outcome{err: err}})
	}
}

func (d *ticketDesk) sendRelease(t *heldTicket, nowNs int64) {
	if t.state == lost {
		d.expired.take(t.token)
		t.releaseErr = lostError(t)
	} else {
		d.leave(t, releasing, nil)
		if t.handOver != nil || len(t.deferred) > 0 {
			unanswered := t.extending
			t.extending = nil
			d.failWaiting(t, newError(KindNotHeld, "%s was released", quoted(t.shownKeys)))
			t.extending = unanswered
		}
	}
	r := newRequest(wire.OpRelease, nil, nowNs)
	r.ticket = t
	t.release = r
	if t.fake {
		d.releaseAnswered(r, true, nowNs)
		return
	}
	r.id = d.core.requests.takeID()
	r.frame = wire.ReleaseFrame(r.id, t.token, t.keys[0])
	r.boundNs = max(t.expiresNs, nowNs+wire.ClientReleaseBoundMsMin*nsPerMs)
	d.core.deadlines.set(&r.alarm, r, r.boundNs)
	d.core.requests.issue(r, nowNs)
}

// releaseAnswered is R, or N; an N after an earlier sending only says that the earlier one did it.
func (d *ticketDesk) releaseAnswered(r *request, byR bool, nowNs int64) {
	if r.settled {
		return
	}
	if byR || r.sendings > 1 {
		d.releaseEnded(r, nil, nowNs)
		return
	}
	if r.ticket.lostReason == "" {
		r.ticket.lostReason = LostNotHeld
	}
	d.releaseEnded(r, lostError(r.ticket), nowNs)
}

// releaseEnded tells everybody who waits for this release; a ticket that was lost before stays lost.
func (d *ticketDesk) releaseEnded(r *request, err error, nowNs int64) {
	t := r.ticket
	d.core.requests.settle(r, outcome{})
	if t.releaseErr == nil {
		t.releaseErr = err
	}
	if t.state == releasing {
		t.state = released
		if d.core.settings.observed && t.releaseErr == nil {
			d.core.emit(notify{Released{t.shownKeys, t.token, time.Duration(nowNs - t.grantedNs)}})
		}
	}
	for _, c := range t.releaseCalls {
		d.core.emit(settled{c, outcome{err: t.releaseErr}})
	}
	t.releaseCalls = nil
}

// Handing over.

// handOver ends this client's part in the ticket, once nothing about it is unanswered.
func (d *ticketDesk) handOver(t *heldTicket, c *call, nowNs int64) {
	if err := d.notUsable(t, nowNs); err != nil {
		d.core.emit(settled{c, outcome{err: err}})
	} else if t.extending != nil {
		t.handOver = c
	} else {
		d.finishHandOver(t, c)
	}
}

// stopHandOver: the caller never saw the reference. The ticket stays here, or comes back.
func (d *ticketDesk) stopHandOver(t *heldTicket, c *call, nowNs int64) {
	if t.handOver == c {
		t.handOver = nil
	} else if _, has := d.held[t.token]; t.state == handedOver && !has {
		d.takeIn(t)
		t.state = held
		if t.autoExtend {
			t.extendNs = nowNs
		}
		d.setDue(t)
	}
}

func (d *ticketDesk) finishHandOver(t *heldTicket, c *call) {
	d.leave(t, handedOver, nil)
	d.core.emit(settled{c, outcome{reference: formatReference(t.token, t.keys[0])}})
}
