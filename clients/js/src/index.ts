/**
 * The JavaScript and TypeScript client of Ticketing, the distributed lock.
 *
 *     const client = await connect();
 *     await client.withTicket("orders/42", async (ticket) => { … });
 *
 * Times are milliseconds, tokens are bigints.
 */

export { Client, connect } from "./client.js";
export { monotonicMs } from "./clock.js";
export { FOREVER, type WaitTimeout } from "./core/arguments.js";
export {
  AuthError,
  ClosedError,
  ConnectionFailedError,
  type ErrorKind,
  HeldError,
  InvalidArgumentError,
  LostError,
  type LostReason,
  NotHeldError,
  OverloadedError,
  ProtocolError,
  ReplyTimeoutError,
  TicketingError,
  WaitTimeoutError,
} from "./errors.js";
export type * from "./events.js";
export type * from "./interfaces.js";
export { type ClientOptions, type Logger, type TlsOptions, VERSION } from "./options.js";
export { Ticket } from "./ticket.js";
