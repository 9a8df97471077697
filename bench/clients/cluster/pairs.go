package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// pairsLoad is a closed loop: each caller locks and unlocks its own lock, again and again.
type pairsLoad struct {
	peer                  string
	open                  opener
	connections, inFlight int
	warmup, window        time.Duration
	servers               []int
}

// pairsFigures has the names that the generator in C gives to the same figures.
type pairsFigures struct {
	Protocol      string  `json:"protocol"`
	Job           string  `json:"job"`
	Connections   int     `json:"connections"`
	InFlight      int     `json:"in_flight"`
	Seconds       float64 `json:"seconds"`
	Requests      int     `json:"requests"`
	RequestsPerS  float64 `json:"requests_per_s"`
	Latency       spread  `json:"latency"`
	ServerCPU     float64 `json:"server_cpu_us_per_request"`
	GeneratorCPU  float64 `json:"generator_cpu_us_per_request"`
	VerifiedPairs int     `json:"verified_pairs"`
}

type spread struct {
	Samples int     `json:"samples"`
	P50     float64 `json:"p50_us"`
	P99     float64 `json:"p99_us"`
	P999    float64 `json:"p99_9_us"`
	Max     float64 `json:"max_us"`
}

// caller is one lock and what was seen of it.
type caller struct {
	client locker
	key    string
	token  int64
	pairs  int
	times  []time.Duration
	err    error
}

// moment is read at both ends of the window.
type moment struct {
	at             time.Time
	own, ofServers time.Duration
}

func (p *pairsLoad) run(ctx context.Context, endpoints []string) (*pairsFigures, error) {
	var callers []*caller
	for connection := range p.connections {
		client, err := p.open(ctx, endpoints)
		if err != nil {
			return nil, err
		}
		defer client.close()
		for slot := range p.inFlight {
			key := fmt.Sprintf("bench/%03d/%03d", connection, slot)
			callers = append(callers, &caller{client: client, key: key})
		}
	}
	var measuring, over atomic.Bool
	var group sync.WaitGroup
	for _, each := range callers {
		group.Go(func() { each.loop(ctx, &measuring, &over) })
	}
	time.Sleep(p.warmup)
	from, failed := p.read()
	measuring.Store(true)
	time.Sleep(p.window)
	measuring.Store(false)
	until, failedToo := p.read()
	over.Store(true)
	group.Wait()
	errs := []error{failed, failedToo}
	for _, each := range callers {
		errs = append(errs, each.err)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return p.figures(callers, from, until), nil
}

func (c *caller) loop(ctx context.Context, measuring, over *atomic.Bool) {
	for !over.Load() && c.err == nil {
		c.err = c.pair(ctx, measuring)
	}
}

// pair counts a request whose answer came within the window, as the generator in C does.
func (c *caller) pair(ctx context.Context, measuring *atomic.Bool) error {
	start := time.Now()
	lock, err := c.client.lock(ctx, c.key)
	if err != nil {
		return fmt.Errorf("lock of %s: %w", c.key, err)
	}
	locked := time.Now()
	if measuring.Load() {
		c.times = append(c.times, locked.Sub(start))
	}
	if lock.token != 0 && lock.token <= c.token {
		return fmt.Errorf("lock of %s has token %d after %d; tokens rise", c.key, lock.token, c.token)
	}
	c.token = lock.token
	if err := lock.unlock(ctx); err != nil {
		return fmt.Errorf("unlock of %s: %w", c.key, err)
	}
	if measuring.Load() {
		c.times = append(c.times, time.Since(locked))
	}
	c.pairs++
	return nil
}

func (p *pairsLoad) figures(callers []*caller, from, until moment) *pairsFigures {
	var times []time.Duration
	pairs := 0
	for _, each := range callers {
		times = append(times, each.times...)
		pairs += each.pairs
	}
	slices.Sort(times)
	seconds := until.at.Sub(from.at).Seconds()
	perRequest := func(cpu time.Duration) float64 { return us(cpu) / float64(max(len(times), 1)) }
	return &pairsFigures{
		Protocol:      p.peer,
		Job:           "pairs",
		Connections:   p.connections,
		InFlight:      p.inFlight,
		Seconds:       seconds,
		Requests:      len(times),
		RequestsPerS:  float64(len(times)) / seconds,
		Latency:       spreadOf(times),
		ServerCPU:     perRequest(until.ofServers - from.ofServers),
		GeneratorCPU:  perRequest(until.own - from.own),
		VerifiedPairs: pairs,
	}
}

func us(value time.Duration) float64 { return float64(value.Nanoseconds()) / 1e3 }

func spreadOf(sorted []time.Duration) spread {
	if len(sorted) == 0 {
		return spread{}
	}
	at := func(share float64) float64 { return us(sorted[int(share*float64(len(sorted)-1))]) }
	return spread{len(sorted), at(0.5), at(0.99), at(0.999), at(1)}
}

func (p *pairsLoad) read() (moment, error) {
	now := moment{at: time.Now()}
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		return now, err
	}
	now.own = time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
	for _, pid := range p.servers {
		spent, err := cpuOf(pid)
		if err != nil {
			return now, err
		}
		now.ofServers += spent
	}
	return now, nil
}

// cpuOf is the CPU time of all threads of a process, kernel and user, to the nanosecond.
func cpuOf(pid int) (time.Duration, error) {
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	if err != nil || len(threads) == 0 {
		return 0, fmt.Errorf("no process %d, or no scheduler statistics of it", pid)
	}
	var total int64
	for _, path := range threads {
		text, err := os.ReadFile(path)
		if err != nil {
			continue // The thread ended between the two look-ups.
		}
		var spent int64
		if _, err := fmt.Sscan(string(text), &spent); err != nil {
			return 0, fmt.Errorf("%s: %w", path, err)
		}
		total += spent
	}
	return time.Duration(total), nil
}
