package ticketing

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

func TestAcquireAndRelease(t *testing.T) {
	s, ctx := sharedServer(t), testContext(t)
	c := s.dial(KeyPrefix("app/"))
	ticket, err := c.Acquire(ctx, "k", Lease(30*time.Second))
	must(t, err)
	if ticket.Key() != "k" || ticket.Token() == 0 || ticket.Lease() != 30*time.Second {
		t.Fatal(ticket.Key(), ticket.Token(), ticket.Lease())
	}
	if left := ticket.Remaining(); left <= 0 || left > 30*time.Second || time.Until(ticket.ExpiresAt()) > left {
		t.Fatal(left, ticket.ExpiresAt())
	}
	_, err = s.dial().TryAcquire(ctx, "app/k")
	expect(t, err, ErrHeld)
	expect(t, err, ErrTimeout)
	_, err = c.Acquire(ctx, "k", WaitTimeout(time.Millisecond))
	expect(t, err, ErrTimeout)
	if errors.Is(err, ErrHeld) {
		t.Fatal("a wait is no try")
	}
	must(t, ticket.Extend(ctx, Lease(time.Hour)))
	if left := ticket.Remaining(); left < 50*time.Minute {
		t.Fatal(left)
	}
	must(t, ticket.Release(ctx))
	must(t, ticket.Release(ctx))
	if ticket.Remaining() != 0 || ticket.Err() != nil {
		t.Fatal(ticket.Remaining(), ticket.Err())
	}
	expect(t, ticket.Extend(ctx), ErrNotHeld)
	must(t, c.Ping(ctx))
}

func TestSetsAndHandOver(t *testing.T) {
	s, ctx := sharedServer(t), testContext(t)
	c, other := s.dial(), s.dial()
	ticket, err := c.AcquireSet(ctx, []string{"s2", "s1", "s2"})
	must(t, err)
	keys := ticket.Keys()
	if !slices.Equal(keys, []string{"s1", "s2"}) {
		t.Fatal(keys)
	}
	_, err = other.TryAcquire(ctx, "s2")
	expect(t, err, ErrHeld)
	reference, err := ticket.HandOver(ctx)
	must(t, err)
	adopted, err := other.Adopt(ctx, reference, Lease(20*time.Second))
	must(t, err)
	if adopted.Token() != ticket.Token() {
		t.Fatal(adopted.Token())
	}
	must(t, adopted.Release(ctx))
	_, err = c.Adopt(ctx, reference)
	expect(t, err, ErrNotHeld)
}

func TestInvalidArguments(t *testing.T) {
	s, ctx := sharedServer(t), testContext(t)
	c := s.dial()
	ticket, err := c.Acquire(ctx, keyOf(t))
	must(t, err)
	_, err = c.Acquire(ctx, "")
	expect(t, err, ErrInvalidArgument)
	for _, option := range []AcquireOption{Lease(0), Lease(-1), WaitTimeout(-1), Lease(1 << 62)} {
		_, err = c.Acquire(ctx, "k", option)
		expect(t, err, ErrInvalidArgument)
		expect(t, ticket.Extend(ctx, option), ErrInvalidArgument)
	}
	_, err = c.TryAcquire(ctx, "k", WaitTimeout(0))
	expect(t, err, ErrInvalidArgument)
	_, err = c.Adopt(ctx, "1:k", WaitForever())
	expect(t, err, ErrInvalidArgument)
	_, err = c.Adopt(ctx, "k")
	expect(t, err, ErrInvalidArgument)
	expect(t, ticket.Extend(ctx, AutoExtend(true)), ErrInvalidArgument)
	for _, option := range []Option{
		TLS(nil), Fingerprint([]byte("short")), Label("a b"), Secret("a\n"), ReplyTimeout(0), ConnectFor(-1),
		KeyPrefix(strings.Repeat("p", 128)), Lease(0),
	} {
		_, err := Dial(ctx, s.url, option)
		expect(t, err, ErrInvalidArgument)
	}
	_, err = Dial(ctx, s.url, nil)
	expect(t, err, ErrInvalidArgument)
	_, err = c.Acquire(ctx, "k", nil)
	expect(t, err, ErrInvalidArgument)
	_, err = Dial(ctx, "nonsense")
	expect(t, err, ErrInvalidArgument)
	must(t, ticket.Release(ctx))
}

func TestDefaultsOfTheClient(t *testing.T) {
	s, ctx := sharedServer(t), testContext(t)
	c := s.dial(Lease(20*time.Second), WaitTimeout(time.Millisecond), AutoExtend(true))
	ticket, err := c.Acquire(ctx, keyOf(t))
	must(t, err)
	if ticket.Lease() != 20*time.Second || !ticket.held.autoExtend {
		t.Fatal(ticket.Lease())
	}
	_, err = c.Acquire(ctx, keyOf(t))
	expect(t, err, ErrTimeout)
	waiting, cancel := context.WithCancel(ctx)
	go func() {
		s.eventually("it waits", func() bool { _, waiters := s.counts(); return waiters == 1 })
		cancel()
	}()
	_, err = c.Acquire(waiting, keyOf(t), WaitForever())
	expect(t, err, context.Canceled)
	must(t, ticket.Release(ctx))
}

