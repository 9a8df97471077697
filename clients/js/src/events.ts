/** What the `onEvent` hook is called with: one small object per event. */

import type { LostReason } from "./errors.js";

/** A key as the program gave it: text (sent as UTF-8) or bytes. */
export type Key = string | Uint8Array;

/** An acquire was granted, `waitedMs` after the call. */
export interface GrantedEvent {
  readonly kind: "granted";
  readonly keys: readonly Key[];
  readonly token: bigint;
  readonly waitedMs: number;
}

/** A wait ended without a grant, `waitedMs` after the call. */
export interface TimedOutEvent {
  readonly kind: "timed_out";
  readonly keys: readonly Key[];
  readonly waitedMs: number;
}

/** A ticket was released after it was held for `heldMs`. */
export interface ReleasedEvent {
  readonly kind: "released";
  readonly keys: readonly Key[];
  readonly token: bigint;
  readonly heldMs: number;
}

/** A ticket's lease goes on; `remainingMs` are left of it. */
export interface ExtendedEvent {
  readonly kind: "extended";
  readonly keys: readonly Key[];
  readonly token: bigint;
  readonly remainingMs: number;
}

/** A ticket ended without its holder's release. */
export interface LostEvent {
  readonly kind: "lost";
  readonly keys: readonly Key[];
  readonly token: bigint;
  readonly reason: LostReason;
}

/** A server that serves requests was reached and has proved that it knows the secret. */
export interface ConnectedEvent {
  readonly kind: "connected";
  readonly address: string;
}

/** The connection ended; the client reconnects by itself unless it was closed. */
export interface DisconnectedEvent {
  readonly kind: "disconnected";
  readonly address: string;
  readonly reason: string;
}

/** What happened, told apart by `kind`; the kinds are the same words in every language. */
export type TicketingEvent =
  | GrantedEvent
  | TimedOutEvent
  | ReleasedEvent
  | ExtendedEvent
  | LostEvent
  | ConnectedEvent
  | DisconnectedEvent;
