package ticketing

import (
	"context"
	"os"

	"github.com/ticketing-project/ticketing/clients/go/internal/wire"
)

// Locker is what a program needs of a client, for tests that put something else in its place; a
// [*Client] is one. [FakeTicket] makes tickets for a fake.
type Locker interface {
	Acquire(ctx context.Context, key string, options ...AcquireOption) (*Ticket, error)
	AcquireSet(ctx context.Context, keys []string, options ...AcquireOption) (*Ticket, error)
	TryAcquire(ctx context.Context, key string, options ...AcquireOption) (*Ticket, error)
	WithTicket(ctx context.Context, key string, body func(context.Context, *Ticket) error, options ...AcquireOption) error
	WithSet(ctx context.Context, keys []string, body func(context.Context, *Ticket) error, options ...AcquireOption) error
	Adopt(ctx context.Context, reference string, options ...AcquireOption) (*Ticket, error)
	Ping(ctx context.Context) error
	Close() error
}

var _ Locker = (*Client)(nil)

// Client is one client of a server: one connection at a time, any number of calls in flight on it.
// Its methods may be called from any goroutine. A lost connection is no error: waits, releases and
// tickets go on over the next one, and a waiter keeps its place.
//
// A call whose context ends returns the context's error at once, and leaves neither a waiter nor a
// ticket behind, whatever the moment (REQ-STOP-CLEAN).
type Client struct {
	driver *driver
}

