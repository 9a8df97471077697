/** What programs may depend on instead of the classes, so that their tests can replace them. */

import type { WaitTimeout } from "./core/arguments.js";
import type { LostReason } from "./errors.js";
import type { Key } from "./events.js";

/** What every call takes. */
export interface SignalOptions {
  /** Cancels the call, which rejects with the signal's reason. */
  readonly signal?: AbortSignal | undefined;
}

/** What tryAcquire and adopt take. */
export interface TryOptions extends SignalOptions {
  /** How long the ticket lasts, in milliseconds. Left out: the client's default, else 30,000. */
  readonly leaseMs?: number | undefined;
  /** Whether the lease is extended while it is held. Left out: yes without a lease, else no. */
  readonly autoExtend?: boolean | undefined;
}

/** What acquire, acquireSet and withTicket take. */
export interface AcquireOptions extends TryOptions {
  /**
   * How long to wait, in milliseconds; 0 does not wait, `"forever"` never ends. Left out: the
   * client's default, else for ever.
   */
  readonly waitTimeoutMs?: WaitTimeout | undefined;
}

/** A granted acquisition; `Ticket` tells what each member does. */
export interface TicketLike extends AsyncDisposable {
  readonly key: Key;
  readonly keys: readonly Key[];
  readonly token: bigint;
  readonly leaseMs: number;
  readonly expiresAtMs: number;
  readonly remainingMs: number;
  readonly isLost: boolean;
  readonly lostReason: LostReason | undefined;
  readonly signal: AbortSignal;
  release(options?: SignalOptions): Promise<void>;
  extend(leaseMs?: number, options?: SignalOptions): Promise<void>;
  handOver(options?: SignalOptions): Promise<string>;
}

/** A client; `Client` tells what each member does. */
export interface ClientLike extends AsyncDisposable {
  withTicket<T>(
    key: Key | readonly Key[],
    body: (ticket: TicketLike) => T | PromiseLike<T>,
  ): Promise<T>;
  withTicket<T>(
    key: Key | readonly Key[],
    options: AcquireOptions,
    body: (ticket: TicketLike) => T | PromiseLike<T>,
  ): Promise<T>;
  acquire(key: Key, options?: AcquireOptions): Promise<TicketLike>;
  acquireSet(keys: Iterable<Key>, options?: AcquireOptions): Promise<TicketLike>;
  tryAcquire(key: Key, options?: TryOptions): Promise<TicketLike | null>;
  adopt(reference: string, options?: TryOptions): Promise<TicketLike>;
  ping(options?: SignalOptions): Promise<void>;
  close(): Promise<void>;
}