func TestContexts(t *testing.T) {
	s, ctx := sharedServer(t), testContext(t)
	c := s.dial()
	ended, cancel := context.WithCancel(ctx)
	cancel()
	_, err := c.Acquire(ended, keyOf(t))
	expect(t, err, context.Canceled)
	_, err = Dial(ended, s.url)
	expect(t, err, context.Canceled)
	ticket, err := c.Acquire(ctx, keyOf(t))
	must(t, err)
	_, err = ticket.HandOver(ended)
	expect(t, err, context.Canceled)
	bounded, cancel := context.WithTimeout(ctx, time.Millisecond)
	defer cancel()
	_, err = c.Acquire(bounded, keyOf(t))
	expect(t, err, context.DeadlineExceeded)
	if err := ticket.Release(ended); err != nil { // It bounds only the waiting.
		expect(t, err, context.Canceled)
	}
	s.expectEmpty()
}

// Cancelled while it dials: nothing is left.
func TestDialIsCancelled(t *testing.T) {
	defer expectNoLeak(t)()
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	_, err := Dial(ctx, "ticketing://127.0.0.1:1", ConnectFor(time.Minute))
	expect(t, err, context.DeadlineExceeded)
}

func TestLoss(t *testing.T) {
	s, ctx := sharedServer(t), testContext(t)
	c, other := s.dial(), s.dial()
	ticket, err := c.Acquire(ctx, keyOf(t))
	must(t, err)
	inner, stop := ticket.Context(ctx)
	defer stop()
	stopped, stopNow := ticket.Context(ctx)
	stopNow()
	expect(t, context.Cause(stopped), context.Canceled)
	reference := formatReference(ticket.Token(), keyOf(t))
	adopted, err := other.Adopt(ctx, reference, Lease(time.Minute))
	must(t, err)
	must(t, adopted.Release(ctx)) // With the token alone: the owner hears of it when it asks.
	expect(t, ticket.Extend(ctx), ErrLost)
	<-ticket.Done()
	<-ticket.Done()
	<-inner.Done()
	expect(t, context.Cause(inner), ErrLost)
	var lost *Error
	if !errors.As(ticket.Err(), &lost) || lost.Reason != LostNotHeld {
		t.Fatal(ticket.Err())
	}
	late, stop := ticket.Context(ctx)
	defer stop()
	expect(t, context.Cause(late), ErrLost)
	expect(t, ticket.Release(ctx), ErrLost)
}

func TestExpiryWithoutAServer(t *testing.T) {
	s := startServer(t, nil)
	ctx := testContext(t)
	c := s.dial()
	ticket, err := c.Acquire(ctx, "k", Lease(3*time.Second))
	must(t, err)
	s.end(9)
	<-ticket.Done()
	expect(t, ticket.Err(), ErrLost)
	expect(t, ticket.Release(ctx), ErrLost)
}

var errOwn = errors.New("the body's own error")

func TestWithTicket(t *testing.T) {
	s, ctx := sharedServer(t), testContext(t)
	c, other := s.dial(), s.dial()
	lose := func(ticket *Ticket) {
		adopted, err := other.Adopt(ctx, formatReference(ticket.Token(), ticket.Key()))
		must(t, err)
		must(t, adopted.Release(ctx))
		expect(t, ticket.Extend(ctx), ErrLost)
	}
	run := func(ctx context.Context, body func(context.Context, *Ticket) error) error {
		return c.WithTicket(ctx, keyOf(t), body)
	}
	must(t, run(ctx, func(_ context.Context, ticket *Ticket) error {
		if ticket.Remaining() == 0 {
			t.Error("not held in the body")
		}
		return nil
	}))
	expect(t, run(ctx, func(context.Context, *Ticket) error { return errOwn }), errOwn)
	err := run(ctx, func(inner context.Context, ticket *Ticket) error {
		lose(ticket)
		<-inner.Done()
		return inner.Err()
	})
	expect(t, err, ErrLost)
	expect(t, err, context.Canceled) // The error of the body is inside.
	expect(t, run(ctx, func(_ context.Context, ticket *Ticket) error { lose(ticket); return nil }), ErrLost)
	err = run(ctx, func(_ context.Context, ticket *Ticket) error { lose(ticket); return errOwn })
	if err != errOwn {
		t.Fatal(err)
	}
	outer, cancel := context.WithCancel(ctx)
	err = run(outer, func(inner context.Context, _ *Ticket) error {
		cancel()
		<-inner.Done()
		return inner.Err()
	})
	expect(t, err, context.Canceled)
	func() {
		defer func() {
			if recover() != "in the body" {
				t.Error("the panic of the body was masked")
			}
		}()
		run(ctx, func(context.Context, *Ticket) error { panic("in the body") })
	}()
	held, err := c.Acquire(ctx, keyOf(t))
	must(t, err)
	expect(t, c.WithTicket(ctx, keyOf(t), nil, WaitTimeout(0)), ErrHeld)
	must(t, held.Release(ctx))
	must(t, c.WithSet(ctx, []string{"a", "b"}, func(_ context.Context, ticket *Ticket) error { return ticket.Release(ctx) }))
	c.Close()
	expect(t, run(ctx, nil), ErrClosed)
}

