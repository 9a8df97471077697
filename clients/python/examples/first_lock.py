import ticketing.sync as ticketing

with ticketing.connect() as client:
    with client.acquire("orders/42") as ticket:
        print(f"I hold {ticket.key} with token {ticket.token}")
