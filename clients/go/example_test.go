package ticketing_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	ticketing "github.com/ticketing-project/ticketing/clients/go"
)

// charge is a program's own function that needs a lock.
func charge(ctx context.Context, locker ticketing.Locker, order string) error {
	return locker.WithTicket(ctx, "orders/"+order, func(ctx context.Context, ticket *ticketing.Ticket) error {
		fmt.Printf("charging under token %d\n", ticket.Token())
		return ctx.Err()
	})
}

// oneTicket is a fake of a program's tests: it has one ticket for whoever asks.
type oneTicket struct {
	ticketing.Locker
	ticket *ticketing.Ticket
}

func (o oneTicket) WithTicket(ctx context.Context, _ string, body func(context.Context, *ticketing.Ticket) error, _ ...ticketing.AcquireOption) error {
	ctx, cancel := o.ticket.Context(ctx)
	defer cancel()
	return errors.Join(body(ctx, o.ticket), o.ticket.Release(ctx))
}

func ExampleFakeTicket() {
	ticket, _ := ticketing.FakeTicket(7, "orders/42")
	fmt.Println(charge(context.Background(), oneTicket{ticket: ticket}, "42"))
	// Output:
	// charging under token 7
	// <nil>
}

func ExampleTicket_Context() {
	ticket, lose := ticketing.FakeTicket(7, "orders/42")
	ctx, cancel := ticket.Context(context.Background())
	defer cancel()
	lose()
	<-ctx.Done()
	fmt.Println(errors.Is(context.Cause(ctx), ticketing.ErrLost))
	fmt.Println(ticket.Release(context.Background()))
	// Output:
	// true
	// ticketing: the ticket for "orders/42" with token 7 is lost (operator)
}

func ExampleDial() {
	ctx := context.Background()
	_, err := ticketing.Dial(ctx, "ticketing://127.0.0.1:5225", ticketing.Lease(-time.Second))
	fmt.Println(errors.Is(err, ticketing.ErrInvalidArgument))
	fmt.Println(err)
	// Output:
	// true
	// ticketing: the lease is -1s: it takes nothing negative
}

func ExampleClient_TryAcquire() {
	run := func(ctx context.Context, client *ticketing.Client) error {
		ticket, err := client.TryAcquire(ctx, "nightly", ticketing.Lease(time.Minute))
		if errors.Is(err, ticketing.ErrHeld) {
			return nil // Somebody else is at it.
		}
		if err != nil {
			return err
		}
		return ticket.Release(ctx)
	}
	_ = run
}
