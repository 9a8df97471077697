package ticketing

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"
)

// Ticket is a granted acquisition. Its methods may be called from any goroutine.
//
// A ticket is lost when its lease ends before it was extended (the program stood still, or no server was
// in reach), or when an operator or another client released it. A process that was stopped can't notice
// in time; for that there is the token.
type Ticket struct {
	driver *driver
	held   *heldTicket
}

// Key is the key as the program gave it, without the client's prefix; of a set the first key.
func (t *Ticket) Key() string { return t.held.shownKeys[0] }

// Keys are all keys, sorted by their bytes.
func (t *Ticket) Keys() []string { return slices.Clone(t.held.shownKeys) }

// Token is the fencing token: strictly rising over all grants of all keys. Send it along to what the
// lock protects, and let that refuse any token lower than the highest it has seen.
func (t *Ticket) Token() uint64 { return t.held.token }

// Lease is the lease as it was asked for.
func (t *Ticket) Lease() time.Duration { return time.Duration(t.held.leaseMs) * time.Millisecond }

// ExpiresAt is when the ticket is lost unless it is extended: a little earlier than the server's own
// time, and it never goes back. It has a monotonic clock reading; Remaining is better over suspensions.
func (t *Ticket) ExpiresAt() time.Time {
	t.driver.mu.Lock()
	defer t.driver.mu.Unlock()
	return time.Now().Add(time.Duration(t.held.expiresNs - clockNs()))
}

// Remaining is the time until ExpiresAt; 0 once the ticket is not held any more.
func (t *Ticket) Remaining() time.Duration {
	t.driver.mu.Lock()
	defer t.driver.mu.Unlock()
	if t.held.state != held {
		return 0
	}
	return time.Duration(max(0, t.held.expiresNs-clockNs()))
}

// Err is nil while the ticket is held, and after it was released or handed over. It is an ErrLost
// that says why once the ticket is lost, as far as this client knows, and ErrClosed if the client
// was closed meanwhile.
func (t *Ticket) Err() error {
	t.driver.mu.Lock()
	defer t.driver.mu.Unlock()
	switch state := t.held.state; {
	case state == lost, state == held && clockNs() >= t.held.expiresNs:
		return lostError(t.held)
	case state == clientClosed:
		return ticketClosed(t.held)
	}
	return nil
}

// Done is closed when the ticket is lost; Err then says why. It is not closed by a release, by
// HandOver or by Close.
func (t *Ticket) Done() <-chan struct{} {
	first := false
	t.driver.do(func(*core, int64) {
		if first = t.held.done == nil; first {
			t.held.done = make(chan struct{})
		}
	})
	if first {
		t.listen(func(err error) {
			if errors.Is(err, ErrLost) {
				close(t.held.done)
			}
		})
	}
	return t.held.done
}

// Context returns a context that is cancelled with the cause ErrLost when the ticket is lost, and
// with ErrClosed when its client is closed before the release. Call the function when it is not needed
// any more.
func (t *Ticket) Context(parent context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(parent)
	stop := t.listen(func(err error) {
		if err != nil {
			cancel(err)
		}
	})
	return ctx, func() {
		stop()
		cancel(context.Canceled)
	}
}

// listen has a function called at the end of the ticket, or at once if that has come. The function
// that it returns ends the listening.
func (t *Ticket) listen(ended func(err error)) (stop func()) {
	listener := &endListener{ended}
	over := false
	t.driver.do(func(c *core, nowNs int64) {
		if c.tickets.loseIfOver(t.held, nowNs); t.held.state == held {
			t.held.listeners = append(t.held.listeners, listener)
		} else {
			over = true
		}
	})
	if over {
		ended(t.Err())
	}
	return func() {
		t.driver.mu.Lock()
		defer t.driver.mu.Unlock()
		t.held.listeners = slices.DeleteFunc(t.held.listeners, func(l *endListener) bool { return l == listener })
	}
}

// Release gives the key to the next waiter. It may be called again, and then returns the same.
//
// It fails with ErrLost if the ticket was lost, or if there is no answer until it expires. The release
// is never tied to a context: one that ends, or has ended, bounds only the waiting.
func (t *Ticket) Release(ctx context.Context) error {
	released := newCall()
	t.driver.do(func(c *core, nowNs int64) { c.tickets.releaseTicket(t.held, released, nowNs) })
	select {
	case result := <-released.done:
		return result.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Extend makes the lease end that long from now, never earlier than it would. It takes the option
// [Lease]; without it the ticket's own lease. A lease of a millisecond changes nothing and only asks
// whether the ticket is held.
//
// It fails with ErrLost (also when the ticket was lost before: then nothing is sent), ErrNotHeld after
// Release or HandOver, ErrConnection after the reply timeout, ErrInvalidArgument. One extend of a ticket
// is under way at a time, further ones wait. Cancelled, it has happened or not.
func (t *Ticket) Extend(ctx context.Context, options ...AcquireOption) error {
	gathered, err := gatherAcquire(options)
	if err != nil {
		return err
	}
	if gathered.wait != nil || gathered.autoExtend != nil {
		return invalid("Extend takes no option but Lease")
	}
	ms := t.held.leaseMs
	if gathered.lease != nil {
		ms = *gathered.lease
	}
	_, err = t.driver.wait(ctx, func(c *core, waiting *call, nowNs int64) (*request, error) {
		return c.tickets.extend(t.held, ms, waiting, nowNs), nil
	})
	return err
}

// HandOver ends this client's part in the ticket and returns a reference that [Client.Adopt] takes.
// The lease goes on and is not extended any more, so adopt before it ends. A reference is for one adopter;
// the server does not check this. It waits for an extend that is under way.
//
// It fails with ErrLost and ErrNotHeld. Cancelled before it returns, the ticket stays here.
func (t *Ticket) HandOver(ctx context.Context) (string, error) {
	if err := ctx.Err(); err != nil {
		return "", err
	}
	waiting := newCall()
	t.driver.do(func(c *core, nowNs int64) { c.tickets.handOver(t.held, waiting, nowNs) })
	select {
	case result := <-waiting.done:
		return result.reference, result.err
	case <-ctx.Done():
		t.driver.do(func(c *core, nowNs int64) {
			if c.closedBecause == "" {
				c.tickets.stopHandOver(t.held, waiting, nowNs)
			}
		})
		return "", ctx.Err()
	}
}

// scope runs a body that holds the ticket, and releases.
func (t *Ticket) scope(ctx context.Context, body func(context.Context, *Ticket) error) error {
	inner, stop := t.Context(ctx)
	defer stop()
	returned := false
	defer func() {
		if !returned { // The body panicked or ended its goroutine; that goes on.
			t.releaseWithoutWaiting()
		}
	}()
	err := body(inner, t)
	returned = true
	ended := t.Err()
	if ctx.Err() != nil {
		t.releaseWithoutWaiting()
		return cmp.Or(err, ended)
	}
	var end *Error
	if errors.As(ended, &end) && (errors.Is(err, context.Canceled) || errors.Is(err, sentinels[end.Kind])) {
		t.releaseWithoutWaiting()
		wrapping := *end
		wrapping.wrapped = err
		return &wrapping
	}
	released := t.Release(ctx)
	if err != nil {
		if released != nil {
			t.driver.logger.Warn(released.Error() + "; the error of the body goes on")
		}
		return err
	}
	return released
}

func (t *Ticket) releaseWithoutWaiting() {
	t.driver.do(func(c *core, nowNs int64) { c.tickets.releaseTicket(t.held, nil, nowNs) })
}