func TestCloseCancelsTheBody(t *testing.T) {
	s, ctx := sharedServer(t), testContext(t)
	c := s.dial(ReleaseOnClose(false))
	err := c.WithTicket(ctx, keyOf(t), func(inner context.Context, ticket *Ticket) error {
		c.Close()
		<-inner.Done()
		expect(t, context.Cause(inner), ErrClosed)
		return inner.Err()
	}, Lease(time.Second))
	expect(t, err, ErrClosed)
	s.expectEmpty()
}

func TestClosedClient(t *testing.T) {
	defer expectNoLeak(t)()
	s, ctx := sharedServer(t), testContext(t)
	c := s.dial()
	ticket, err := c.Acquire(ctx, keyOf(t))
	must(t, err)
	waited := make(chan error)
	go func() {
		_, err := c.Acquire(ctx, keyOf(t))
		waited <- err
	}()
	s.eventually("it waits", func() bool { _, waiters := s.counts(); return waiters == 1 })
	must(t, c.Close())
	must(t, c.Close())
	expect(t, <-waited, ErrClosed)
	_, err = c.Acquire(ctx, keyOf(t))
	expect(t, err, ErrClosed)
	_, err = c.Adopt(ctx, "1:k")
	expect(t, err, ErrClosed)
	expect(t, c.Ping(ctx), ErrClosed)
	must(t, ticket.Release(ctx)) // Close has done it.
	expect(t, ticket.Extend(ctx), ErrNotHeld)
	s.expectEmpty()
}

// Events come in order, before the call that they belong to returns, and a hook may call the client.
func TestEvents(t *testing.T) {
	s, ctx := sharedServer(t), testContext(t)
	var mu sync.Mutex
	var kinds []string
	var lines strings.Builder
	var ticket *Ticket
	c := s.dial(Logger(slog.New(slog.NewTextHandler(&lines, nil))), OnEvent(func(e Event) {
		mu.Lock()
		defer mu.Unlock()
		kinds = append(kinds, e.EventKind())
		if ticket != nil {
			ticket.Remaining()
		}
		if e.EventKind() == "released" {
			panic("in the hook")
		}
	}))
	seen := func() string {
		mu.Lock()
		defer mu.Unlock()
		return strings.Join(kinds, " ")
	}
	granted, err := c.Acquire(ctx, keyOf(t))
	must(t, err)
	mu.Lock()
	ticket = granted
	mu.Unlock()
	if seen() != "connected granted" {
		t.Fatal(seen())
	}
	_, err = c.Acquire(ctx, keyOf(t), WaitTimeout(time.Millisecond))
	expect(t, err, ErrTimeout)
	must(t, ticket.Extend(ctx))
	must(t, ticket.Release(ctx))
	if seen() != "connected granted timed_out extended released" {
		t.Fatal(seen())
	}
	must(t, c.Ping(ctx)) // The panic went no further.
	c.Close()
	if !strings.Contains(lines.String(), "in the hook") || !strings.Contains(lines.String(), "holds itself") {
		t.Fatal(lines.String())
	}
}

func TestFakeTickets(t *testing.T) {
	ctx := testContext(t)
	ticket, lose := FakeTicket(7, "b", "a")
	if ticket.Token() != 7 || ticket.Key() != "a" || ticket.Remaining() < time.Hour {
		t.Fatal(ticket)
	}
	must(t, ticket.Extend(ctx, Lease(time.Minute)))
	lose()
	<-ticket.Done()
	expect(t, ticket.Release(ctx), ErrLost)
	ticket, _ = FakeTicket(8, "a")
	must(t, ticket.Release(ctx))
	must(t, ticket.Release(ctx))
	expect(t, ticket.Extend(ctx), ErrNotHeld)
	ticket, _ = FakeTicket(9, "a")
	reference, err := ticket.HandOver(ctx)
	must(t, err)
	if reference != "9:a" {
		t.Fatal(reference)
	}
	ticket, lose = FakeTicket(10, "a")
	err = ticket.scope(ctx, func(inner context.Context, _ *Ticket) error {
		lose()
		<-inner.Done()
		return inner.Err()
	})
	expect(t, err, ErrLost)
}
