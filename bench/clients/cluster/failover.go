package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

const retryAfter = 5 * time.Millisecond

// failover is one kill. A holder, a waiter behind it, and callers that load the cluster have a client each.
type failover struct {
	open          func() (locker, error)
	callers       int
	settle        time.Duration
	leader        int
	unlockTimeout time.Duration
}

type failoverFigures struct {
	// From just before the kill of the leader to the waiter's lock; the holder unlocks right after the kill.
	Seconds float64 `json:"seconds"`
	// How often the waiter's and the holder's library gave up and had to be called again.
	WaiterErrors int `json:"waiter_errors"`
	HolderErrors int `json:"holder_errors"`
	// Pairs per second of the callers before the kill.
	LoadPerS float64 `json:"load_pairs_per_s"`
}

func (f *failover) run(ctx context.Context) (*failoverFigures, error) {
	var clients [3]locker
	for at := range clients {
		client, err := f.open()
		if err != nil {
			return nil, err
		}
		defer client.close()
		clients[at] = client
	}
	holder, waiter, loaded := clients[0], clients[1], clients[2]
	const key = "bench/failover"
	lock, err := holder.lock(ctx, key)
	if err != nil {
		return nil, fmt.Errorf("holder: %w", err)
	}

	var pairs atomic.Int64
	loadCtx, stopLoad := context.WithCancel(ctx)
	var group sync.WaitGroup
	for caller := range f.callers {
		group.Go(func() { keepLoading(loadCtx, loaded, fmt.Sprintf("bench/load/%03d", caller), &pairs) })
	}
	defer group.Wait()
	defer stopLoad()

	var figures failoverFigures
	granted := make(chan time.Time, 1)
	group.Go(func() { f.wait(loadCtx, waiter, key, granted, &figures) })
	time.Sleep(f.settle)
	if len(granted) > 0 {
		return nil, errors.New("the waiter has the lock although the holder has not unlocked")
	}
	figures.LoadPerS = float64(pairs.Load()) / f.settle.Seconds()

	start := time.Now()
	if err := syscall.Kill(f.leader, syscall.SIGKILL); err != nil {
		return nil, fmt.Errorf("kill of process %d: %w", f.leader, err)
	}
	if figures.HolderErrors, err = until(ctx, f.unlockOf(lock)); err != nil {
		return nil, fmt.Errorf("holder: %w", err)
	}
	select {
	case at := <-granted:
		figures.Seconds = at.Sub(start).Seconds()
	case <-ctx.Done():
		return nil, errors.New("the waiter never had the lock")
	}
	return &figures, nil
}

// unlockOf limits an attempt where the library would stay with one that a dead leader never answers.
func (f *failover) unlockOf(lock *held) func(context.Context) error {
	if f.unlockTimeout == 0 {
		return lock.unlock
	}
	return func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, f.unlockTimeout)
		defer cancel()
		return lock.unlock(ctx)
	}
}

// wait locks, and unlocks at once.
func (f *failover) wait(ctx context.Context, waiter locker, key string, granted chan<- time.Time, figures *failoverFigures) {
	var lock *held
	failures, err := until(ctx, func(ctx context.Context) (err error) {
		lock, err = waiter.lock(ctx, key)
		return err
	})
	if err != nil {
		return
	}
	figures.WaiterErrors = failures
	granted <- time.Now()
	until(ctx, f.unlockOf(lock))
}

// keepLoading locks and unlocks until it is stopped, whatever fails meanwhile.
func keepLoading(ctx context.Context, client locker, key string, pairs *atomic.Int64) {
	for ctx.Err() == nil {
		lock, err := client.lock(ctx, key)
		if err != nil {
			time.Sleep(retryAfter)
			continue
		}
		if lock.unlock(ctx) == nil {
			pairs.Add(1)
		}
	}
}

// until calls again what fails, until it succeeds or the time is over; how often it failed.
func until(ctx context.Context, do func(context.Context) error) (failures int, err error) {
	for {
		if err = do(ctx); err == nil {
			return failures, nil
		}
		failures++
		select {
		case <-ctx.Done():
			return failures, err
		case <-time.After(retryAfter):
		}
	}
}
