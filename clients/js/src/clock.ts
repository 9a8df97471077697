/** The client's monotonic clock, which goes on while the machine sleeps, where it can. */

import { uptime } from "node:os";

const CHECK_EACH_MS = 250;
const NOTICEABLE_MS = 1000;

/** Makes a clock out of one that may stand still and one that goes on but is coarse or costly. */
export class SleepAwareClock {
  #sleptMs = 0;
  #checkedMs: number;
  readonly #aheadMs: number;

  constructor(
    private readonly fineMs: () => number,
    private readonly coarseMs: () => number,
  ) {
    this.#checkedMs = fineMs();
    this.#aheadMs = coarseMs() - this.#checkedMs;
  }

  /** Milliseconds since some moment in the past; never goes back. */
  nowMs(): number {
    const fineMs = this.fineMs();
    if (fineMs - this.#checkedMs >= CHECK_EACH_MS) {
      this.#checkedMs = fineMs;
      const sleptMs = this.coarseMs() - fineMs - this.#aheadMs;
      // Below that it may as well be the coarse clock's own step, or its adjustment.
      if (sleptMs > this.#sleptMs + NOTICEABLE_MS) this.#sleptMs = sleptMs;
    }
    return fineMs + this.#sleptMs;
  }
}

const clock = new SleepAwareClock(
  () => performance.now(),
  () => uptime() * 1000,
);

/**
 * Milliseconds on the clock that leases are counted on, and `Ticket.expiresAtMs` with them.
 *
 * It counts the time for which the machine slept, too; that is noticed within a quarter of a second.
 */
export function monotonicMs(): number {
  return clock.nowMs();
}
