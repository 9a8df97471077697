package ticketing

import (
	"cmp"
	"log/slog"
	"slices"
	"time"

	"github.com/ticketing-project/ticketing/clients/go/internal/wire"
)

// The files core*.go are the client without input and output: calls, time and bytes go in; effects,
// bytes and the next deadline come out. A test keeps clocks, sockets and goroutines out of them.

// coreSettings is all that the core needs to know; every value is checked before it comes here.
type coreSettings struct {
	endpoints      []endpoint
	clientID       uint64
	seed           []byte
	label, secret  string
	fingerprint    []byte // nil for any.
	keyPrefix      string
	defaults       acquireOptions
	connectForNs   int64
	replyTimeoutNs int64
	releaseOnClose bool
	observed       bool // Whether events are made at all; nobody listens otherwise.
}

// core is one client. It is used by one goroutine at a time, which after each call carries out
// effects in order, writes what appendOutput returns, and sees to it that onTime is called in time.
type core struct {
	settings  *coreSettings
	effects   []effect
	deadlines deadlines
	requests  requestTable
	tickets   ticketDesk
	link      link

	closeAlarm    alarm
	opening       *call
	openingUntil  int64
	closing       []*call
	isClosing     bool
	closedBecause string
	// roundFailure is what the last round since the last connection came to; the log says so once.
	roundFailure string
}

func newCore(settings *coreSettings) *core {
	c := &core{settings: settings}
	c.requests = requestTable{core: c, unanswered: make(map[uint64]*request)}
	c.tickets = ticketDesk{core: c, held: make(map[uint64]*heldTicket), heldKeys: make(map[string]uint64)}
	c.link = link{core: c, rounds: rounds{endpoints: settings.endpoints}, backoff: backoff{seed: settings.seed}}
	return c
}

func (c *core) emit(e effect) { c.effects = append(c.effects, e) }

func (c *core) settleCall(to *call, err error) {
	if to != nil {
		c.emit(settled{to, outcome{err: err}})
	}
}

func (c *core) warn(format string, args ...any) {
	c.emit(logLine{slog.LevelWarn, newError("", format, args...).text})
}

// receive takes bytes that came in on a connection.
func (c *core) receive(serial uint64, data []byte, nowNs int64) {
	c.link.receive(serial, data, nowNs)
	c.finishCloseIfAnswered(nowNs)
}

// onTime does whatever is due, in the order of the deadlines.
func (c *core) onTime(nowNs int64) {
	for {
		switch due := c.deadlines.popDue(nowNs).(type) {
		case nil:
			return
		case *request:
			c.requestDue(due, nowNs)
		case *heldTicket:
			c.tickets.due(due, nowNs)
		case *link:
			due.due(nowNs)
		case *core:
			c.finishClose(nowNs)
		}
	}
}

// Opening and closing.

// open connects; it settles once a server serves this client, or a round came to nothing.
func (c *core) open(waiting *call, nowNs int64) {
	c.opening = waiting
	c.openingUntil = nowNs + c.settings.connectForNs
	c.link.start(nowNs)
}

// close cancels what waits, releases what is held, and ends. Closing again waits for the same.
func (c *core) close(waiting *call, nowNs int64) {
	if c.closedBecause != "" && !c.isClosing {
		c.settleCall(waiting, nil)
		return
	}
	c.closing = append(c.closing, waiting)
	if c.isClosing {
		return
	}
	c.closedBecause = "the client is closed"
	c.isClosing = true
	c.settleCall(c.opening, newError(KindClosed, "%s", c.closedBecause))
	c.opening = nil
	c.writeOff(nowNs)
	c.deadlines.set(&c.closeAlarm, c, nowNs+wire.ClientCloseTimeoutMs*nsPerMs)
	c.finishCloseIfAnswered(nowNs)
}

// openEnd is an acquire that waits or a ticket that is held when the client closes.
type openEnd struct {
	acquireID uint64
	acquire   *request
	ticket    *heldTicket
}