// Dial makes a client and connects it. The URL is ticketing://host:port,host:port, ticketings://… (TLS)
// or ticketing+unix:///path; an empty one is TICKETING_URL, else ticketing://127.0.0.1:5225.
//
// It fails with ErrInvalidArgument at once, with ErrConnection after each endpoint was tried (see
// [ConnectFor]), and with ErrAuth where the secret is wrong, both within seconds. The context bounds
// the dialling alone.
func Dial(ctx context.Context, url string, options ...Option) (*Client, error) {
	gathered, err := gather(options)
	if err != nil {
		return nil, err
	}
	if url == "" {
		url = os.Getenv("TICKETING_URL")
	}
	to := target{endpoints: []endpoint{{host: "127.0.0.1", port: wire.DefaultPort}}}
	if url != "" {
		if to, err = parseURL(url); err != nil {
			return nil, err
		}
	}
	how, err := gathered.transport(to)
	if err != nil {
		return nil, err
	}
	settings, err := gathered.coreSettings(to)
	if err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	client := &Client{newDriver(settings, how, gathered.logger, gathered.onEvent)}
	opened := newCall()
	client.driver.do(func(c *core, nowNs int64) { c.open(opened, nowNs) })
	select {
	case result := <-opened.done:
		err = result.err
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err != nil {
		client.Close()
		return nil, err
	}
	return client, nil
}

// Close cancels what waits, releases what is held, and ends the connection and every goroutine of the
// client. It takes at most about a second, also without a server; calls that still wait fail with
// ErrClosed. With ReleaseOnClose(false) tickets are left to their leases. It may be called again, and
// returns nil (REQ-SHUT-BOUND, REQ-SHUT-ENDS).
func (c *Client) Close() error {
	closed := newCall()
	c.driver.do(func(core *core, nowNs int64) { core.close(closed, nowNs) })
	<-closed.done
	c.driver.groups.Wait()
	return nil
}

// Acquire waits for a key of 1 to 128 bytes, the prefix included, and returns its ticket. Any bytes
// are a key; text is its UTF-8.
//
// It fails with ErrTimeout (see [WaitTimeout]; ErrHeld for a wait of 0), ErrOverloaded, ErrAuth, ErrLost
// (granted, but read too late), ErrInvalidArgument and ErrClosed; a wait of 0 with ErrConnection too.
func (c *Client) Acquire(ctx context.Context, key string, options ...AcquireOption) (*Ticket, error) {
	return c.AcquireSet(ctx, []string{key}, options...)
}

// AcquireSet acquires up to 16 different keys together, all or nothing, as one ticket. Otherwise it is
// as Acquire. Sets that overlap never deadlock. A set waits for all its keys in strict turn, and keeps
// those that are free from later comers.
func (c *Client) AcquireSet(ctx context.Context, keys []string, options ...AcquireOption) (*Ticket, error) {
	gathered, err := gatherAcquire(options)
	if err != nil {
		return nil, err
	}
	return c.acquire(ctx, keys, gathered)
}

// TryAcquire acquires a key if it is free now, else it fails with ErrHeld. Otherwise it is as Acquire,
// without an option for the wait.
func (c *Client) TryAcquire(ctx context.Context, key string, options ...AcquireOption) (*Ticket, error) {
	gathered, err := gatherWithoutWait("TryAcquire", options)
	if err != nil {
		return nil, err
	}
	atOnce := uint32(wire.WaitMsTry)
	gathered.wait = &atOnce
	return c.acquire(ctx, []string{key}, gathered)
}

func (c *Client) acquire(ctx context.Context, keys []string, options acquireOptions) (*Ticket, error) {
	return c.ticketOf(ctx, func(core *core, waiting *call, nowNs int64) (*request, error) {
		return core.acquire(keys, options, waiting, nowNs)
	})
}

// Adopt takes over a ticket that another client handed over. The reference is what HandOver returned;
// the client's key prefix is not added to it. The ticket is extended by the lease.
//
// It fails with ErrNotHeld if the ticket has ended, ErrConnection after the reply timeout, ErrAuth,
// ErrInvalidArgument (also for an option about the wait) and ErrClosed. A reference is for one adopter;
// the server does not check this. Cancelled, it leaves the ticket as it is, or releases it if it had arrived.
func (c *Client) Adopt(ctx context.Context, reference string, options ...AcquireOption) (*Ticket, error) {
	gathered, err := gatherWithoutWait("Adopt", options)
	if err != nil {
		return nil, err
	}
	return c.ticketOf(ctx, func(core *core, waiting *call, nowNs int64) (*request, error) {
		return core.adopt(reference, gathered, waiting, nowNs)
	})
}

// ticketOf starts a call whose outcome is a ticket, and waits for it.
func (c *Client) ticketOf(ctx context.Context, start func(*core, *call, int64) (*request, error)) (*Ticket, error) {
	result, err := c.driver.wait(ctx, start)
	if err != nil {
		return nil, err
	}
	return &Ticket{driver: c.driver, held: result.ticket}, nil
}

// Ping asks the server for a sign of life. It fails with ErrConnection after the reply timeout, ErrAuth
// and ErrClosed.
func (c *Client) Ping(ctx context.Context) error {
	_, err := c.driver.wait(ctx, (*core).ping)
	return err
}

// wait starts a call, waits for its outcome, and abandons it when the context ends.
func (d *driver) wait(ctx context.Context, start func(*core, *call, int64) (*request, error)) (outcome, error) {
	if err := ctx.Err(); err != nil {
		return outcome{}, err
	}
	waiting := newCall()
	var r *request
	var err error
	d.do(func(c *core, nowNs int64) { r, err = start(c, waiting, nowNs) })
	if err != nil {
		return outcome{}, err
	}
	select {
	case result := <-waiting.done:
		return result, result.err
	case <-ctx.Done():
		d.do(func(c *core, nowNs int64) { c.abandon(r, nowNs) })
		return outcome{}, ctx.Err()
	}
}

// WithTicket acquires a key as Acquire does, calls body with a context and the ticket, and releases.
// The context is cancelled with the cause ErrLost when the ticket is lost.
//
// It returns the body's error if there is one of its own. If the ticket was lost it returns ErrLost, also
// where the body returned the error of the context that the loss cancelled (which that error then wraps).
// A body that panics has its ticket released. When ctx is cancelled the release is not waited for.
func (c *Client) WithTicket(ctx context.Context, key string, body func(context.Context, *Ticket) error, options ...AcquireOption) error {
	return c.WithSet(ctx, []string{key}, body, options...)
}

// WithSet is as WithTicket, for a set of keys.
func (c *Client) WithSet(ctx context.Context, keys []string, body func(context.Context, *Ticket) error, options ...AcquireOption) error {
	ticket, err := c.AcquireSet(ctx, keys, options...)
	if err != nil {
		return err
	}
	return ticket.scope(ctx, body)
}
