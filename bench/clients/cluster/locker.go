package main

import (
	"context"
	"fmt"
)

// locker is what the measurements need of a client library. Its connections end with close.
type locker interface {
	lock(ctx context.Context, key string) (*held, error)
	close()
}

// held is a lock that its caller has.
type held struct {
	unlock func(context.Context) error
	token  int64 // Rises with each holder of a key; 0 where the library tells none.
}

type opener func(ctx context.Context, endpoints []string) (locker, error)

func openerOf(peer string) (opener, error) {
	switch peer {
	case "etcd":
		return openEtcd, nil
	case "zookeeper":
		return openZookeeper, nil
	case "ticketing":
		return openTicketing, nil
	}
	return nil, fmt.Errorf("-peer is %q; it takes etcd, zookeeper or ticketing", peer)
}
