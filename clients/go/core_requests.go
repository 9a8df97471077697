package ticketing

import (
	"maps"
	"slices"

	"github.com/ticketing-project/ticketing/clients/go/internal/wire"
)

const (
	nsPerMs = int64(1_000_000)
	nsPerS  = int64(1_000_000_000)
)

// opSet is a set of the ops that clients send, one bit per letter.
type opSet uint32

func ops(letters ...byte) opSet {
	set := opSet(0)
	for _, letter := range letters {
		set |= 1 << (letter - 'A')
	}
	return set
}

func (s opSet) has(op byte) bool { return s&(1<<(op-'A')) != 0 }

var (
	acquires     = ops(wire.OpAcquire, wire.OpAcquireSet)
	alwaysResent = ops(wire.OpRelease, wire.OpCancel)
)

// purpose is what an extend is for; it decides what its reply does.
type purpose int

const (
	// forCaller: the program asked for it.
	forCaller purpose = iota
	// forRenewal: the client's own, at a third of the lease, or to learn what ended while it was away.
	forRenewal
	// forConfirming: after a long wait, before the ticket is handed out.
	forConfirming
	// forAdopting: makes a ticket out of a reference.
	forAdopting
)

// request is one request over all its sendings. It keeps its id and its bytes.
type request struct {
	alarm
	op       byte
	purpose  purpose
	settled  bool
	id       uint64
	frame    []byte
	call     *call
	calledNs int64
	// queuedNs is the moment before the newest sending was queued.
	queuedNs int64
	// sendings is how often bytes of it were handed to a socket.
	sendings int
	// sentSerial is the connection of the newest sending; only there a reply can come.
	sentSerial uint64
	// boundNs is when the client ends it by itself, warnNs when a wait is warned about.
	boundNs, warnNs int64
	keys, shownKeys []string
	waitMs, leaseMs uint32
	autoExtend      bool
	ticket          *heldTicket
	// token is the ticket's token, of an adoption.
	token uint64
	// acquireID is the acquire that a cancel undoes.
	acquireID uint64
}

func newRequest(op byte, c *call, nowNs int64) *request {
	return &request{op: op, call: c, calledNs: nowNs, boundNs: never, warnNs: never}
}

// outItem is a request that waits to be written, or a frame of the link's own.
type outItem struct {
	frame   []byte
	request *request
}

// requestTable is what is unanswered.
type requestTable struct {
	core       *core
	lastID     uint64
	unanswered map[uint64]*request
}

// takeID is the next id: a counter of the client's requests over all its connections.
func (t *requestTable) takeID() uint64 {
	t.lastID++
	return t.lastID
}

// inOrder is what is unanswered, by ascending id.
func (t *requestTable) inOrder() []*request {
	all := make([]*request, 0, len(t.unanswered))
	for _, id := range slices.Sorted(maps.Keys(t.unanswered)) {
		all = append(all, t.unanswered[id])
	}
	return all
}

// issue puts a request on its way: at once where that is possible, else once connected.
func (t *requestTable) issue(r *request, nowNs int64) {
	t.unanswered[r.id] = r
	link := &t.core.link
	if link.ready() {
		r.queuedNs = nowNs
		link.outgoing = append(link.outgoing, outItem{request: r})
	} else {
		link.start(nowNs)
	}
}

// queueAgain is for a new connection: everything unanswered that was not given up, in id order.
func (t *requestTable) queueAgain(nowNs int64) {
	for _, r := range t.inOrder() {
		r.queuedNs = nowNs
		t.core.link.outgoing = append(t.core.link.outgoing, outItem{request: r})
	}
}

// forgetGivenUp: the connection is gone on which a given-up request could still have had its reply.
func (t *requestTable) forgetGivenUp() {
	maps.DeleteFunc(t.unanswered, func(_ uint64, r *request) bool {
		return r.settled && !alwaysResent.has(r.op)
	})
}

// appendOutput appends the bytes to write now; what they carry counts as handed to the socket.
func (t *requestTable) appendOutput(output []byte, nowNs int64) []byte {
	link := &t.core.link
	for _, item := range link.outgoing {
		r := item.request
		if r == nil {
			output = append(output, item.frame...)
			continue
		}
		if r.settled && !alwaysResent.has(r.op) {
			continue // It was given up before a byte of it was written here.
		}
		r.sendings++
		r.sentSerial = link.serial
		output = append(output, r.frame...)
	}
	clear(link.outgoing)
	link.outgoing = link.outgoing[:0]
	if len(output) > 0 {
		link.sentNs = nowNs
	}
	return output
}

// match is the request that a reply is for; an error where there is none.
func (t *requestTable) match(id uint64, of opSet) (*request, error) {
	r := t.unanswered[id]
	if r == nil || r.sentSerial != t.core.link.serial || !of.has(r.op) {
		return nil, broken("a reply to request %d, which can't have one", id)
	}
	return r, nil
}

// answered takes out the request that a reply is for; an error where there is none.
func (t *requestTable) answered(id uint64, of opSet) (*request, error) {
	r, err := t.match(id, of)
	if err != nil {
		return nil, err
	}
	delete(t.unanswered, id)
	t.core.link.answered = true
	t.core.deadlines.clear(&r.alarm)
	return r, nil
}

// settle gives the caller its outcome; a request that has one already keeps it.
func (t *requestTable) settle(r *request, result outcome) {
	if r.settled {
		return
	}
	r.settled = true
	t.core.deadlines.clear(&r.alarm)
	if r.call != nil {
		t.core.emit(settled{r.call, result})
		r.call = nil
	}
}

func (t *requestTable) fail(r *request, err error) { t.settle(r, outcome{err: err}) }

// withdraw drops a given-up request, unless its reply can still come on this connection.
func (t *requestTable) withdraw(r *request) {
	link := &t.core.link
	if r.sendings == 0 || r.sentSerial != link.serial || !link.ready() {
		delete(t.unanswered, r.id)
	}
}