// writeOff queues in one go, by acquire id, C for each acquire that waits and R for each ticket held.
func (c *core) writeOff(nowNs int64) {
	err := newError(KindClosed, "the client was closed meanwhile")
	var ends []openEnd
	for _, r := range c.requests.inOrder() {
		if acquires.has(r.op) && !r.settled && r.sendings > 0 {
			ends = append(ends, openEnd{acquireID: r.id, acquire: r})
		}
		if !alwaysResent.has(r.op) {
			c.requests.fail(r, err)
			c.requests.withdraw(r)
		}
	}
	for _, t := range c.tickets.held {
		if t.acquire != nil {
			c.requests.fail(t.acquire, err)
			t.acquire = nil
		}
		ends = append(ends, openEnd{acquireID: t.acquireID, ticket: t})
	}
	if !c.settings.releaseOnClose || !c.link.ready() {
		c.tickets.endAll("")
		return
	}
	slices.SortFunc(ends, func(a, b openEnd) int { return cmp.Compare(a.acquireID, b.acquireID) })
	for _, end := range ends {
		if end.ticket != nil {
			c.tickets.releaseTicket(end.ticket, nil, nowNs)
		} else {
			c.sendCancel(end.acquire, nowNs)
		}
	}
}

func (c *core) finishCloseIfAnswered(nowNs int64) {
	if !c.isClosing {
		return
	}
	if c.link.ready() {
		for _, r := range c.requests.unanswered {
			if alwaysResent.has(r.op) {
				return
			}
		}
	}
	c.finishClose(nowNs)
}

func (c *core) finishClose(nowNs int64) {
	c.isClosing = false
	c.deadlines.clear(&c.closeAlarm)
	c.end("the client is closed", "", nowNs)
	for _, waiting := range c.closing {
		c.settleCall(waiting, nil)
	}
	c.closing = nil
}

// end: nothing works from here on; every call that still waits fails with `closed`.
func (c *core) end(because string, reason LostReason, nowNs int64) {
	c.closedBecause = because
	err := newError(KindClosed, "%s", because)
	for _, t := range c.tickets.held {
		if t.acquire != nil {
			c.requests.fail(t.acquire, err)
		}
	}
	c.tickets.endAll(reason)
	c.settleUnanswered(err, nowNs)
	c.link.close()
	c.link.outgoing = nil
	c.emit(coreClosed{})
}

// settleUnanswered: every unanswered request has this error, and none is sent again.
func (c *core) settleUnanswered(err *Error, nowNs int64) {
	all := c.requests.inOrder()
	clear(c.requests.unanswered)
	for _, r := range all {
		c.deadlines.clear(&r.alarm)
		switch {
		case r.op == wire.OpRelease && !r.settled:
			c.tickets.releaseEnded(r, err, nowNs)
		case r.op == wire.OpExtend && r.ticket != nil:
			c.tickets.extendFailed(r, err, nowNs)
		default:
			c.requests.fail(r, err)
		}
	}
}

// Calls.

// acquireOptions is how a key or set is asked for. nil where it was not said.
type acquireOptions struct {
	lease, wait *uint32
	autoExtend  *bool
}

func (a acquireOptions) over(defaults acquireOptions) acquireOptions {
	return acquireOptions{
		lease: cmp.Or(a.lease, defaults.lease), wait: cmp.Or(a.wait, defaults.wait),
		autoExtend: cmp.Or(a.autoExtend, defaults.autoExtend),
	}
}

// applyTo sets lease and wait of a request. No lease: the default, extended while held. A lease:
// fixed unless told otherwise.
func (a acquireOptions) applyTo(r *request) {
	r.leaseMs, r.autoExtend, r.waitMs = wire.ClientLeaseMsDefault, a.lease == nil, wire.WaitMsForever
	if a.lease != nil {
		r.leaseMs = *a.lease
	}
	if a.autoExtend != nil {
		r.autoExtend = *a.autoExtend
	}
	if a.wait != nil {
		r.waitMs = *a.wait
	}
}

// acquire asks for a key or a set. Where it fails at once no id was taken.
func (c *core) acquire(keys []string, options acquireOptions, waiting *call, nowNs int64) (*request, error) {
	r := newRequest(wire.OpAcquire, waiting, nowNs)
	var err error
	if r.keys, r.shownKeys, err = wireSet(keys, c.settings.keyPrefix); err != nil {
		return nil, err
	}
	options.over(c.settings.defaults).applyTo(r)
	if err := c.checkOpen(); err != nil {
		return nil, err
	}
	r.id = c.requests.takeID()
	if len(r.keys) == 1 {
		r.frame = wire.AcquireFrame(r.id, r.waitMs, r.leaseMs, r.keys[0])
	} else {
		r.op = wire.OpAcquireSet
		r.frame = wire.AcquireSetFrame(r.id, r.waitMs, r.leaseMs, r.keys)
	}
	c.setWaitBounds(r)
	c.requests.issue(r, nowNs)
	return r, nil
}

