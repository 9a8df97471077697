// Drives a cluster for the bench, which starts and restarts the nodes itself, and prints one JSON object.
//
//	cluster pairs     locks and unlocks on etcd or ZooKeeper over many connections, each caller its own
//	                  lock; the generator in C does the same to Ticketing
//	cluster failover  kills the leader under load, on etcd or Ticketing, and measures how long the
//	                  waiter at the head of a queue goes without its lock
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "cluster:", err)
		os.Exit(1)
	}
}

func run(arguments []string) error {
	if len(arguments) == 0 {
		return errors.New("it takes pairs or failover, then options")
	}
	var figures any
	var err error
	switch arguments[0] {
	case "pairs":
		figures, err = pairsCommand(arguments[1:])
	case "failover":
		figures, err = failoverCommand(arguments[1:])
	default:
		return fmt.Errorf("it takes pairs or failover, not %q", arguments[0])
	}
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(figures)
}

func pairsCommand(arguments []string) (*pairsFigures, error) {
	flags := flag.NewFlagSet("pairs", flag.ExitOnError)
	peer := flags.String("peer", "etcd", "etcd, zookeeper or ticketing")
	endpoints := flags.String("endpoints", "", "the leader's `HOST:PORT`")
	connections := flags.Int("connections", 64, "connections, each with a session of its own")
	inFlight := flags.Int("in-flight", 16, "callers of each connection, each with a lock of its own")
	warmup := flags.Duration("warmup", time.Second, "before it measures")
	window := flags.Duration("time", 2*time.Second, "how long it measures")
	servers := flags.String("server-pids", "", "the nodes' processes, with commas between, to report their CPU time")
	if err := flags.Parse(arguments); err != nil {
		return nil, err
	}
	pids, err := numbers(*servers)
	if err != nil {
		return nil, err
	}
	open, err := openerOf(*peer)
	if err != nil {
		return nil, err
	}
	load := &pairsLoad{
		peer: *peer, open: open, connections: *connections, inFlight: *inFlight, warmup: *warmup, window: *window, servers: pids,
	}
	return load.run(context.Background(), strings.Split(*endpoints, ","))
}

func failoverCommand(arguments []string) (*failoverFigures, error) {
	flags := flag.NewFlagSet("failover", flag.ExitOnError)
	peer := flags.String("peer", "ticketing", "etcd or ticketing")
	endpoints := flags.String("endpoints", "", "`HOST:PORT` of every node, with commas between")
	leader := flags.Int("leader-pid", 0, "the leader's process, which is killed")
	callers := flags.Int("callers", 16, "callers that lock and unlock meanwhile, each its own lock, on one connection")
	settle := flags.Duration("settle", time.Second, "how long the load runs and the waiter queues before the kill")
	unlockTimeout := flags.Duration("unlock-timeout", 0, "after which the holder asks once more; 0 leaves that to the library")
	limit := flags.Duration("limit", 30*time.Second, "when to give up")
	if err := flags.Parse(arguments); err != nil {
		return nil, err
	}
	if *leader <= 1 {
		return nil, fmt.Errorf("-leader-pid is %d; it takes the process of the leader", *leader)
	}
	ctx, cancel := context.WithTimeout(context.Background(), *limit)
	defer cancel()
	open, err := openerOf(*peer)
	if err != nil {
		return nil, err
	}
	kill := &failover{callers: *callers, settle: *settle, leader: *leader, unlockTimeout: *unlockTimeout}
	kill.open = func() (locker, error) { return open(ctx, strings.Split(*endpoints, ",")) }
	return kill.run(ctx)
}

func numbers(text string) ([]int, error) {
	var all []int
	for word := range strings.SplitSeq(text, ",") {
		if word == "" {
			continue
		}
		number, err := strconv.Atoi(word)
		if err != nil {
			return nil, fmt.Errorf("-server-pids is %q; it takes numbers with commas between", text)
		}
		all = append(all, number)
	}
	return all, nil
}
