package ticketing

import "time"

// Event is what the hook of [OnEvent] is called with: [Granted], [TimedOut], [Released],
// [Extended], [Lost], [Connected] or [Disconnected]. EventKind is the same word in every language.
type Event interface {
	EventKind() string
}

// Granted: an acquire was granted, Waited after the call.
type Granted struct {
	Keys   []string
	Token  uint64
	Waited time.Duration
}

// TimedOut: a wait ended without a grant, Waited after the call.
type TimedOut struct {
	Keys   []string
	Waited time.Duration
}

// Released: a ticket was released after it was held for Held.
type Released struct {
	Keys  []string
	Token uint64
	Held  time.Duration
}

// Extended: a ticket's lease goes on; Remaining is left of it.
type Extended struct {
	Keys      []string
	Token     uint64
	Remaining time.Duration
}

// Lost: a ticket ended without its holder's release.
type Lost struct {
	Keys   []string
	Token  uint64
	Reason LostReason
}

// Connected: a server that serves requests was reached and has proved that it knows the secret.
type Connected struct {
	Address string
}

// Disconnected: the connection ended. The client reconnects by itself unless it was closed.
type Disconnected struct {
	Address string
	Reason  string
}

// EventKind is "granted".
func (Granted) EventKind() string { return "granted" }

// EventKind is "timed_out".
func (TimedOut) EventKind() string { return "timed_out" }

// EventKind is "released".
func (Released) EventKind() string { return "released" }

// EventKind is "extended".
func (Extended) EventKind() string { return "extended" }

// EventKind is "lost".
func (Lost) EventKind() string { return "lost" }

// EventKind is "connected".
func (Connected) EventKind() string { return "connected" }

// EventKind is "disconnected".
func (Disconnected) EventKind() string { return "disconnected" }
