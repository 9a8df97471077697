import asyncio

import ticketing


async def main() -> None:
    async with ticketing.connect() as client, client.acquire("orders/42") as ticket:
        print(f"I hold {ticket.key} with token {ticket.token}")


asyncio.run(main())