func (c *core) setWaitBounds(r *request) {
	if r.waitMs == wire.WaitMsTry {
		c.setReplyBound(r)
		return
	}
	for _, key := range r.keys {
		if _, has := c.tickets.heldKeys[key]; has {
			c.warn("this client waits for %s, which it holds itself", quoted(r.shownKeys))
			break
		}
	}
	if r.waitMs != wire.WaitMsForever {
		r.boundNs = r.calledNs + int64(r.waitMs)*nsPerMs
	}
	r.warnNs = r.calledNs + wire.ClientWaitWarningMs*nsPerMs
	c.deadlines.set(&r.alarm, r, min(r.boundNs, r.warnNs))
}

func (c *core) setReplyBound(r *request) {
	r.boundNs = r.calledNs + c.settings.replyTimeoutNs
	c.deadlines.set(&r.alarm, r, r.boundNs)
}

// adopt makes a ticket out of a reference.
func (c *core) adopt(reference string, options acquireOptions, waiting *call, nowNs int64) (*request, error) {
	token, key, err := parseReference(reference)
	if err != nil {
		return nil, err
	}
	r := newRequest(wire.OpExtend, waiting, nowNs)
	r.purpose, r.token = forAdopting, token
	r.keys = []string{key}
	r.shownKeys = r.keys
	options.over(c.settings.defaults).applyTo(r)
	if err := c.checkOpen(); err != nil {
		return nil, err
	}
	r.id = c.requests.takeID()
	r.frame = wire.ExtendFrame(r.id, token, r.leaseMs, key)
	c.setReplyBound(r)
	c.requests.issue(r, nowNs)
	return r, nil
}

// ping asks the server for a sign of life.
func (c *core) ping(waiting *call, nowNs int64) (*request, error) {
	if err := c.checkOpen(); err != nil {
		return nil, err
	}
	r := newRequest(wire.OpPing, waiting, nowNs)
	r.id = c.requests.takeID()
	r.frame = wire.PingFrame(r.id)
	c.setReplyBound(r)
	c.requests.issue(r, nowNs)
	return r, nil
}

func (c *core) checkOpen() error {
	if c.closedBecause != "" {
		return newError(KindClosed, "%s", c.closedBecause)
	}
	return nil
}

// Giving up.

// abandon: the caller of an acquire, extend, adoption or ping was cancelled. It leaves neither waiter
// nor ticket behind, however far the request has come, and has no outcome.
func (c *core) abandon(r *request, nowNs int64) {
	r.call = nil
	if t := r.ticket; t != nil && (acquires.has(r.op) || r.purpose == forAdopting) {
		if t.state == held || t.state == confirming {
			t.acquire = nil
			c.requests.settle(r, outcome{})
			c.tickets.releaseTicket(t, nil, nowNs)
		}
		return
	}
	if !r.settled {
		c.giveUp(r, newError(KindClosed, "the caller gave up"), nowNs)
	}
}

// giveUp settles a request without its answer, and undoes what it may have done.
func (c *core) giveUp(r *request, err error, nowNs int64) {
	t := r.ticket
	switch {
	case r.op == wire.OpRelease:
		c.tickets.releaseEnded(r, err, nowNs)
	case r.op == wire.OpExtend && t != nil:
		c.requests.withdraw(r)
		c.tickets.extendFailed(r, err, nowNs)
	default:
		c.requests.fail(r, err)
		c.requests.withdraw(r)
		if t != nil {
			t.acquire = nil
			c.tickets.releaseTicket(t, nil, nowNs)
		} else if acquires.has(r.op) && r.sendings > 0 {
			c.sendCancel(r, nowNs)
		}
	}
}

func (c *core) sendCancel(acquire *request, nowNs int64) {
	r := newRequest(wire.OpCancel, nil, nowNs)
	r.id = c.requests.takeID()
	r.acquireID = acquire.id
	r.frame = wire.CancelFrame(r.id, acquire.id, acquire.keys[0])
	c.requests.issue(r, nowNs)
}

