package ticketing

import (
	"time"

	"github.com/ticketing-project/ticketing/clients/go/internal/wire"
)

// linkState is where the link is. Requests are sent in ready alone.
type linkState int

const (
	// idle: no round is under way. Not opened yet, or the last one failed with an auth error.
	idle linkState = iota
	// backingOff: waiting to begin the next round.
	backingOff
	// connecting: the shell is opening a connection, or the greeting has not come whole.
	connecting
	// helloSent: waiting for the welcome.
	helloSent
	// leaderless: welcomed by a node that knows no leader; waiting a moment for L.
	leaderless
	// ready: welcomed by a server that serves requests.
	ready
	// ended: closed for good.
	ended
)

func (s linkState) String() string {
	return [...]string{"idle", "in back-off", "before the hello", "before the welcome", "without a leader",
		"ready", "closed"}[s]
}

const keepaliveEcho = 0

// link is the client's one connection at a time: rounds over the endpoints, handshake, roles,
// silence. It knows nothing of requests; it tells the core when they may be sent, when the connection
// is gone, and hands it every reply that is not about the connection itself.
type link struct {
	alarm
	core     *core
	outgoing []outItem
	rounds   rounds
	backoff  backoff
	state    linkState
	serial   uint64
	endpoint endpoint
	hellos   uint32
	reader   wire.ReplyReader
	greeting []byte
	nonce    []byte

	keepaliveNs, readyNs, receivedNs, sentNs int64
	pingUnanswered                           bool
	// answered: a request was answered on this connection, so the next back-off starts afresh.
	answered bool
	// firstConnection: the connection that this round may bring is the first since start.
	firstConnection bool
}

func (l *link) ready() bool { return l.state == ready }

// What the core asks for.

// start begins a round, unless one is under way or a connection stands.
func (l *link) start(nowNs int64) {
	if l.state == idle {
		l.backoff.reset()
		l.firstConnection = true
		l.scheduleRound(nowNs)
	}
}

// reconnect leaves this connection for another, as after a loss.
func (l *link) reconnect(reason string, nowNs int64) {
	l.drop(newError(KindConnection, "%s", reason), nowNs)
}

// notServing leaves a server that does not serve requests for another endpoint.
func (l *link) notServing(reason string, nowNs int64) {
	l.rounds.doesNotLead(l.endpoint)
	l.reconnect(reason, nowNs)
}

// close ends for good.
func (l *link) close() {
	if l.exists() {
		l.core.emit(disconnect{l.serial})
	}
	l.state = ended
	l.core.deadlines.clear(&l.alarm)
}

// What the shell reports.

// connected: the transport stands. The greeting is still to come, within the same bound.
func (l *link) connected(serial uint64, nowNs int64) {
	if serial == l.serial && l.state == connecting {
		l.receivedNs, l.sentNs = nowNs, nowNs
	}
}

// disconnected: the transport failed or ended.
func (l *link) disconnected(serial uint64, reason string, nowNs int64) {
	if serial == l.serial && l.exists() {
		l.leave(newError(KindConnection, "%s", reason), nowNs)
	}
}

// receive takes bytes from the transport; those of an earlier connection don't count any more.
func (l *link) receive(serial uint64, data []byte, nowNs int64) {
	if serial != l.serial || !l.exists() {
		return
	}
	l.receivedNs = nowNs
	var err error
	if l.state == connecting {
		data, err = l.readGreeting(data, nowNs)
	}
	if err == nil && len(data) > 0 {
		err = l.readReplies(serial, data, nowNs)
	}
	if err != nil && err != errLeft {
		l.drop(newError(KindConnection, "the server broke the protocol: %v", err), nowNs)
	}
}

// due: the deadline that was set is reached.
func (l *link) due(nowNs int64) {
	switch l.state {
	case backingOff:
		l.rounds.begin()
		l.tryNext(nowNs)
	case connecting:
		l.drop(newError(KindConnection, "no greeting within %d ms (check the port, and whether it speaks TLS:"+
			" ticketings://, or not: ticketing://)", l.connectMs()), nowNs)
	case helloSent:
		l.drop(newError(KindConnection, "no welcome within %d ms", wire.ClientHandshakeTimeoutMs), nowNs)
	case leaderless:
		l.drop(newError(KindConnection, "the node knows no leader"), nowNs)
	case ready:
		l.watchSilence(nowNs)
	}
}

