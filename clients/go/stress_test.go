package ticketing

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// each runs a function in that many goroutines and waits for all.
func each(count int, run func(at int)) {
	var group sync.WaitGroup
	for at := range count {
		group.Add(1)
		go func() {
			defer group.Done()
			run(at)
		}()
	}
	group.Wait()
}

// 10,000 pairs over one connection from 100 callers, of whom ten at a time share a key.
func TestManyCallers(t *testing.T) {
	s, ctx := sharedServer(t), testContext(t)
	c := s.dial()
	var inside [10]atomic.Int32
	each(100, func(at int) {
		key := keyOf(t, at%10)
		for range 100 {
			ticket, err := c.Acquire(ctx, key, Lease(time.Minute))
			if err != nil {
				t.Error(err)
				return
			}
			if inside[at%10].Add(1) != 1 {
				t.Error("two holders of one key")
			}
			inside[at%10].Add(-1)
			if err := ticket.Release(ctx); err != nil {
				t.Error(err)
			}
		}
	})
	s.expectEmpty()
}

// Cancelled in the very moment of the grant, 1,000 times.
func TestCancelAtTheGrant(t *testing.T) {
	s, ctx := sharedServer(t), testContext(t)
	holder, waiter := s.dial(), s.dial()
	granted := 0
	for round := range 1000 {
		key := keyOf(t, round%7)
		ticket, err := holder.Acquire(ctx, key, Lease(time.Minute))
		must(t, err)
		waiting, cancel := context.WithCancel(ctx)
		ended := make(chan error, 1)
		go func() {
			got, err := waiter.Acquire(waiting, key, Lease(time.Minute))
			if err == nil {
				err = got.Release(ctx)
			}
			ended <- err
		}()
		must(t, waiter.Ping(ctx))
		if round%2 == 0 {
			go cancel()
		}
		must(t, ticket.Release(ctx))
		cancel()
		if err := <-ended; err == nil {
			granted++
		} else if !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
	}
	t.Logf("%d of 1000 were granted first", granted)
	s.expectEmpty()
}

// The server is killed and started again under 100 waiting callers: each is settled exactly once.
func TestRestartUnderWaiters(t *testing.T) {
	s, ctx := startServer(t, nil), testContext(t)
	holder, c := s.dial(), s.dial()
	_, err := holder.Acquire(ctx, "k", Lease(2*time.Minute))
	must(t, err)
	var settled, overlaps, inside atomic.Int32
	done := make(chan struct{})
	go func() {
		defer close(done)
		each(100, func(int) {
			ticket, err := c.Acquire(ctx, "k", Lease(time.Minute))
			if err != nil {
				t.Error(err)
				return
			}
			if inside.Add(1) != 1 {
				overlaps.Add(1)
			}
			settled.Add(1)
			inside.Add(-1)
			if err := ticket.Release(ctx); err != nil {
				t.Error(err)
			}
		})
	}()
	s.eventually("all wait", func() bool { _, waiters := s.counts(); return waiters == 100 })
	s.end(9)
	s.startAgain() // In memory mode a restart forgets the holder, so the first waiter has the key.
	<-done
	if settled.Load() != 100 || overlaps.Load() != 0 {
		t.Fatal(settled.Load(), overlaps.Load())
	}
	s.expectEmpty()
}

// 10,000 clients opened and closed leave no goroutine and no socket.
func TestManyClients(t *testing.T) {
	s, ctx := sharedServer(t), testContext(t)
	must(t, s.dial().Ping(ctx))
	defer expectNoLeak(t)()
	each(20, func(int) {
		for range 500 {
			c, err := Dial(ctx, s.url)
			if err != nil {
				t.Error(err)
				return
			}
			if _, err := c.Acquire(ctx, keyOf(t), WaitTimeout(0)); err != nil && !errors.Is(err, ErrHeld) {
				t.Error(err)
			}
			c.Close()
		}
	})
	s.expectEmpty()
}

// A failed Dial leaves nothing either.
func TestFailedDialsLeaveNothing(t *testing.T) {
	defer expectNoLeak(t)()
	for range 100 {
		_, err := Dial(testContext(t), "ticketing://127.0.0.1:1,127.0.0.1:2")
		expect(t, err, ErrConnection)
	}
}
