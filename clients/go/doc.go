// Package ticketing is the Go client of Ticketing, the distributed lock: at most one holder of a key at
// a time, first come, first served, with a fencing token for each grant.
//
//	client, err := ticketing.Dial(ctx, "")
//	if err != nil {
//		return err
//	}
//	defer client.Close()
//	err = client.WithTicket(ctx, "orders/42", func(ctx context.Context, ticket *ticketing.Ticket) error {
//		return charge(ctx, ticket.Token())
//	})
//
// Every name may be used from any goroutine, unless it says something else.
package ticketing