func (c *core) requestDue(r *request, nowNs int64) {
	if nowNs >= r.warnNs {
		c.warn("waiting for %s since %v", quoted(r.shownKeys), time.Duration(nowNs-r.calledNs).Round(time.Second))
		r.warnNs = never
	}
	switch {
	case nowNs < r.boundNs:
		c.deadlines.set(&r.alarm, r, min(r.boundNs, r.warnNs))
	case r.op == wire.OpRelease:
		c.giveUp(r, lostError(r.ticket), nowNs)
	case !acquires.has(r.op) || r.waitMs == wire.WaitMsTry:
		where := "no server in reach"
		if c.link.ready() {
			where = c.link.endpoint.String()
		} else if c.roundFailure != "" {
			where = c.roundFailure
		}
		c.giveUp(r, replyTimeout("no answer within %v (%s)", time.Duration(c.settings.replyTimeoutNs), where), nowNs)
	case !c.endWaitIfOver(r, nowNs):
		c.deadlines.set(&r.alarm, r, r.boundNs+wire.ClientWaitOverrunMs*nsPerMs)
	}
}

// endWaitIfOver ends a wait at its deadline, or a little later where the server can still do it.
func (c *core) endWaitIfOver(r *request, nowNs int64) bool {
	if r.boundNs == never || r.waitMs == wire.WaitMsTry {
		return false
	}
	overrunNs := int64(0)
	if c.link.ready() {
		overrunNs = wire.ClientWaitOverrunMs * nsPerMs
	}
	if nowNs < r.boundNs+overrunNs {
		return false
	}
	if c.settings.observed {
		c.emit(notify{TimedOut{r.shownKeys, time.Duration(nowNs - r.calledNs)}})
	}
	c.giveUp(r, waitTimeout(r), nowNs)
	return true
}

// What the link tells.

// linkReady sends what is unanswered again, then asks about the tickets that are held.
func (c *core) linkReady(nowNs int64) {
	address := c.link.endpoint.String()
	c.roundFailure = ""
	c.emit(logLine{slog.LevelDebug, "connected to " + address})
	if c.settings.observed {
		c.emit(notify{Connected{address}})
	}
	c.settleCall(c.opening, nil)
	c.opening = nil
	c.requests.queueAgain(nowNs)
	c.tickets.afterReconnect(nowNs)
}

// linkDown: the connection is gone. What was given up is forgotten, waits that are over end.
func (c *core) linkDown(reason string, nowNs int64) {
	address := c.link.endpoint.String()
	c.emit(logLine{slog.LevelInfo, "disconnected from " + address + ": " + reason})
	if c.settings.observed {
		c.emit(notify{Disconnected{address, reason}})
	}
	c.requests.forgetGivenUp()
	if c.isClosing {
		c.finishClose(nowNs)
		return
	}
	waiting := c.requests.inOrder()
	for _, t := range c.tickets.held {
		if t.acquire != nil {
			waiting = append(waiting, t.acquire)
		}
	}
	for _, r := range waiting {
		if acquires.has(r.op) && !r.settled {
			c.endWaitIfOver(r, nowNs)
		}
	}
}

// roundFailed tells whether to go on with the next round.
func (c *core) roundFailed(err *Error, nowNs int64) bool {
	if c.opening != nil {
		if err.Kind != KindAuth && !c.link.nextRoundIsLate(c.openingUntil) {
			return true
		}
		c.settleCall(c.opening, err)
		c.opening = nil
		c.end("the client could not be opened: "+err.text, "", nowNs)
		return false
	}
	level := slog.LevelWarn
	if c.roundFailure != "" {
		level = slog.LevelDebug
	}
	c.roundFailure = err.text
	c.emit(logLine{level, err.text})
	if err.Kind == KindAuth {
		c.settleUnanswered(err, nowNs)
		return false
	}
	return true
}

// linkReply takes a reply about a request or a ticket.
func (c *core) linkReply(reply *wire.Reply, nowNs int64) error {
	leave, err := c.readReply(reply, nowNs)
	if leave {
		c.link.notServing(said(reply.Code, string(reply.Tail)), nowNs)
	}
	return err
}

// linkRefused: the server ends this connection and says why.
func (c *core) linkRefused(code byte, text string, nowNs int64) {
	if code == wire.ErrorTakenOver {
		c.warn("%s", text)
		c.end("a newer client took over: "+text, LostTakenOver, nowNs)
		return
	}
	if code == wire.ErrorBadFrame {
		c.settleUnanswered(newError(KindProtocol, "%s", text), nowNs)
	}
	c.link.reconnect(text, nowNs)
}
