package ticketing

import "log/slog"

// effect is what the core asks its shell to do, in the order of the list.
type effect any

// outcome is how a call ended.
type outcome struct {
	ticket    *heldTicket
	reference string
	err       error
}

// call is a caller that waits. It gets exactly one outcome, unless it is abandoned.
type call struct {
	done chan outcome
}

func newCall() *call { return &call{done: make(chan outcome, 1)} }

// settled: a call has its outcome.
type settled struct {
	call    *call
	outcome outcome
}

// connectTo: open a connection; report with connected or disconnected under this serial.
type connectTo struct {
	serial   uint64
	endpoint endpoint
}

// disconnect: drop the connection or attempt of this serial, without sending what is unsent.
type disconnect struct {
	serial uint64
}

// ticketEnded: a ticket with listeners was lost, or ended otherwise; call them.
type ticketEnded struct {
	listeners []*endListener
	err       error
}

// endListener is what wants to know of the end of a ticket. The error is that of its loss, or of the
// client's end, and nil where it was released or handed over.
type endListener struct {
	ended func(err error)
}

// notify: call the program's event hook.
type notify struct {
	event Event
}

// logLine: write a line to the logger.
type logLine struct {
	level slog.Level
	text  string
}

// coreClosed: the client has ended; let go of timers, goroutines and sockets.
type coreClosed struct{}
