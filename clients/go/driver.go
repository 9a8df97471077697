package ticketing

import (
	"context"
	"log/slog"
	"runtime"
	"sync"
	"time"
)

const (
	readBytes = 32 << 10
	// keptBytes is how large a buffer for output may stay.
	keptBytes = 1 << 20
	// longestSleep: timers may stand still while the machine sleeps, but leases go on. So look now and then.
	longestSleep = time.Second
)

// driver runs one core: the only part of the client that touches sockets. Callers enter the core
// under mu and never wait for the network there; one goroutine reads, one writes, one watches the time.
type driver struct {
	transport transport
	logger    *slog.Logger
	onEvent   func(Event)

	mu      sync.Mutex
	core    *core
	conn    *connection
	armedNs int64 // When the goroutine that watches the time looks next.

	// outbox has what is delivered to the program: in order, by one goroutine at a time, and outside
	// of mu, so that a hook may call the client.
	outMu      sync.Mutex
	outbox     []effect
	delivering bool

	rearm  chan struct{}
	over   chan struct{}
	groups sync.WaitGroup
}

// connection is one connection, or an attempt at one.
type connection struct {
	serial uint64
	ctx    context.Context
	cancel context.CancelFunc
	stream *stream // nil while the attempt lasts.
	wake   chan struct{}
	heard  bool
}

func newDriver(settings *coreSettings, t transport, logger *slog.Logger, onEvent func(Event)) *driver {
	d := &driver{
		transport: t, logger: logger, onEvent: onEvent, core: newCore(settings), armedNs: never,
		rearm: make(chan struct{}, 1), over: make(chan struct{}),
	}
	d.groups.Add(1)
	go d.watchTime()
	return d
}

// do calls into the core and carries out what it wants. Every entry into the core goes this way.
func (d *driver) do(enter func(c *core, nowNs int64)) {
	d.mu.Lock()
	enter(d.core, clockNs())
	toDeliver := d.carryOut()
	if len(d.core.link.outgoing) > 0 && d.conn != nil {
		signal(d.conn.wake)
	}
	if next := d.core.deadlines.nextNs(); next < d.armedNs {
		d.armedNs = next
		signal(d.rearm)
	}
	d.mu.Unlock()
	if toDeliver {
		d.deliver()
	}
}

func signal(to chan struct{}) {
	select {
	case to <- struct{}{}:
	default: // It will look anyway.
	}
}

// Effects.

// carryOut does what is for the driver, and puts the rest into the outbox. It tells whether it did.
func (d *driver) carryOut() bool {
	effects := d.core.effects
	if len(effects) == 0 {
		return false
	}
	d.outMu.Lock()
	defer d.outMu.Unlock()
	for at, e := range effects {
		switch e := e.(type) {
		case connectTo:
			d.connect(e)
		case disconnect:
			if d.conn != nil && d.conn.serial == e.serial {
				d.letGo(d.conn)
			}
		case coreClosed:
			close(d.over)
		default:
			d.outbox = append(d.outbox, e)
		}
		effects[at] = nil
	}
	d.core.effects = effects[:0]
	return len(d.outbox) > 0
}

func (d *driver) deliver() {
	d.outMu.Lock()
	defer d.outMu.Unlock()
	if d.delivering {
		return // The goroutine that is at it sees what was added meanwhile.
	}
	d.delivering = true
	for len(d.outbox) > 0 {
		batch := d.outbox
		d.outbox = nil
		d.outMu.Unlock()
		for _, e := range batch {
			d.hand(e)
		}
		d.outMu.Lock()
		if d.outbox == nil {
			clear(batch)
			d.outbox = batch[:0]
		}
	}
	d.delivering = false
}

func (d *driver) hand(e effect) {
	switch e := e.(type) {
	case settled:
		e.call.done <- e.outcome
	case ticketEnded:
		for _, listener := range e.listeners {
			listener.ended(e.err)
		}
	case notify:
		d.callHook(e.event)
	case logLine:
		d.logger.Log(context.Background(), e.level, e.text)
	}
}

func (d *driver) callHook(event Event) {
	defer func() {
		if problem := recover(); problem != nil {
			d.logger.Error("the OnEvent hook panicked", "event", event.EventKind(), "panic", problem)
		}
	}()
	d.onEvent(event)
}

// Time.

func (d *driver) watchTime() {
	defer d.groups.Done()
	timer := time.NewTimer(longestSleep)
	defer timer.Stop()
	for {
		select {
		case <-d.over:
			return
		case <-d.rearm:
		case <-timer.C:
		}
		sleep := longestSleep
		d.do(func(c *core, nowNs int64) {
			c.onTime(nowNs)
			next := c.deadlines.nextNs()
			d.armedNs = min(next, nowNs+int64(longestSleep))
			if next == never {
				d.armedNs = never
			} else {
				sleep = max(0, time.Duration(d.armedNs-nowNs))
			}
		})
		timer.Reset(sleep)
	}
}

// The connection.

func (d *driver) connect(to connectTo) {
	ctx, cancel := context.WithCancel(context.Background())
	c := &connection{serial: to.serial, ctx: ctx, cancel: cancel, wake: make(chan struct{}, 1)}
	d.conn = c
	d.groups.Add(1)
	go d.run(c, to.endpoint)
}

// letGo drops a connection at once; its goroutines end by themselves. Under mu.
func (d *driver) letGo(c *connection) {
	c.cancel()
	if c.stream != nil {
		c.stream.socket.Close()
	}
	if d.conn == c {
		d.conn = nil
	}
}

func (d *driver) run(c *connection, to endpoint) {
	defer d.groups.Done()
	s, err := d.transport.open(c.ctx, to)
	if err != nil {
		d.gone(c, why(err))
		return
	}
	wanted := false
	d.do(func(core *core, nowNs int64) {
		c.stream = s
		if wanted = d.conn == c; wanted {
			core.link.connected(c.serial, nowNs)
			d.groups.Add(1)
			go d.write(c)
		}
	})
	if !wanted {
		s.socket.Close() // It came up in the very moment in which it was given up.
		return
	}
	d.read(c)
}

func (d *driver) read(c *connection) {
	buffer := make([]byte, readBytes)
	for {
		n, err := c.stream.Read(buffer)
		if n > 0 {
			c.heard = true
			d.do(func(core *core, nowNs int64) { core.receive(c.serial, buffer[:n], nowNs) })
		}
		if err != nil {
			reason := why(err)
			if d.transport.tls != nil && !c.heard {
				reason += " (if it asks for a certificate, give one in option TLS)"
			}
			d.gone(c, reason)
			return
		}
	}
}

// write writes in one piece what was queued meanwhile. When a write fails it is for the reader to
// find out why: what the server said last may still be unread.
func (d *driver) write(c *connection) {
	defer d.groups.Done()
	var output []byte
	for {
		select {
		case <-c.ctx.Done():
			return
		case <-c.wake:
		}
		runtime.Gosched() // Callers that can run now queue first: one write, one packet, one turn of the server.
		output = output[:0]
		d.mu.Lock()
		if d.conn == c {
			output = d.core.requests.appendOutput(output, clockNs())
		}
		d.mu.Unlock()
		if _, err := c.stream.Write(output); err != nil {
			return
		}
		if cap(output) > keptBytes {
			output = nil
		}
	}
}

// gone: a connection, or an attempt at one, has come to its end.
func (d *driver) gone(c *connection, reason string) {
	d.do(func(core *core, nowNs int64) {
		d.letGo(c)
		core.link.disconnected(c.serial, sanitised(reason), nowNs)
	})
}
