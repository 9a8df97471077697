package main

import (
	"context"
	"errors"
	"time"

	"github.com/go-zookeeper/zk"
)

const sessionTimeout = 30 * time.Second

// zookeeperLocker is one connection with its session, under which all its locks are ephemeral nodes.
type zookeeperLocker struct{ conn *zk.Conn }

func openZookeeper(ctx context.Context, endpoints []string) (locker, error) {
	conn, events, err := zk.Connect(endpoints, sessionTimeout, zk.WithLogInfo(false))
	if err != nil {
		return nil, err
	}
	limit := time.After(dialTimeout)
	for conn.State() != zk.StateHasSession {
		select {
		case <-events:
		case <-limit:
			conn.Close()
			return nil, errors.New("no session of ZooKeeper")
		case <-ctx.Done():
			conn.Close()
			return nil, ctx.Err()
		}
	}
	return &zookeeperLocker{conn}, nil
}

// lock is a sequential node, and one look at those beside it; unlocking deletes the node.
func (z *zookeeperLocker) lock(_ context.Context, key string) (*held, error) {
	lock := zk.NewLock(z.conn, "/"+key, zk.WorldACL(zk.PermAll))
	if err := lock.Lock(); err != nil {
		return nil, err
	}
	return &held{unlock: func(context.Context) error { return lock.Unlock() }}, nil
}

func (z *zookeeperLocker) close() { z.conn.Close() }
