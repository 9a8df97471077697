package main

import (
	"context"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/zap"
)

const (
	dialTimeout = 5 * time.Second
	// A follower loses what it forwards to a leader that is dead, and tells its client after 7 s. A caller that
	// wants its lock gone sooner has to ask again, as here.
	unlockTimeout = 250 * time.Millisecond
)

// etcdLocker is one connection to each endpoint, and one session: the lease under all locks taken through it.
type etcdLocker struct {
	client  *clientv3.Client
	session *concurrency.Session
}

func dialEtcd(ctx context.Context, endpoints []string) (*etcdLocker, error) {
	client, err := clientv3.New(clientv3.Config{
		Endpoints:   endpoints,
		DialTimeout: dialTimeout,
		Logger:      zap.NewNop(),
		Context:     ctx,
	})
	if err != nil {
		return nil, err
	}
	session, err := concurrency.NewSession(client)
	if err != nil {
		client.Close()
		return nil, fmt.Errorf("no session: %w", err)
	}
	return &etcdLocker{client, session}, nil
}

func openEtcd(ctx context.Context, endpoints []string) (locker, error) {
	return dialEtcd(ctx, endpoints)
}

func (e *etcdLocker) lock(ctx context.Context, key string) (unlocker, error) {
	mutex := concurrency.NewMutex(e.session, key)
	if err := mutex.Lock(ctx); err != nil {
		return nil, err
	}
	return func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, unlockTimeout)
		defer cancel()
		return mutex.Unlock(ctx)
	}, nil
}

func (e *etcdLocker) close() { e.client.Close() }
