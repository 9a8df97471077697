/** Due times of requests and tickets in one heap, so that a shell needs a single timer. */

/** Not due at all. */
export const NEVER = Number.POSITIVE_INFINITY;

/** Something that is due at a time, or `NEVER`. */
export interface Timed {
  dueMs: number;
}

interface Entry {
  readonly dueMs: number;
  readonly order: number;
  readonly timed: Timed;
}

/** A heap that forgets lazily: an entry counts only while its object still says that time. */
export class Deadlines {
  #heap: Entry[] = [];
  #pushed = 0;
  #live = 0;

  /** Make `timed` due at a time, or `NEVER`; whatever was set before is void. */
  set(timed: Timed, dueMs: number): void {
    if (timed.dueMs !== NEVER) this.#live -= 1;
    timed.dueMs = dueMs;
    if (dueMs === NEVER) return;
    this.#live += 1;
    this.#pushed += 1;
    this.#heap.push({ dueMs, order: this.#pushed, timed });
    this.#rise(this.#heap.length - 1);
    if (this.#heap.length > 4 * this.#live + 256) this.#forgetVoidEntries();
  }

  /** The earliest due time, or `NEVER`. */
  next(): number {
    const heap = this.#heap;
    while (heap.length > 0 && heap[0].timed.dueMs !== heap[0].dueMs) this.#pop();
    return heap.length > 0 ? heap[0].dueMs : NEVER;
  }

  /** Take out the earliest object that is due at `nowMs`. */
  popDue(nowMs: number): Timed | undefined {
    if (this.next() > nowMs || this.#heap.length === 0) return undefined;
    const { timed } = this.#pop();
    timed.dueMs = NEVER;
    this.#live -= 1;
    return timed;
  }

  /** Without this the heap would grow with every request for as long as the longest lease. */
  #forgetVoidEntries(): void {
    const newest = new Map<Timed, Entry>();
    for (const entry of this.#heap) {
      if (entry.timed.dueMs === entry.dueMs) newest.set(entry.timed, entry);
    }
    this.#heap = [...newest.values()].sort((one, other) => (isEarlier(one, other) ? -1 : 1));
  }

  #pop(): Entry {
    const heap = this.#heap;
    const top = heap[0];
    const last = heap.pop() as Entry;
    if (heap.length > 0) {
      heap[0] = last;
      this.#sink();
    }
    return top;
  }

  #rise(from: number): void {
    const heap = this.#heap;
    const entry = heap[from];
    let at = from;
    while (at > 0) {
      const parent = (at - 1) >> 1;
      if (!isEarlier(entry, heap[parent])) break;
      heap[at] = heap[parent];
      at = parent;
    }
    heap[at] = entry;
  }

  #sink(): void {
    const heap = this.#heap;
    const entry = heap[0];
    let at = 0;
    for (;;) {
      let child = 2 * at + 1;
      if (child >= heap.length) break;
      if (child + 1 < heap.length && isEarlier(heap[child + 1], heap[child])) child += 1;
      if (!isEarlier(heap[child], entry)) break;
      heap[at] = heap[child];
      at = child;
    }
    heap[at] = entry;
  }
}

function isEarlier(one: Entry, other: Entry): boolean {
  return one.dueMs < other.dueMs || (one.dueMs === other.dueMs && one.order < other.order);
}
