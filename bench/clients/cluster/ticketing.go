package main

import (
	"context"
	"strings"

	ticketing "github.com/ticketing-project/ticketing/clients/go"
)

// ticketingLocker is a client with its one connection; the secret is in TICKETING_SECRET.
type ticketingLocker struct{ client *ticketing.Client }

func openTicketing(ctx context.Context, endpoints []string) (locker, error) {
	client, err := ticketing.Dial(ctx, "ticketing://"+strings.Join(endpoints, ","))
	if err != nil {
		return nil, err
	}
	return &ticketingLocker{client}, nil
}

// lock sends again by itself what a lost leader left unanswered, as does its release.
func (t *ticketingLocker) lock(ctx context.Context, key string) (*held, error) {
	ticket, err := t.client.Acquire(ctx, key)
	if err != nil {
		return nil, err
	}
	return &held{unlock: ticket.Release, token: int64(ticket.Token())}, nil
}

func (t *ticketingLocker) close() { t.client.Close() }
