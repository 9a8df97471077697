/** Requests: their ids and bytes, what is unanswered, and how each is settled exactly once. */

import { OP_ACQUIRE, OP_ACQUIRE_SET, OP_CANCEL, OP_RELEASE } from "../constants_gen.js";
import type { TicketingError } from "../errors.js";
import type { Key } from "../events.js";
import type { WireKey } from "./arguments.js";
import { Malformed } from "./codec.js";
import { type Deadlines, NEVER } from "./deadlines.js";
import type { Effect, Waiter } from "./effects.js";
import type { Link } from "./link.js";
import type { HeldTicket } from "./tickets.js";

/** Whether an op asks for a key or a set. */
export function isAcquire(op: number): boolean {
  return op === OP_ACQUIRE || op === OP_ACQUIRE_SET;
}

/** Whether a request goes out again after a reconnect even when it was given up. */
export function isAlwaysResent(op: number): boolean {
  return op === OP_RELEASE || op === OP_CANCEL;
}

/** What an extend is for; it decides what its reply does. */
export type Purpose =
  /** The program asked for it. */
  | "caller"
  /** The client's own: at a third of the lease, or to learn what ended while it was away. */
  | "renewal"
  /** After a long wait, before the ticket is handed out. */
  | "confirm"
  /** Makes a ticket out of a reference. */
  | "adopt";

const NO_FRAME = Buffer.alloc(0);

/** One request over all its sendings. It keeps its id and its bytes. */
export class Request {
  id = 0;
  frame: Buffer = NO_FRAME;
  /** The moment before the newest sending was queued. */
  queuedMs = 0;
  /** How often bytes of it were handed to a socket. */
  sendings = 0;
  /** The connection of the newest sending; only there a reply can come. */
  sentSerial = 0;
  settled = false;
  /** When the client ends it by itself. */
  boundMs = NEVER;
  /** When a wait is long enough to be warned about. */
  warnMs = NEVER;
  dueMs = NEVER;
  keys: readonly WireKey[] = [];
  shownKeys: readonly Key[] = [];
  waitMs = 0;
  leaseMs = 0;
  autoExtend = false;
  ticket: HeldTicket | undefined;
  purpose: Purpose = "caller";
  /** Of an adoption: the ticket's token. */
  token = 0n;
  /** Of a cancel: the acquire that it undoes. */
  acquireId = 0;

  constructor(
    public op: number,
    public waiter: Waiter | undefined,
    readonly calledMs: number,
  ) {}
}

/** What is unanswered, in id order. */
export class RequestTable {
  #nextId = 1;
  /** Set once, by the core that owns both. */
  link!: Link;
  /** By id, in the order of ids: a request is entered as soon as its id is taken. */
  readonly unanswered = new Map<number, Request>();

  constructor(
    private readonly effects: Effect[],
    private readonly deadlines: Deadlines,
  ) {}

  /** The next id: a counter of the client's requests over all its connections. */
  takeId(): number {
    return this.#nextId++;
  }

  /** Put a request on its way: at once where that is possible, else once connected. */
  issue(request: Request, nowMs: number): void {
    this.unanswered.set(request.id, request);
    if (this.link.ready) {
      request.queuedMs = nowMs;
      this.link.outgoing.push(request);
    } else {
      this.link.start(nowMs);
    }
  }

  /** On a new connection: everything unanswered that was not given up, in id order. */
  queueAgain(nowMs: number): void {
    for (const request of this.unanswered.values()) {
      request.queuedMs = nowMs;
      this.link.outgoing.push(request);
    }
  }

  /** The connection is gone on which a given-up request could still have had its reply. */
  forgetGivenUp(): void {
    for (const request of this.unanswered.values()) {
      if (request.settled && !isAlwaysResent(request.op)) this.unanswered.delete(request.id);
    }
  }

  /** The frames to write now, in one batch; what they carry counts as handed over. */
  takeOutput(nowMs: number): Buffer[] {
    const { link } = this;
    const frames: Buffer[] = [];
    for (const item of link.outgoing) {
      if (item instanceof Request) {
        // Given up before a byte of it was written here: it is never sent.
        if (item.settled && !isAlwaysResent(item.op)) continue;
        item.sendings += 1;
        item.sentSerial = link.serial;
        frames.push(item.frame);
      } else {
        frames.push(item);
      }
    }
    link.outgoing.length = 0;
    if (frames.length > 0) link.wrote(nowMs);
    return frames;
  }

  /** The request that a reply is for; throws Malformed where there is none. */
  match(requestId: number, fits: (op: number) => boolean): Request {
    const request = this.unanswered.get(requestId);
    if (request === undefined || request.sentSerial !== this.link.serial || !fits(request.op)) {
      throw new Malformed("state", `a reply to request ${requestId}, which can't have one`);
    }
    return request;
  }

  /** Take out the request that a reply is for; throws Malformed where there is none. */
  answered(requestId: number, fits: (op: number) => boolean): Request {
    const request = this.match(requestId, fits);
    this.unanswered.delete(requestId);
    this.link.answered();
    if (request.dueMs !== NEVER) this.deadlines.set(request, NEVER);
    return request;
  }

  /** Give the caller its result; a request that has its result already keeps it. */
  settle(request: Request, value: unknown, error?: TicketingError): void {
    if (request.settled) return;
    request.settled = true;
    if (request.dueMs !== NEVER) this.deadlines.set(request, NEVER);
    const { waiter } = request;
    if (waiter !== undefined) {
      request.waiter = undefined;
      this.effects.push({ kind: "settled", waiter, value, error });
    }
  }

  /** Drop a given-up request, unless its reply can still come on this connection. */
  withdraw(request: Request): void {
    const { link } = this;
    if (request.sendings === 0 || request.sentSerial !== link.serial || !link.ready) {
      this.unanswered.delete(request.id);
    }
  }
}