// Rounds.

// exists tells whether there is a connection, or an attempt at one.
func (l *link) exists() bool { return l.state >= connecting && l.state <= ready }

func (l *link) connectMs() int64 {
	if l.rounds.several() {
		return wire.ClientConnectTimeoutSeveralMs
	}
	return wire.ClientConnectTimeoutMs
}

func (l *link) scheduleRound(nowNs int64) {
	delayNs := l.backoff.nextNs()
	l.state = backingOff
	if delayNs > 0 {
		l.core.deadlines.set(&l.alarm, l, nowNs+delayNs)
		return
	}
	l.rounds.begin()
	l.tryNext(nowNs)
}

// nextRoundIsLate tells whether the round that is waited for would begin only after a time.
func (l *link) nextRoundIsLate(deadlineNs int64) bool { return l.place != 0 && l.dueNs > deadlineNs }

func (l *link) tryNext(nowNs int64) {
	next, found := l.rounds.next()
	if !found {
		l.state = idle
		l.core.deadlines.clear(&l.alarm)
		l.endRound(l.rounds.result(), nowNs)
		return
	}
	l.serial++
	l.endpoint = next
	l.state = connecting
	l.outgoing = nil
	l.reader = wire.ReplyReader{}
	l.greeting = nil
	l.answered, l.pingUnanswered = false, false
	l.core.deadlines.set(&l.alarm, l, nowNs+l.connectMs()*nsPerMs)
	l.core.emit(connectTo{l.serial, next})
}

func (l *link) endRound(err *Error, nowNs int64) {
	if err.Kind == KindAuth {
		l.core.roundFailed(err, nowNs)
		return // Whether to try again is for the next call to say.
	}
	l.scheduleRound(nowNs)
	if !l.core.roundFailed(err, nowNs) && l.state == backingOff {
		l.state = idle
		l.core.deadlines.clear(&l.alarm)
	}
}

// drop ends this connection from our side.
func (l *link) drop(err *Error, nowNs int64) {
	l.core.emit(disconnect{l.serial})
	l.leave(err, nowNs)
}

// leave rules the endpoint out for this round, or begins a new one.
func (l *link) leave(err *Error, nowNs int64) {
	l.core.deadlines.clear(&l.alarm)
	if l.state != ready {
		l.rounds.failed(l.endpoint, err)
		l.tryNext(nowNs)
		return
	}
	l.state = backingOff
	l.outgoing = nil
	l.rounds.lost = l.endpoint
	if l.answered || nowNs-l.readyNs >= wire.ClientBackoffResetMs*nsPerMs {
		l.backoff.reset()
	}
	l.core.linkDown(err.text, nowNs)
	if l.state == backingOff {
		l.scheduleRound(nowNs)
	}
}

// Silence.

func (l *link) setSilenceDeadline() {
	dueNs := l.receivedNs + wire.SilenceKeepalives*l.keepaliveNs
	if !l.pingUnanswered {
		dueNs = min(dueNs, min(l.receivedNs, l.sentNs)+l.keepaliveNs)
	}
	l.core.deadlines.set(&l.alarm, l, dueNs)
}

func (l *link) watchSilence(nowNs int64) {
	silentNs := nowNs - l.receivedNs
	if silentNs >= wire.SilenceKeepalives*l.keepaliveNs {
		l.drop(newError(KindConnection, "nothing received for %v", time.Duration(silentNs)), nowNs)
		return
	}
	if !l.pingUnanswered && nowNs-min(l.receivedNs, l.sentNs) >= l.keepaliveNs {
		l.pingUnanswered = true
		l.sentNs = nowNs
		l.outgoing = append(l.outgoing, outItem{frame: wire.PingFrame(keepaliveEcho)})
	}
	l.setSilenceDeadline()
}
