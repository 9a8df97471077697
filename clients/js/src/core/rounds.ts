/** Which endpoint is tried next, how long the client waits between rounds, and what went wrong. */

import { createHash } from "node:crypto";
import {
  CLIENT_BACKOFF_JITTER_PERCENT,
  CLIENT_BACKOFF_MS_MAX,
  CLIENT_BACKOFF_MS_MIN,
} from "../constants_gen.js";
import { AuthError, ConnectionFailedError, type TicketingError } from "../errors.js";
import type { Endpoint } from "./urls.js";

/**
 * 50 ms doubling to 1 s, each spread by half in both directions.
 *
 * The spread comes from the seed, so that a client given the same seed behaves the same.
 */
export class Backoff {
  #drawn = 0;
  #step = 0;

  constructor(private readonly seed: Uint8Array) {}

  /** The next round starts at once. */
  reset(): void {
    this.#step = 0;
  }

  /** How long to wait before the next round; the first after a reset does not wait. */
  nextDelayMs(): number {
    const step = this.#step;
    this.#step += 1;
    if (step === 0) return 0;
    const baseMs = Math.min(
      CLIENT_BACKOFF_MS_MIN * 2 ** Math.min(step - 1, 16),
      CLIENT_BACKOFF_MS_MAX,
    );
    this.#drawn += 1;
    const hash = createHash("sha256").update(this.seed).update(`back-off ${this.#drawn}`);
    const part = hash.digest().readUInt32BE() / 2 ** 32;
    return baseMs * (1 + (CLIENT_BACKOFF_JITTER_PERCENT / 100) * (2 * part - 1));
  }
}

/** Goes over the endpoints: the leader named last first, then the list, the lost one last. */
export class Rounds {
  #leader: Endpoint | undefined;
  #namedBy: Endpoint | undefined;
  #lost: Endpoint | undefined;
  #tried = new Set<string>();
  #queue: Endpoint[] = [];
  #failures: { endpoint: Endpoint; error: TicketingError }[] = [];
  #welcomed = false;
  #retried = false;

  constructor(private readonly endpoints: readonly Endpoint[]) {}

  /** Whether the URL names several endpoints; attempts are shorter then. */
  get several(): boolean {
    return this.endpoints.length > 1;
  }

  /** Start a round. */
  begin(): void {
    const last = this.endpoints.filter((endpoint) => endpoint.equals(this.#lost));
    const first = this.endpoints.filter((endpoint) => !endpoint.equals(this.#lost));
    const leader = this.#leader === undefined ? [] : [this.#leader];
    this.#queue = [...leader, ...first, ...last];
    this.#tried.clear();
    this.#failures = [];
    this.#welcomed = false;
    this.#retried = false;
  }

  /** The endpoint to try now, each once per round; undefined at the round's end. */
  next(): Endpoint | undefined {
    for (;;) {
      const endpoint = this.#queue.shift();
      if (endpoint === undefined) return undefined;
      if (this.#tried.has(`${endpoint}`)) continue;
      this.#tried.add(`${endpoint}`);
      return endpoint;
    }
  }

  /** A server has proved itself in this round, whatever its role. */
  welcomed(): void {
    this.#welcomed = true;
  }

  /** Rule out an endpoint for this round. */
  failed(endpoint: Endpoint, error: TicketingError): void {
    this.#failures.push({ endpoint, error });
  }

  /** A connection to this endpoint ended after it had been in use. */
  lost(endpoint: Endpoint): void {
    this.#lost = endpoint;
  }

  /**
   * A server said who leads; the rest of this round begins there.
   *
   * `onceMore` is for a node that has just become leader or learned of one: the endpoint counts as
   * untried again, one time per round, so that two nodes that name each other end.
   */
  leaderNamed(leader: Endpoint | undefined, by: Endpoint, onceMore = false): void {
    if (onceMore && leader !== undefined && !this.#retried) {
      this.#retried = true;
      this.#tried.delete(`${leader}`);
    }
    this.#leader = leader;
    this.#namedBy = by;
    if (leader !== undefined) this.#queue.unshift(leader);
  }

  /** A node refused to serve, so that the next round need not begin there. */
  doesNotLead(endpoint: Endpoint): void {
    if (endpoint.equals(this.#leader)) this.#leader = undefined;
  }

  /** What a round without success amounts to, each endpoint named with its error. */
  outcome(): TicketingError {
    const parts = this.#failures.map(({ endpoint, error }) => {
      const isListed = this.endpoints.some((listed) => listed.equals(endpoint));
      const hint =
        endpoint.equals(this.#leader) && !isListed
          ? ` (named as the leader by ${this.#namedBy}; if it can't be reached from here,` +
            " check the setting --advertise of that server)"
          : "";
      return `${endpoint}: ${error.message}${hint}`;
    });
    const text = parts.join("; ") || "no endpoint was left to try";
    const refused = this.#failures.some(({ error }) => error instanceof AuthError);
    if (!this.#welcomed && refused) return new AuthError(`no server took this client: ${text}`);
    return new ConnectionFailedError(`no server could be reached: ${text}`);
  }
}
