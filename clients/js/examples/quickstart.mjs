import { connect } from "ticketing-client";

const client = await connect();
await client.withTicket("orders/42", async (ticket) => {
  console.log(`I hold ${ticket.key} with token ${ticket.token}`);
});
await client.close();
