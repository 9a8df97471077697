package main

import (
	"context"
	"fmt"
	"log"

	ticketing "github.com/ticketing-project/ticketing/clients/go"
)

func main() {
	ctx := context.Background()
	client, err := ticketing.Dial(ctx, "")
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()

	err = client.WithTicket(ctx, "orders/42", func(ctx context.Context, ticket *ticketing.Ticket) error {
		fmt.Printf("I hold %s with token %d\n", ticket.Key(), ticket.Token())
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
}
