// Measures the Go client beside go-redis: pairs of acquire and release per second on one connection with
// many callers, each on a key of its own. The peer does the usual lock of Redis: SET NX PX, and a
// script that deletes the key if it still has the caller's value. Both servers are started here, run on
// this machine, and take turns in each round.
//
//	go run . -server "python3 -m ticketing_server"
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	ticketing "github.com/ticketing-project/ticketing/clients/go"
)

const (
	lease       = 30 * time.Second
	startBudget = 60 * time.Second
)

var deleteIfOwn = redis.NewScript(`if redis.call("get", KEYS[1]) == ARGV[1] then return redis.call("del", KEYS[1]) end return 0`)

// pair acquires and releases once, and fails where either did not do what it should.
type pair func(ctx context.Context, caller int) error

// contestant is one way to do the job.
type contestant struct {
	name  string
	pair  pair
	rates []float64
}

func main() {
	server := flag.String("server", "python3 -m ticketing_server", "the command that starts the lock server")
	rounds := flag.Int("rounds", 5, "how often each is measured")
	duration := flag.Duration("time", 2*time.Second, "how long a measurement lasts")
	callers := flag.Int("callers", 64, "how many callers share the connection")
	flag.Parse()
	if err := run(*server, *rounds, *duration, *callers); err != nil {
		log.Fatal(err)
	}
}

func run(server string, rounds int, duration time.Duration, callers int) error {
	dir, err := os.MkdirTemp("", "ticketing-bench")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	url, stopServer, err := startTicketing(server, dir)
	if err != nil {
		return err
	}
	defer stopServer()
	address, stopRedis, err := startRedis(dir)
	if err != nil {
		return err
	}
	defer stopRedis()

	ctx := context.Background()
	client, err := ticketing.Dial(ctx, url)
	if err != nil {
		return err
	}
	defer client.Close()
	one := redis.NewClient(&redis.Options{Addr: address, PoolSize: 1, PoolTimeout: time.Minute})
	defer one.Close()
	piped := redis.NewClient(&redis.Options{Addr: address, PoolSize: 1, PipelinePoolSize: 1, PoolTimeout: time.Minute})
	defer piped.Close()
	batching, err := piped.AutoPipeline()
	if err != nil {
		return err
	}
	defer batching.Close()

	contestants := []*contestant{
		{name: "ticketing", pair: ticketingPair(client)},
		{name: "go-redis", pair: redisPair(one)},
		{name: "go-redis, AutoPipeline (experimental)", pair: redisPair(batching)},
	}
	for round := range rounds + 1 {
		for _, c := range contestants {
			rate, err := measure(ctx, c.pair, callers, duration)
			if err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
			if round > 0 { // The first round only warms up.
				c.rates = append(c.rates, rate)
			}
		}
	}
	report(contestants, rounds, duration, callers)
	return nil
}

func ticketingPair(client *ticketing.Client) pair {
	return func(ctx context.Context, caller int) error {
		ticket, err := client.Acquire(ctx, key(caller), ticketing.Lease(lease))
		if err != nil {
			return err
		}
		return ticket.Release(ctx)
	}
}

// redisCommands is what both faces of go-redis have.
type redisCommands interface {
	redis.Scripter
	SetNX(ctx context.Context, key string, value any, expiration time.Duration) *redis.BoolCmd
}

func redisPair(commands redisCommands) pair {
	return func(ctx context.Context, caller int) error {
		owner := fmt.Sprint("owner-", caller)
		taken, err := commands.SetNX(ctx, key(caller), owner, lease).Result()
		if err != nil || !taken {
			return errors.Join(err, fmt.Errorf("SET NX: %v", taken))
		}
		deleted, err := deleteIfOwn.Run(ctx, commands, []string{key(caller)}, owner).Int()
		if err != nil || deleted != 1 {
			return errors.Join(err, fmt.Errorf("the script deleted %d", deleted))
		}
		return nil
	}
}

func key(caller int) string { return fmt.Sprintf("bench/%04d", caller) }

// measure is pairs per second of all callers together.
func measure(ctx context.Context, do pair, callers int, duration time.Duration) (float64, error) {
	var over atomic.Bool
	counts, failures := make([]int, callers), make([]error, callers)
	var group sync.WaitGroup
	start := time.Now()
	for caller := range callers {
		group.Add(1)
		go func() {
			defer group.Done()
			for !over.Load() && failures[caller] == nil {
				failures[caller] = do(ctx, caller)
				counts[caller]++
			}
		}()
	}
	time.Sleep(duration)
	over.Store(true)
	group.Wait()
	total := 0
	for _, count := range counts {
		total += count
	}
	return float64(total) / time.Since(start).Seconds(), errors.Join(failures...)
}

func report(contestants []*contestant, rounds int, duration time.Duration, callers int) {
	fmt.Printf("pairs/s, one connection, %d callers, %d rounds of %v; %s, %s/%s, %d CPUs\n\n",
		callers, rounds, duration, runtime.Version(), runtime.GOOS, runtime.GOARCH, runtime.NumCPU())
	fmt.Println("| | median | min | max | ticketing × it, median of rounds |")
	fmt.Println("| --- | --- | --- | --- | --- |")
	ours := contestants[0].rates
	for _, c := range contestants {
		ratios := make([]float64, len(c.rates))
		for at, rate := range c.rates {
			ratios[at] = ours[at] / rate
		}
		fmt.Printf("| %s | %.0f | %.0f | %.0f | %.2f |\n",
			c.name, median(c.rates), slices.Min(c.rates), slices.Max(c.rates), median(ratios))
	}
}

func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[len(sorted)/2]
}

// Servers.

func startTicketing(command, dir string) (url string, stop func(), err error) {
	readyFile := filepath.Join(dir, "ready")
	words := append(strings.Fields(command), "--listen", "127.0.0.1:0", "--ready-file", readyFile)
	stop, err = start(words, func() bool {
		text, err := os.ReadFile(readyFile)
		for _, line := range strings.Split(string(text), "\n") {
			if value, found := strings.CutPrefix(line, "url="); found {
				url = value
			}
		}
		return err == nil && strings.Contains(string(text), "pid=")
	})
	return url, stop, err
}

func startRedis(dir string) (address string, stop func(), err error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	address = listener.Addr().String()
	listener.Close()
	_, port, _ := net.SplitHostPort(address)
	words := []string{"redis-server", "--port", port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", dir}
	stop, err = start(words, func() bool {
		conn, err := net.Dial("tcp", address)
		if err == nil {
			conn.Close()
		}
		return err == nil
	})
	return address, stop, err
}

// start starts a process and waits until it is ready.
func start(words []string, ready func() bool) (stop func(), err error) {
	process := exec.Command(words[0], words[1:]...)
	if err := process.Start(); err != nil {
		return nil, err
	}
	stop = func() {
		process.Process.Kill()
		process.Wait()
	}
	for deadline := time.Now().Add(startBudget); !ready(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			stop()
			return nil, fmt.Errorf("%v is not ready after %v", words, startBudget)
		}
	}
	return stop, nil
}
