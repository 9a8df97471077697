package ticketing

import (
	"errors"
	"fmt"
)

// Kind says what sort of failure an [Error] is: one word, the same in every language's client.
type Kind string

// The kinds of errors.
const (
	KindTimeout         Kind = "timeout"
	KindHeld            Kind = "held"
	KindAuth            Kind = "auth"
	KindInvalidArgument Kind = "invalid_argument"
	KindOverloaded      Kind = "overloaded"
	KindNotHeld         Kind = "not_held"
	KindLost            Kind = "lost"
	KindClosed          Kind = "closed"
	KindProtocol        Kind = "protocol"
	KindConnection      Kind = "connection"
)

// What errors.Is takes. Every error that the client makes is an [*Error] that is one of these; a
// cancelled context stays the error of the context.
var (
	// ErrTimeout: the wait for a key ended before it was granted; nothing is held.
	ErrTimeout = errors.New("ticketing: the wait ended")
	// ErrHeld: an acquire that does not wait found the key held. It is an ErrTimeout too.
	ErrHeld = errors.New("ticketing: the key is held")
	// ErrAuth: client and server do not have the same secret, or the secret may not do this.
	ErrAuth = errors.New("ticketing: authentication failed")
	// ErrInvalidArgument: an argument that the client, or the server (a lease over its limit), does
	// not take.
	ErrInvalidArgument = errors.New("ticketing: invalid argument")
	// ErrOverloaded: a limit of the server is reached; nothing was queued. Try again later.
	ErrOverloaded = errors.New("ticketing: the server is overloaded")
	// ErrNotHeld: the ticket is not this client's to use: released already, handed over, or not
	// there to adopt.
	ErrNotHeld = errors.New("ticketing: the ticket is not held")
	// ErrLost: a ticket ended without its holder's release; somebody else may hold the key.
	ErrLost = errors.New("ticketing: the ticket is lost")
	// ErrClosed: the client is closed, or was closed meanwhile.
	ErrClosed = errors.New("ticketing: the client is closed")
	// ErrProtocol: the server says that the client broke the protocol. A bug in one of the two.
	ErrProtocol = errors.New("ticketing: protocol error")
	// ErrConnection: no server could be reached, or none answered in time; the text names each
	// endpoint with its error.
	ErrConnection = errors.New("ticketing: connection failed")
)

var sentinels = map[Kind]error{
	KindTimeout:         ErrTimeout,
	KindHeld:            ErrHeld,
	KindAuth:            ErrAuth,
	KindInvalidArgument: ErrInvalidArgument,
	KindOverloaded:      ErrOverloaded,
	KindNotHeld:         ErrNotHeld,
	KindLost:            ErrLost,
	KindClosed:          ErrClosed,
	KindProtocol:        ErrProtocol,
	KindConnection:      ErrConnection,
}

// LostReason says how the client learned that a ticket ended without its holder's release.
type LostReason string

// The reasons of a loss.
const (
	// LostLeaseOver: the server says that the lease ended.
	LostLeaseOver LostReason = "lease_over"
	// LostOperator: an operator released it.
	LostOperator LostReason = "operator"
	// LostOtherClient: another client released it with its token.
	LostOtherClient LostReason = "other_client"
	// LostNotHeld: the server, asked about the ticket, does not know it any more.
	LostNotHeld LostReason = "not_held"
	// LostExpired: its time passed without a word from the server.
	LostExpired LostReason = "expired"
	// LostTakenOver: a newer client with the same client id took over.
	LostTakenOver LostReason = "taken_over"
)

// Error is what every failing call returns, but for the errors of a context. Recognise it with
// errors.Is and a sentinel, or by Kind after errors.As, never by its text. It is immutable.
type Error struct {
	// Kind is the sort of failure.
	Kind Kind
	// Reason is set where Kind is KindLost.
	Reason LostReason

	text    string
	late    bool
	wrapped error
}

// Error is text for people.
func (e *Error) Error() string { return "ticketing: " + e.text }

// Is tells whether target is the sentinel of this error's kind.
func (e *Error) Is(target error) bool {
	return target == sentinels[e.Kind] || (e.Kind == KindHeld && target == ErrTimeout)
}

// Unwrap returns the error of a [Client.WithTicket] body that was cancelled by the loss, if any.
func (e *Error) Unwrap() error { return e.wrapped }

// Timeout tells whether something did not happen in time: a wait, a try, or a reply.
func (e *Error) Timeout() bool { return e.late || e.Kind == KindTimeout || e.Kind == KindHeld }

func newError(kind Kind, format string, args ...any) *Error {
	return &Error{Kind: kind, text: fmt.Sprintf(format, args...)}
}

func invalid(format string, args ...any) *Error {
	return newError(KindInvalidArgument, format, args...)
}

// replyTimeout is a call that failed with `connection` because no answer came in time.
func replyTimeout(format string, args ...any) *Error {
	e := newError(KindConnection, format, args...)
	e.late = true
	return e
}
