package ticketing

import (
	"fmt"
	"time"

	"github.com/ticketing-project/ticketing/clients/go/internal/wire"
)

// What each reply of the server does to the request or the ticket that it is about.

var (
	ofRelease         = ops(wire.OpRelease)
	ofExtend          = ops(wire.OpExtend)
	ofReleaseOrExtend = ofRelease | ofExtend
	ofCancel          = ops(wire.OpCancel)
	ofPing            = ops(wire.OpPing)
	ofAny             = acquires | ofReleaseOrExtend | ofCancel | ofPing
)

var dropReasons = map[byte]LostReason{
	wire.DropLeaseOver:   LostLeaseOver,
	wire.DropOperator:    LostOperator,
	wire.DropOtherClient: LostOtherClient,
}

// aboutARequest are the errors that name a request which is then settled with them.
var aboutARequest = map[byte]Kind{
	wire.ErrorBadFrame:     KindProtocol,
	wire.ErrorLeaseTooLong: KindInvalidArgument,
	wire.ErrorForbidden:    KindAuth,
}

// broken is what makes the link leave a server that breaks the protocol.
func broken(format string, args ...any) error {
	return &wire.Malformed{Layer: "state", Why: fmt.Sprintf(format, args...)}
}

// readReply carries out one reply. It tells whether the connection has to be left for another, and
// fails for what can't be a reply.
func (c *core) readReply(reply *wire.Reply, nowNs int64) (leave bool, err error) {
	switch reply.Op {
	case wire.ReplyGranted:
		return false, c.readGranted(reply, nowNs)
	case wire.ReplyTimedOut:
		return false, c.readTimedOut(reply, nowNs)
	case wire.ReplyOverloaded:
		r, err := c.requests.answered(reply.ID, acquires)
		if err == nil {
			c.requests.fail(r, newError(KindOverloaded, "the server has no room for %s now", quoted(r.shownKeys)))
		}
		return false, err
	case wire.ReplyReleased:
		r, err := c.requests.answered(reply.ID, ofRelease)
		if err == nil {
			c.tickets.releaseAnswered(r, true, nowNs)
		}
		return false, err
	case wire.ReplyNotHeld:
		return false, c.readNotHeld(reply, nowNs)
	case wire.ReplyExtended:
		return false, c.readExtended(reply, nowNs)
	case wire.ReplyCancelled:
		r, err := c.requests.answered(reply.ID, ofCancel)
		if err == nil {
			delete(c.requests.unanswered, r.acquireID)
		}
		return false, err
	case wire.ReplyDropped:
		if err := wire.CheckDropReason(reply.Code); err != nil {
			return false, err
		}
		c.tickets.dropped(reply.Token, dropReasons[reply.Code])
		return false, nil
	case wire.ReplyPing:
		r, err := c.requests.answered(reply.ID, ofPing)
		if err == nil {
			c.requests.settle(r, outcome{})
		}
		return false, err
	case wire.ReplyError:
		return c.readError(reply, nowNs)
	}
	return false, broken("a frame %c after the handshake", reply.Op)
}

func (c *core) readGranted(reply *wire.Reply, nowNs int64) error {
	if _, has := c.tickets.held[reply.Token]; has || reply.Token == 0 {
		return broken("token %d, which no new ticket can have", reply.Token)
	}
	r, err := c.requests.answered(reply.ID, acquires)
	if err == nil && !r.settled { // If it was given up, its cancel is on the way and releases the ticket.
		c.tickets.granted(r, reply.Token, reply.Ms, nowNs)
	}
	return err
}

func (c *core) readTimedOut(reply *wire.Reply, nowNs int64) error {
	r, err := c.requests.answered(reply.ID, acquires)
	if err != nil || r.settled {
		return err
	}
	if r.waitMs == wire.WaitMsTry {
		c.requests.fail(r, newError(KindHeld, "%s is held", quoted(r.shownKeys)))
		return nil
	}
	c.waitEnded(r, nowNs)
	return nil
}

// waitEnded settles a wait that ended without a grant.
func (c *core) waitEnded(r *request, nowNs int64) {
	if c.settings.observed {
		c.emit(notify{TimedOut{r.shownKeys, time.Duration(nowNs - r.calledNs)}})
	}
	c.requests.fail(r, waitTimeout(r))
}

func waitTimeout(r *request) error {
	return newError(KindTimeout, "the wait for %s ended after %d ms", quoted(r.shownKeys), r.waitMs)
}

func (c *core) readNotHeld(reply *wire.Reply, nowNs int64) error {
	r, err := c.requests.answered(reply.ID, ofReleaseOrExtend)
	if err != nil {
		return err
	}
	switch {
	case r.op == wire.OpRelease:
		c.tickets.releaseAnswered(r, false, nowNs)
	case r.purpose == forAdopting:
		c.requests.fail(r, newError(KindNotHeld, "no ticket with token %d has %s", r.token, quoted(r.shownKeys)))
	default:
		c.tickets.extendRefused(r, nowNs)
	}
	return nil
}

func (c *core) readExtended(reply *wire.Reply, nowNs int64) error {
	r, err := c.requests.answered(reply.ID, ofExtend)
	if err != nil {
		return err
	}
	if r.purpose != forAdopting {
		c.tickets.extendAnswered(r, reply.Ms, nowNs)
	} else if !r.settled {
		c.tickets.adopted(r, reply.Ms, nowNs)
	}
	return nil
}

func (c *core) readError(reply *wire.Reply, nowNs int64) (leave bool, err error) {
	if reply.Code == wire.ErrorNotServing {
		_, err := c.requests.match(reply.ID, ofAny)
		return err == nil, err // It stays unanswered: nothing was done.
	}
	kind, about := aboutARequest[reply.Code]
	if !about {
		return false, broken("%s about request %d", wire.Errors[reply.Code].Name, reply.ID)
	}
	r, err := c.requests.answered(reply.ID, ofAny)
	if err != nil {
		return false, err
	}
	refused := newError(kind, "%s", said(reply.Code, string(reply.Tail)))
	switch {
	case r.op == wire.OpRelease:
		if !r.settled {
			c.tickets.releaseEnded(r, refused, nowNs)
		}
	case r.op == wire.OpExtend && r.ticket != nil:
		c.tickets.extendFailed(r, refused, nowNs)
	default:
		c.requests.fail(r, refused)
	}
	return reply.Code == wire.ErrorBadFrame, nil
}

// said is what an E says, for people.
func said(code byte, text string) string {
	name := wire.Errors[code].Name
	if text == "" {
		return name
	}
	return name + ": " + sanitised(text)
}
