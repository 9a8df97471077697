/** The ticket that programs hold. */

import { inspect } from "node:util";
import { monotonicMs } from "./clock.js";
import { type HeldTicket, lostError, nameOf } from "./core/tickets.js";
import type { Driver } from "./driver.js";
import { InvalidArgumentError, LostError, type LostReason } from "./errors.js";
import type { Key } from "./events.js";
import type { SignalOptions, TicketLike } from "./interfaces.js";
import { checkNames } from "./options.js";

const SIGNAL_ONLY = new Set(["signal"]);

/** Warns about tickets that nobody can release any more. */
const dropped = new FinalizationRegistry<{ driver: Driver; held: HeldTicket }>(
  ({ driver, held }) => {
    if (held.state !== "held") return;
    const ends = held.autoExtend ? "until the client closes" : "until its lease is over";
    driver.logger.warn(`nobody can release the ticket for ${nameOf(held)}: held ${ends}`);
  },
);

/** The signal among a call's options, checked. */
export function signalOf(options: SignalOptions): AbortSignal | undefined {
  const { signal } = options;
  if (signal !== undefined && !(signal instanceof AbortSignal)) {
    throw new InvalidArgumentError("signal takes an AbortSignal");
  }
  return signal;
}

/**
 * A granted acquisition. `await using ticket = …` releases it at the end of the block.
 *
 * A ticket that is garbage-collected is not released: a warning is logged, and it is held on.
 */
export class Ticket implements TicketLike {
  /** A client is not collected while one of its tickets is in use. */
  protected readonly client: object;
  readonly #driver: Driver;
  readonly #held: HeldTicket;
  #signal: AbortSignal | undefined;

  /** Tickets come from a client's calls. */
  constructor(client: object, driver: Driver, held: HeldTicket) {
    this.client = client;
    this.#driver = driver;
    this.#held = held;
    dropped.register(this, { driver, held }, held);
  }

  /** The key as the program gave it, without the client's prefix; of a set the first key. */
  get key(): Key {
    return this.#held.shownKeys[0];
  }

  /** All keys, sorted by their bytes. */
  get keys(): readonly Key[] {
    return this.#held.shownKeys;
  }

  /** The fencing token: strictly rising over all grants. Hand it to what the lock protects. */
  get token(): bigint {
    return this.#held.token;
  }

  /** The lease in milliseconds, as it was asked for. */
  get leaseMs(): number {
    return this.#held.leaseMs;
  }

  /**
   * When the ticket is lost unless it is extended: milliseconds on the clock of `monotonicMs()`.
   *
   * It is a little earlier than the server's own time, and never goes back. REQ-TICKET-EXPIRY
   */
  get expiresAtMs(): number {
    return this.#held.expiresMs;
  }

