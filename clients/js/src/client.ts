/** The client that programs use. */

import { monotonicMs } from "./clock.js";
import { type NamedKey, namedKey, namedSet, shown } from "./core/arguments.js";
import type { Request } from "./core/requests.js";
import type { HeldTicket } from "./core/tickets.js";
import { Driver } from "./driver.js";
import { HeldError, InvalidArgumentError, LostError } from "./errors.js";
import type { Key } from "./events.js";
import type { AcquireOptions, ClientLike, SignalOptions, TryOptions } from "./interfaces.js";
import { type ClientOptions, checkNames, coreSettings, targetOf, transportOf } from "./options.js";
import { signalOf, Ticket } from "./ticket.js";

const PING_NAMES = new Set(["signal"]);
const TRY_NAMES = new Set(["leaseMs", "autoExtend", "signal"]);
const ACQUIRE_NAMES = new Set(["leaseMs", "waitTimeoutMs", "autoExtend", "signal"]);

/** Closes clients that nobody can close any more. */
const dropped = new FinalizationRegistry<Driver>((driver) => {
  if (driver.core.isClosed) return;
  driver.logger.warn("a client was dropped without close(); its tickets are released");
  driver.closeUnattended();
});

/**
 * A client of one server or cluster, made by `connect`.
 *
 * It has one connection, on which any number of calls are under way at once. It keeps the process
 * alive only while a call has no result.
 */
export class Client implements ClientLike {
  readonly #driver: Driver;

  /** Clients come from `connect`. */
  constructor(driver: Driver) {
    this.#driver = driver;
    dropped.register(this, driver, driver);
  }

  /**
   * Acquire a key, or with an array of keys a set; run the body with the ticket; release it.
   *
   * Resolves with what the body returns. When the ticket is lost meanwhile, `ticket.signal` aborts,
   * and at the end of the body this rejects with LostError; an error of the body itself always
   * goes first, unless it is the abort that the loss brought. An aborted `signal` ends the wait for
   * the key; in the body it is the body's to heed. Otherwise as `acquire`.
   * REQ-SCOPE-REPORT REQ-SCOPE-NOMASK
   */
  withTicket<T>(
    key: Key | readonly Key[],
    body: (ticket: Ticket) => T | PromiseLike<T>,
  ): Promise<T>;
  withTicket<T>(
    key: Key | readonly Key[],
    options: AcquireOptions,
    body: (ticket: Ticket) => T | PromiseLike<T>,
  ): Promise<T>;
  async withTicket<T>(
    key: Key | readonly Key[],
    ...rest: [AcquireOptions | ((ticket: Ticket) => T | PromiseLike<T>), unknown?]
  ): Promise<T> {
    const body = rest.pop();
    if (typeof body !== "function") throw new InvalidArgumentError("withTicket takes a function");
    const options = (rest[0] ?? {}) as AcquireOptions;
    const ticket = await (Array.isArray(key)
      ? this.acquireSet(key, options)
      : this.acquire(key as Key, options));
    const { signal } = ticket;
    let result: T;
    try {
      result = await body(ticket);
    } catch (error) {
      if (options.signal?.aborted || signal.aborted) this.#releaseSoon(ticket);
      else await this.#releaseAfterError(ticket);
      if (isAbortOf(signal, error)) throw signal.reason;
      throw error;
    }
    await ticket.release();
    return result;
  }

