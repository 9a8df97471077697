/** What the core asks its shell to do. The shell carries effects out in the order of the list. */

import type { TicketingError } from "../errors.js";
import type { TicketingEvent } from "../events.js";
import type { HeldTicket } from "./tickets.js";
import type { Endpoint } from "./urls.js";

/** What the shell hands in with a call, and gets back with the call's result. */
export interface Waiter {
  settle(value: unknown, error: TicketingError | undefined): void;
}

export type Effect =
  /** A call has its result. */
  | { kind: "settled"; waiter: Waiter; value: unknown; error: TicketingError | undefined }
  /** Open a connection; report with `connected` or `disconnected` under this serial. */
  | { kind: "connect"; serial: number; endpoint: Endpoint }
  /** Drop the connection or attempt of this serial, without sending what is still unsent. */
  | { kind: "disconnect"; serial: number }
  /** A ticket with listeners was lost, or ended otherwise; call them. */
  | { kind: "ticket_ended"; ticket: HeldTicket }
  /** Call the program's event hook. */
  | { kind: "notify"; event: TicketingEvent }
  /** Write a line to the logger. */
  | { kind: "log"; level: LogLevel; text: string }
  /** The client has ended; let go of timers and sockets. */
  | { kind: "closed" };

/** Names of a logger's methods, as `console` has them. */
export type LogLevel = "debug" | "info" | "warn";