  /** Milliseconds until `expiresAtMs`; 0 once the ticket is not held any more. */
  get remainingMs(): number {
    if (this.#held.state !== "held") return 0;
    return Math.max(0, this.#held.expiresMs - monotonicMs());
  }

  /** Whether the ticket ended without its release, as far as this client knows. */
  get isLost(): boolean {
    const held = this.#held;
    return held.state === "held" ? monotonicMs() >= held.expiresMs : held.state === "lost";
  }

  /** Why the ticket is lost; undefined while it is not. */
  get lostReason(): LostReason | undefined {
    return this.isLost ? (this.#held.lostReason ?? "expired") : undefined;
  }

  /**
   * Aborts when the ticket is lost, with a LostError as its reason; never after release was called.
   *
   * Hand it to `fetch`, timers and whatever else must not go on without the lock.
   */
  get signal(): AbortSignal {
    if (this.#signal === undefined) {
      const held = this.#held;
      if (this.isLost) {
        this.#signal = AbortSignal.abort(lostError(held));
      } else {
        const controller = new AbortController();
        this.#signal = controller.signal;
        if (held.state === "held") {
          held.listeners.push(() => {
            if (held.state === "lost") controller.abort(lostError(held));
          });
        }
      }
    }
    return this.#signal;
  }

  /**
   * Give the key to the next waiter. Idempotent: called again it does what it did first.
   *
   * Resolves when the server has answered. Rejects with LostError if the ticket was lost before, or
   * if there was no answer by `expiresAtMs` (but at least 1 second); with ClosedError if the client
   * was closed without releasing it. A signal ends only the waiting: the release goes on.
   * REQ-SCOPE-IDEMPOTENT REQ-BOUND-RELEASE
   */
  async release(options: SignalOptions = {}): Promise<void> {
    checkNames("options of release", options, SIGNAL_ONLY);
    const signal = signalOf(options);
    if (signal?.aborted) {
      this.#driver.releaseUnattended(this.#held);
      throw signal.reason;
    }
    dropped.unregister(this.#held);
    await this.#driver.call<void, void>(
      (waiter, nowMs) => this.#driver.core.release(this.#held, waiter, nowMs),
      signal,
    );
  }

  /**
   * Make the lease end `leaseMs` from now, never earlier than it would.
   *
   * Without a lease: the ticket's own. A lease of 1 changes nothing and only asks whether the ticket
   * is held. Rejects with LostError (also when it was lost before: then nothing is sent),
   * NotHeldError after release or handOver, ReplyTimeoutError after `replyTimeoutMs`,
   * InvalidArgumentError. One extend of a ticket is under way at a time, further ones wait. Aborted,
   * it has happened or not.
   */
  async extend(leaseMs?: number, options: SignalOptions = {}): Promise<void> {
    checkNames("options of extend", options, SIGNAL_ONLY);
    const driver = this.#driver;
    await driver.call<void, ReturnType<typeof driver.core.extend>>(
      (waiter, nowMs) => driver.core.extend(this.#held, leaseMs, waiter, nowMs),
      signalOf(options),
      (request) => driver.abandon(request),
    );
  }

  /**
   * End this client's part in the ticket and return a reference that `adopt` takes.
   *
   * The lease goes on and is not extended any more, so adopt before it ends. A reference is for one
   * adopter; the server does not check that. Waits for an extend that is under way. Rejects with
   * LostError and NotHeldError. Aborted before it returns, the ticket stays here.
   */
  async handOver(options: SignalOptions = {}): Promise<string> {
    checkNames("options of handOver", options, SIGNAL_ONLY);
    const driver = this.#driver;
    return driver.call<string, void>(
      (waiter, nowMs) => driver.core.handOver(this.#held, waiter, nowMs),
      signalOf(options),
      (_, waiter) => {
        driver.core.stopHandOver(this.#held, waiter, monotonicMs());
        driver.afterCall();
      },
    );
  }

  /**
   * Release at the end of an `await using` block. Rejects with LostError if the ticket was lost
   * meanwhile; if the block threw too, both are in a SuppressedError. `withTicket` throws the body's
   * error itself.
   */
  async [Symbol.asyncDispose](): Promise<void> {
    try {
      await this.release();
    } catch (error) {
      if (error instanceof LostError) throw error;
      this.#driver.logger.warn(`${this} was not released: ${(error as Error).message}`);
    }
  }

  /** What a log may show; the token is text, because JSON has no integers of its size. */
  toJSON(): { key: string; keys: string[]; token: string; leaseMs: number; isLost: boolean } {
    const keys = this.keys.map((key) =>
      typeof key === "string" ? key : Buffer.from(key).toString("hex"),
    );
    return {
      key: keys[0],
      keys,
      token: `${this.token}`,
      leaseMs: this.leaseMs,
      isLost: this.isLost,
    };
  }

  toString(): string {
    const state = this.isLost ? "lost" : this.#held.state;
    return `Ticket ${nameOf(this.#held)} token=${this.token} ${state}`;
  }

  [inspect.custom](): string {
    return `<${this}>`;
  }
}