  /** The body failed, and its error goes on: nothing may hide it. */
  async #releaseAfterError(ticket: Ticket): Promise<void> {
    try {
      await ticket.release();
    } catch (error) {
      this.#driver.logger.warn(`${(error as Error).message}; the error of the body goes on`);
    }
  }

  /** The body was cancelled: nothing may hold it up. */
  #releaseSoon(ticket: Ticket): void {
    void this.#releaseAfterError(ticket);
  }

  /**
   * Acquire a key: 1 to 128 bytes with the client's prefix, text (sent as UTF-8) or bytes.
   *
   * Rejects with WaitTimeoutError (HeldError with a wait of 0), OverloadedError, AuthError, LostError
   * (granted, but read too late), InvalidArgumentError, ClosedError; a wait of 0 also with
   * ReplyTimeoutError. A wait goes on over a lost connection and keeps its place. Aborting at any
   * moment rejects with the signal's reason and leaves neither a waiter nor a ticket behind.
   * REQ-STOP-CLEAN REQ-TICKET-LATE
   */
  async acquire(key: Key, options: AcquireOptions = {}): Promise<Ticket> {
    checkNames("options of acquire", options, ACQUIRE_NAMES);
    return this.#acquire([namedKey(key, this.#driver.core.settings.keyPrefix)], options);
  }

  /**
   * Acquire up to 16 different keys together, all or nothing, as one ticket.
   *
   * Otherwise as `acquire`. Sets that overlap never deadlock. A set waits for all its keys in strict
   * turn, and keeps those that are free from later comers.
   */
  async acquireSet(keys: Iterable<Key>, options: AcquireOptions = {}): Promise<Ticket> {
    checkNames("options of acquireSet", options, ACQUIRE_NAMES);
    return this.#acquire(namedSet(keys, this.#driver.core.settings.keyPrefix), options);
  }

  /** Acquire a key if it is free now, else resolve with null. Otherwise as `acquire`. */
  async tryAcquire(key: Key, options: TryOptions = {}): Promise<Ticket | null> {
    checkNames("options of tryAcquire", options, TRY_NAMES);
    const keys = [namedKey(key, this.#driver.core.settings.keyPrefix)];
    try {
      return await this.#acquire(keys, { ...options, waitTimeoutMs: 0 });
    } catch (error) {
      if (error instanceof HeldError) return null;
      throw error;
    }
  }

  async #acquire(keys: readonly NamedKey[], options: AcquireOptions): Promise<Ticket> {
    const driver = this.#driver;
    const held = await driver.call<HeldTicket, Request>(
      (waiter, nowMs) => driver.core.acquire(keys, options, waiter, nowMs),
      signalOf(options),
      (request) => driver.abandon(request),
    );
    return new Ticket(this, driver, held);
  }

  /**
   * Take over a ticket that another client handed over, and extend it by the lease.
   *
   * `reference` is what `handOver` returned; the client's keyPrefix is not added to it. Rejects with
   * NotHeldError if it has ended, ReplyTimeoutError, InvalidArgumentError, ClosedError. Aborted, it
   * leaves the ticket as it is, or releases it if it had arrived.
   */
  async adopt(reference: string, options: TryOptions = {}): Promise<Ticket> {
    checkNames("options of adopt", options, TRY_NAMES);
    const driver = this.#driver;
    const held = await driver.call<HeldTicket, Request>(
      (waiter, nowMs) => driver.core.adopt(reference, options, waiter, nowMs),
      signalOf(options),
      (request) => driver.abandon(request),
    );
    return new Ticket(this, driver, held);
  }

  /** Ask the server for a sign of life. Rejects with ReplyTimeoutError, AuthError, ClosedError. */
  async ping(options: SignalOptions = {}): Promise<void> {
    checkNames("options of ping", options, PING_NAMES);
    const driver = this.#driver;
    await driver.call<void, Request>(
      (waiter, nowMs) => driver.core.ping(waiter, nowMs),
      signalOf(options),
      (request) => driver.abandon(request),
    );
  }

  /**
   * Cancel what waits, release what is held, and end the connection.
   *
   * Takes at most about a second, also without a server; calls that still wait fail with
   * ClosedError. Idempotent. With `releaseOnClose: false` tickets are left to their leases.
   * REQ-SHUT-ORDER REQ-SHUT-BOUND
   */
  async close(): Promise<void> {
    const driver = this.#driver;
    dropped.unregister(driver);
    await driver.call<void, void>((waiter, nowMs) => driver.core.close(waiter, nowMs));
    await driver.socketsGone();
  }

  /** Close at the end of an `await using` block. */
  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }
}

/** Whether an error is the abort that the loss of a ticket brought, as `signal.throwIfAborted` and Node's own calls throw it. */
function isAbortOf(signal: AbortSignal, error: unknown): boolean {
  if (!signal.aborted || !(signal.reason instanceof LostError)) return false;
  if (error === signal.reason) return true;
  return error instanceof Error && error.name === "AbortError" && error.cause === signal.reason;
}

/**
 * Connect: `await using client = await connect()`, or `connect(url, options)`.
 *
 * Rejects with InvalidArgumentError at once, with ConnectionFailedError naming each endpoint with
 * its error, or with AuthError; the latter two within seconds. `signal` cancels the opening, which
 * leaves nothing behind.
 */
export function connect(options?: ClientOptions & SignalOptions): Promise<Client>;
export function connect(url: string, options?: ClientOptions & SignalOptions): Promise<Client>;
export async function connect(
  urlOrOptions: string | (ClientOptions & SignalOptions) = {},
  further: ClientOptions & SignalOptions = {},
): Promise<Client> {
  if (typeof urlOrOptions !== "string") checkIsObject(urlOrOptions);
  checkIsObject(further);
  const given = typeof urlOrOptions === "string" ? { url: urlOrOptions } : urlOrOptions;
  const { signal: _, ...options } = { ...further, ...given };
  const signal = signalOf({ ...further, ...given });
  const target = targetOf(options);
  const settings = coreSettings(options, target);
  const transport = transportOf(target, options.tls);
  const driver = new Driver(settings, transport, options.onEvent, options.logger);
  try {
    await driver.call<void, void>((waiter, nowMs) => driver.core.open(waiter, nowMs), signal);
  } catch (error) {
    driver.core.close(undefined, monotonicMs());
    driver.afterCall();
    await driver.socketsGone();
    throw error;
  }
  return new Client(driver);
}

function checkIsObject(options: unknown): void {
  if (typeof options !== "object" || options === null) {
    throw new InvalidArgumentError(`connect takes a URL and options, not ${shown(options)}`);
  }
}
