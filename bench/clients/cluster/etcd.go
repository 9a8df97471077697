package main

import (
	"context"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/zap"
)

const dialTimeout = 5 * time.Second

// etcdLocker is one connection to each endpoint, and one session: the lease under all locks taken through it.
type etcdLocker struct {
	client  *clientv3.Client
	session *concurrency.Session
}

func openEtcd(ctx context.Context, endpoints []string) (locker, error) {
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
		return nil, fmt.Errorf("no session of etcd: %w", err)
	}
	return &etcdLocker{client, session}, nil
}

// lock is a transaction where the lock is free; unlocking deletes its key.
func (e *etcdLocker) lock(ctx context.Context, key string) (*held, error) {
	mutex := concurrency.NewMutex(e.session, key)
	if err := mutex.Lock(ctx); err != nil {
		return nil, err
	}
	return &held{unlock: mutex.Unlock, token: mutex.Header().Revision}, nil
}

func (e *etcdLocker) close() { e.client.Close() }
