package ticketing

import (
	"crypto/sha256"
	"encoding/binary"
	"slices"
	"strings"

	"github.com/ticketing-project/ticketing/clients/go/internal/wire"
)

// backoff is 50 ms doubling to 1 s, each spread by half in both directions. The spread comes from
// the seed, so that a client given the same seed behaves the same.
type backoff struct {
	seed  []byte
	drawn uint64
	step  int
}

// reset: the next round starts at once.
func (b *backoff) reset() { b.step = 0 }

// nextNs is how long to wait before the next round; the first after a reset does not wait.
func (b *backoff) nextNs() int64 {
	step := b.step
	b.step++
	if step == 0 {
		return 0
	}
	baseMs := min(int64(wire.ClientBackoffMsMin)<<min(step-1, 16), wire.ClientBackoffMsMax)
	b.drawn++
	drawn := append(append([]byte(nil), b.seed...), "back-off"...)
	sum := sha256.Sum256(binary.BigEndian.AppendUint64(drawn, b.drawn))
	part := float64(binary.BigEndian.Uint32(sum[:])) / (1 << 32) // 0 to 1
	spread := wire.ClientBackoffJitterPercent / 100.0 * (2*part - 1)
	return int64(float64(baseMs*nsPerMs) * (1 + spread))
}

// failure is why an endpoint was ruled out in a round.
type failure struct {
	endpoint endpoint
	err      *Error
}

// rounds goes over the endpoints: the leader named last first, then the list, the lost one last.
type rounds struct {
	endpoints       []endpoint
	leader, namedBy endpoint // The zero endpoint where there is none.
	lost            endpoint
	tried           map[endpoint]bool
	queue           []endpoint
	failures        []failure
	welcomed        bool // A server has proved itself in this round, whatever its role.
	retried         bool
}

// several tells whether the URL names several endpoints; attempts are shorter then.
func (r *rounds) several() bool { return len(r.endpoints) > 1 }

// begin starts a round.
func (r *rounds) begin() {
	*r = rounds{
		endpoints: r.endpoints, leader: r.leader, namedBy: r.namedBy, lost: r.lost,
		tried: make(map[endpoint]bool),
	}
	if r.leader != (endpoint{}) {
		r.queue = append(r.queue, r.leader)
	}
	for _, e := range r.endpoints {
		if e != r.lost {
			r.queue = append(r.queue, e)
		}
	}
	if slices.Contains(r.endpoints, r.lost) {
		r.queue = append(r.queue, r.lost)
	}
}

// next is the endpoint to try now, each once per round; false at the round's end.
func (r *rounds) next() (endpoint, bool) {
	for len(r.queue) > 0 {
		e := r.queue[0]
		r.queue = r.queue[1:]
		if !r.tried[e] {
			r.tried[e] = true
			return e, true
		}
	}
	return endpoint{}, false
}

// failed rules out an endpoint for this round.
func (r *rounds) failed(e endpoint, err *Error) { r.failures = append(r.failures, failure{e, err}) }

// leaderNamed: a server said who leads, or that it knows no leader; the rest of this round begins there.
func (r *rounds) leaderNamed(leader, by endpoint) {
	r.leader, r.namedBy = leader, by
	if leader != (endpoint{}) {
		r.queue = append([]endpoint{leader}, r.queue...)
	}
}

// tryAgain makes an endpoint count as untried, for a node that has just become leader or learned of
// one: one time per round, so that two nodes that name each other end.
func (r *rounds) tryAgain(e endpoint) {
	if e != (endpoint{}) && !r.retried {
		r.retried = true
		delete(r.tried, e)
	}
}

// doesNotLead: a node refused to serve, so that the next round need not begin there.
func (r *rounds) doesNotLead(e endpoint) {
	if r.leader == e {
		r.leader = endpoint{}
	}
}

// result is what a round without success amounts to, each endpoint named with its error.
func (r *rounds) result() *Error {
	var parts []string
	auth := false
	for _, f := range r.failures {
		part := f.endpoint.String() + ": " + f.err.text
		if f.endpoint == r.leader && !slices.Contains(r.endpoints, f.endpoint) {
			part += " (named as the leader by " + r.namedBy.String() + "; if it can't be reached from here," +
				" check the setting --advertise of that server)"
		}
		parts = append(parts, part)
		auth = auth || f.err.Kind == KindAuth
	}
	text := strings.Join(parts, "; ")
	if text == "" {
		text = "no endpoint was left to try"
	}
	if auth && !r.welcomed {
		return newError(KindAuth, "no server took this client: %s", text)
	}
	return newError(KindConnection, "no server could be reached: %s", text)
}
