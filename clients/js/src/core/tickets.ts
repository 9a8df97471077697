/** Tickets: lease arithmetic, extending, losing, releasing, handing over and adopting. */

import {
  CLIENT_EXPIRY_MARGIN_PER_MILLE,
  CLIENT_EXTEND_DIVISOR,
  CLIENT_EXTEND_RETRY_MS,
  CLIENT_LONG_WAIT_DIVISOR,
  CLIENT_RELEASE_BOUND_MS_MIN,
  LEASE_MS_MIN,
  OP_EXTEND,
  OP_RELEASE,
} from "../constants_gen.js";
import {
  ClosedError,
  LostError,
  type LostReason,
  NotHeldError,
  ReplyTimeoutError,
  type TicketingError,
} from "../errors.js";
import type { Key } from "../events.js";
import { formatReference, shown, type WireKey } from "./arguments.js";
import { type Deadlines, NEVER } from "./deadlines.js";
import type { Effect, Waiter } from "./effects.js";
import { extendFrame, releaseFrame } from "./frames.js";
import { type Purpose, Request, type RequestTable } from "./requests.js";
import type { CoreSettings } from "./settings.js";

/** Where a ticket is in its life. */
export type TicketState =
  /** Granted after so long a wait that an extend must first say what is left. */
  | "confirming"
  | "held"
  | "releasing"
  | "released"
  | "lost"
  | "handed over"
  /** The client ended without releasing it. */
  | "closed";

/** A granted acquisition as the core sees it; the program's ticket stands in front of it. */
export class HeldTicket {
  readonly keys: readonly WireKey[];
  readonly shownKeys: readonly Key[];
  readonly leaseMs: number;
  readonly autoExtend: boolean;
  readonly acquireId: number;
  /** The acquire whose caller still waits for this ticket. */
  acquire: Request | undefined;
  expiresMs = 0;
  state: TicketState = "confirming";
  dueMs = NEVER;
  /** When the client extends by itself next. */
  extendMs = NEVER;
  /** The one extend that is unanswered. */
  extending: Request | undefined;
  /** Extends of callers that wait for that one. */
  deferred: Request[] = [];
  handOverWaiter: Waiter | undefined;
  lostReason: LostReason | undefined;
  /** The server has said that the ticket ended: nothing more is sent about it. */
  gone = false;
  releaseRequest: Request | undefined;
  releaseWaiters: Waiter[] = [];
  releaseError: TicketingError | undefined;
  /** What the shell calls when the ticket is no longer held. */
  listeners: (() => void)[] = [];

  constructor(
    readonly token: bigint,
    request: Request,
    public grantedMs: number,
  ) {
    this.keys = request.keys;
    this.shownKeys = request.shownKeys;
    this.leaseMs = request.leaseMs;
    this.autoExtend = request.autoExtend;
    this.acquireId = request.id;
    this.acquire = request;
  }
}

/** What two clocks may differ by over this time: 0.2 %. */
export function marginMs(sumMs: number): number {
  return (sumMs * CLIENT_EXPIRY_MARGIN_PER_MILLE) / 1000;
}

/** The error that a caller sees for a lost ticket. */
export function lostError(ticket: HeldTicket): LostError {
  const reason = ticket.lostReason ?? "expired";
  const text = `the ticket for ${nameOf(ticket)} with token ${ticket.token} is lost (${reason})`;
  return new LostError(text, reason);
}

/** The keys of a ticket or of an acquire, as a message shows them. */
export function nameOf(subject: HeldTicket | Request): string {
  return subject.shownKeys.map(shown).join(", ");
}

/** All tickets of one client, by token. */
export class TicketDesk {
  /** Held tickets, those that are being confirmed included. */
  readonly held = new Map<bigint, HeldTicket>();
  /** Keys of held tickets, with their tokens. */
  readonly heldKeys = new Map<WireKey, bigint>();
  /** Lost by the clock alone: a D about one of them still means something. */
  readonly #expired = new Map<bigint, WeakRef<HeldTicket>>();
  readonly #forgetExpired = new FinalizationRegistry((token: bigint) => {
    this.#expired.delete(token);
  });

  constructor(
    private readonly settings: CoreSettings,
    private readonly requests: RequestTable,
    private readonly deadlines: Deadlines,
    private readonly effects: Effect[],
  ) {}

  // Beginning.

  /** An acquire was answered with A and its caller still wants it. */
  granted(request: Request, token: bigint, waitedMs: number, nowMs: number): void {
    const ticket = this.#enter(token, request, nowMs);
    const sumMs = waitedMs + ticket.leaseMs;
    const margin = marginMs(sumMs);
    if (margin * CLIENT_LONG_WAIT_DIVISOR > ticket.leaseMs) {
      this.#sendExtend(ticket, ticket.leaseMs, "confirm", nowMs);
      this.deadlines.set(request, request.boundMs); // The caller still waits.
      return;
    }
    ticket.expiresMs = request.queuedMs + sumMs - margin;
    if (ticket.autoExtend) {
      ticket.extendMs = request.queuedMs + waitedMs + ticket.leaseMs / CLIENT_EXTEND_DIVISOR;
    }
    this.#handOut(ticket, request, nowMs);
  }

  /** The extend of an adoption was answered with X. */
  adopted(request: Request, leaseMs: number, nowMs: number): void {
    if (this.held.has(request.token)) {
      const text = `this client holds token ${request.token} already`;
      this.requests.settle(request, undefined, new NotHeldError(text));
      return;
    }
    const ticket = this.#enter(request.token, request, nowMs);
    this.#prolong(ticket, request.queuedMs, leaseMs);
    this.#handOut(ticket, request, nowMs);
  }

  #enter(token: bigint, request: Request, nowMs: number): HeldTicket {
    const ticket = new HeldTicket(token, request, nowMs);
    request.ticket = ticket;
    this.#takeIn(ticket);
    return ticket;
  }

  #takeIn(ticket: HeldTicket): void {
    this.held.set(ticket.token, ticket);
    for (const key of ticket.keys) this.heldKeys.set(key, ticket.token);
  }

  #handOut(ticket: HeldTicket, request: Request, nowMs: number): void {
    if (nowMs >= ticket.expiresMs) {
      ticket.lostReason = "expired";
      this.#leave(ticket, "lost");
      this.requests.settle(request, undefined, lostError(ticket));
      return;
    }
    ticket.state = "held";
    ticket.grantedMs = nowMs;
    ticket.acquire = undefined;
    this.#setDue(ticket);
    this.requests.settle(request, ticket);
    if (this.settings.observed) {
      const waitedMs = nowMs - request.calledMs;
      const { shownKeys: keys, token } = ticket;
      this.effects.push({ kind: "notify", event: { kind: "granted", keys, token, waitedMs } });
    }
  }

  // Time.

  #setDue(ticket: HeldTicket): void {
    let dueMs = ticket.state === "held" ? ticket.expiresMs : NEVER;
    if (ticket.extendMs < dueMs && ticket.extending === undefined) dueMs = ticket.extendMs;
    if (dueMs !== ticket.dueMs) this.deadlines.set(ticket, dueMs);
  }

  /** Time for the next extend, or the end. */
  due(ticket: HeldTicket, nowMs: number): void {
    if (this.loseIfOver(ticket, nowMs)) return;
    if (nowMs >= ticket.extendMs && ticket.extending === undefined) {
      this.#extendByItself(ticket, nowMs);
    }
    this.#setDue(ticket);
  }

  /** Whether the ticket is lost; one whose time has come is lost now. */
  loseIfOver(ticket: HeldTicket, nowMs: number): boolean {
    if (ticket.state === "held" && nowMs >= ticket.expiresMs) {
      this.#expired.set(ticket.token, new WeakRef(ticket));
      this.#forgetExpired.register(ticket, ticket.token);
      this.#lose(ticket, "expired");
    }
    return ticket.state === "lost";
  }

  #prolong(ticket: HeldTicket, queuedMs: number, leftMs: number): void {
    ticket.expiresMs = Math.max(ticket.expiresMs, queuedMs + leftMs - marginMs(leftMs));
    ticket.extendMs = ticket.autoExtend ? queuedMs + ticket.leaseMs / CLIENT_EXTEND_DIVISOR : NEVER;
  }

  // Extending.

  /** A caller's extend; it waits for one that is under way. */
  extend(ticket: HeldTicket, leaseMs: number, waiter: Waiter, nowMs: number): Request {
    const request = new Request(OP_EXTEND, waiter, nowMs);
    request.ticket = ticket;
    request.leaseMs = leaseMs;
    const error = this.#notUsable(ticket, nowMs);
    if (error !== undefined) this.requests.settle(request, undefined, error);
    else if (ticket.extending !== undefined) ticket.deferred.push(request);
    else this.#issueExtend(ticket, request, nowMs);
    return request;
  }

  #notUsable(ticket: HeldTicket, nowMs: number): TicketingError | undefined {
    if (this.loseIfOver(ticket, nowMs)) return lostError(ticket);
    if (ticket.state === "closed") return clientClosed(ticket);
    const isHandingOver = ticket.handOverWaiter !== undefined;
    if (ticket.state !== "held" || isHandingOver) {
      const was = isHandingOver ? "handed over" : ticket.state;
      return new NotHeldError(`the ticket for ${nameOf(ticket)} is ${was}`);
    }
    return undefined;
  }

  #extendByItself(ticket: HeldTicket, nowMs: number): void {
    ticket.extendMs = NEVER;
    if (ticket.state === "confirming") {
      this.#sendExtend(ticket, ticket.leaseMs, "confirm", nowMs);
    } else {
      // A lease of a fixed ticket is not made longer by the shortest lease there is.
      const leaseMs = ticket.autoExtend ? ticket.leaseMs : LEASE_MS_MIN;
      this.#sendExtend(ticket, leaseMs, "renewal", nowMs);
    }
  }

  #sendExtend(ticket: HeldTicket, leaseMs: number, purpose: Purpose, nowMs: number): void {
    const request = new Request(OP_EXTEND, undefined, nowMs);
    request.ticket = ticket;
    request.leaseMs = leaseMs;
    request.purpose = purpose;
    this.#issueExtend(ticket, request, nowMs);
  }

  #issueExtend(ticket: HeldTicket, request: Request, nowMs: number): void {
    request.id = this.requests.takeId();
    request.frame = extendFrame(request.id, ticket.token, request.leaseMs, ticket.keys[0]);
    request.boundMs = request.calledMs + this.settings.replyTimeoutMs;
    ticket.extending = request;
    this.deadlines.set(request, request.boundMs);
    this.requests.issue(request, nowMs);
  }

  /** X: the lease goes on. */
  extendAnswered(ticket: HeldTicket, request: Request, leaseMs: number, nowMs: number): void {
    if (ticket.extending === request) ticket.extending = undefined;
    if (request.settled) {
      this.extendSettled(ticket, nowMs);
      return;
    }
    if (ticket.state === "confirming" && ticket.acquire !== undefined) {
      this.#prolong(ticket, request.queuedMs, leaseMs);
      this.requests.settle(request, undefined);
      this.#handOut(ticket, ticket.acquire, nowMs);
      return;
    }
    if (this.loseIfOver(ticket, nowMs)) {
      this.requests.settle(request, undefined, lostError(ticket));
      return;
    }
    if (ticket.state === "held") {
      this.#prolong(ticket, request.queuedMs, leaseMs);
      if (this.settings.observed) {
        const remainingMs = Math.max(0, ticket.expiresMs - nowMs);
        const { shownKeys: keys, token } = ticket;
        this.effects.push({
          kind: "notify",
          event: { kind: "extended", keys, token, remainingMs },
        });
      }
    }
    this.requests.settle(request, undefined);
    this.extendSettled(ticket, nowMs);
  }

  /** N to an extend: the ticket is gone. */
  extendRefused(ticket: HeldTicket, request: Request, nowMs: number): void {
    if (ticket.extending === request) ticket.extending = undefined;
    if (request.settled) {
      this.extendSettled(ticket, nowMs);
      return;
    }
    if (ticket.state === "held" || ticket.state === "confirming") {
      ticket.gone = true;
      this.#lose(ticket, "not_held");
    }
    // The ticket's state is read again: losing it has changed it.
    const error = this.loseIfOver(ticket, nowMs)
      ? lostError(ticket)
      : new NotHeldError(`the ticket for ${nameOf(ticket)} was released`);
    this.requests.settle(request, undefined, error);
  }

  /** An extend ended without X or N; where the client needs it, a new one follows. */
  extendFailed(ticket: HeldTicket, request: Request, error: TicketingError, nowMs: number): void {
    this.requests.settle(request, undefined, error);
    if (ticket.extending === request) {
      ticket.extending = undefined;
      const isNeeded = ticket.autoExtend || request.purpose !== "caller";
      if (isNeeded && (ticket.state === "held" || ticket.state === "confirming")) {
        ticket.extendMs = nowMs + CLIENT_EXTEND_RETRY_MS;
      }
    }
    this.extendSettled(ticket, nowMs);
  }

  /** Nothing is unanswered now: go on with what had to wait for that. */
  extendSettled(ticket: HeldTicket, nowMs: number): void {
    const { handOverWaiter } = ticket;
    if (handOverWaiter !== undefined && ticket.extending === undefined) {
      ticket.handOverWaiter = undefined;
      if (ticket.state === "held") this.#finishHandOver(ticket, handOverWaiter);
    }
    while (ticket.extending === undefined) {
      const request = ticket.deferred.shift();
      if (request === undefined) break;
      if (request.settled) continue;
      let error = this.#notUsable(ticket, nowMs);
      if (error === undefined && nowMs >= request.calledMs + this.settings.replyTimeoutMs) {
        error = new ReplyTimeoutError("an extend before this one had no answer in time");
      }
      if (error !== undefined) this.requests.settle(request, undefined, error);
      else this.#issueExtend(ticket, request, nowMs);
    }
    this.#setDue(ticket);
  }

  /** In token order, an extend for each held ticket that has none unanswered. */
  queueAfterReconnect(nowMs: number): void {
    const tickets = [...this.held.values()].sort((one, other) =>
      one.token < other.token ? -1 : 1,
    );
    for (const ticket of tickets) {
      if (!this.loseIfOver(ticket, nowMs) && ticket.extending === undefined) {
        this.#extendByItself(ticket, nowMs);
        this.#setDue(ticket);
      }
    }
  }

  // Losing.

  /** D: the ticket ended without its client. An unknown token means nothing. */
  dropped(token: bigint, reason: LostReason): void {
    const ticket = this.held.get(token);
    if (ticket !== undefined) {
      ticket.gone = true;
      this.#lose(ticket, reason);
      return;
    }
    const expired = this.#expired.get(token)?.deref();
    if (expired !== undefined) expired.gone = true;
    this.#expired.delete(token);
  }

  /** The ticket is lost: say so once, to everybody who waits for it or on it. */
  #lose(ticket: HeldTicket, reason: LostReason): void {
    ticket.lostReason = reason;
    this.#leave(ticket, "lost");
    const error = lostError(ticket);
    if (ticket.acquire !== undefined) {
      this.requests.settle(ticket.acquire, undefined, error);
      ticket.acquire = undefined;
      return;
    }
    this.effects.push({ kind: "log", level: "warn", text: error.message });
    if (this.settings.observed) {
      const { shownKeys: keys, token } = ticket;
      this.effects.push({ kind: "notify", event: { kind: "lost", keys, token, reason } });
    }
    this.#failWaiting(ticket, error);
  }

  /** End the calls that wait for something of a ticket that is no longer held. */
  #failWaiting(ticket: HeldTicket, error: TicketingError): void {
    if (ticket.extending !== undefined) {
      this.requests.settle(ticket.extending, undefined, error);
      this.requests.withdraw(ticket.extending);
      ticket.extending = undefined;
    }
    for (const request of ticket.deferred) this.requests.settle(request, undefined, error);
    ticket.deferred = [];
    const waiter = ticket.handOverWaiter;
    if (waiter !== undefined) {
      ticket.handOverWaiter = undefined;
      this.effects.push({ kind: "settled", waiter, value: undefined, error });
    }
  }

  /** The ticket is no longer held. */
  #leave(ticket: HeldTicket, state: TicketState): void {
    ticket.state = state;
    this.held.delete(ticket.token);
    for (const key of ticket.keys) {
      if (this.heldKeys.get(key) === ticket.token) this.heldKeys.delete(key);
    }
    ticket.extendMs = NEVER;
    if (ticket.dueMs !== NEVER) this.deadlines.set(ticket, NEVER);
    if (ticket.listeners.length > 0) this.effects.push({ kind: "ticket_ended", ticket });
  }

  // Releasing.

  /** Release once; every further call gets what the first one gets. */
  release(ticket: HeldTicket, waiter: Waiter | undefined, nowMs: number): void {
    const isLost = this.loseIfOver(ticket, nowMs);
    let error: TicketingError | undefined;
    if (ticket.releaseRequest !== undefined) {
      if (!ticket.releaseRequest.settled) {
        if (waiter !== undefined) ticket.releaseWaiters.push(waiter);
        return;
      }
      error = ticket.releaseError;
    } else if (isLost && ticket.gone) {
      error = lostError(ticket);
    } else if (ticket.state === "closed") {
      error = clientClosed(ticket);
    } else if (isLost || ticket.state === "held" || ticket.state === "confirming") {
      if (waiter !== undefined) ticket.releaseWaiters.push(waiter);
      this.#sendRelease(ticket, nowMs);
      return;
    }
    if (waiter !== undefined)
      this.effects.push({ kind: "settled", waiter, value: undefined, error });
  }

  #sendRelease(ticket: HeldTicket, nowMs: number): void {
    if (ticket.state === "lost") {
      this.#expired.delete(ticket.token);
      ticket.releaseError = lostError(ticket);
    } else {
      this.#leave(ticket, "releasing");
      if (ticket.handOverWaiter !== undefined || ticket.deferred.length > 0) {
        const unanswered = ticket.extending;
        ticket.extending = undefined;
        this.#failWaiting(ticket, new NotHeldError(`${nameOf(ticket)} was released`));
        ticket.extending = unanswered;
      }
    }
    const request = new Request(OP_RELEASE, undefined, nowMs);
    request.ticket = ticket;
    request.id = this.requests.takeId();
    request.frame = releaseFrame(request.id, ticket.token, ticket.keys[0]);
    request.boundMs = Math.max(ticket.expiresMs, nowMs + CLIENT_RELEASE_BOUND_MS_MIN);
    ticket.releaseRequest = request;
    this.deadlines.set(request, request.boundMs);
    this.requests.issue(request, nowMs);
  }

  /** R, or N; an N after an earlier sending only says that the earlier one did it. */
  releaseAnswered(ticket: HeldTicket, request: Request, released: boolean, nowMs: number): void {
    if (request.settled) return;
    if (released || request.sendings > 1) {
      this.releaseEnded(ticket, request, undefined, nowMs);
    } else {
      ticket.lostReason ??= "not_held";
      this.releaseEnded(ticket, request, lostError(ticket), nowMs);
    }
  }

  /** Tell everybody who waits for this release; a ticket that was lost before stays lost. */
  releaseEnded(
    ticket: HeldTicket,
    request: Request,
    error: TicketingError | undefined,
    nowMs: number,
  ): void {
    this.requests.settle(request, undefined);
    ticket.releaseError ??= error;
    if (ticket.state === "releasing") {
      ticket.state = "released";
      if (this.settings.observed && ticket.releaseError === undefined) {
        const heldMs = nowMs - ticket.grantedMs;
        const { shownKeys: keys, token } = ticket;
        this.effects.push({ kind: "notify", event: { kind: "released", keys, token, heldMs } });
      }
    }
    for (const waiter of ticket.releaseWaiters) {
      this.effects.push({ kind: "settled", waiter, value: undefined, error: ticket.releaseError });
    }
    ticket.releaseWaiters = [];
  }

  // Handing over.

  /** End this client's part in the ticket, once nothing about it is unanswered. */
  handOver(ticket: HeldTicket, waiter: Waiter, nowMs: number): void {
    const error = this.#notUsable(ticket, nowMs);
    if (error !== undefined)
      this.effects.push({ kind: "settled", waiter, value: undefined, error });
    else if (ticket.extending !== undefined) ticket.handOverWaiter = waiter;
    else this.#finishHandOver(ticket, waiter);
  }

  /** The caller never saw the reference: the ticket stays here, or comes back. */
  stopHandOver(ticket: HeldTicket, waiter: Waiter, nowMs: number): void {
    if (ticket.handOverWaiter === waiter) {
      ticket.handOverWaiter = undefined;
    } else if (ticket.state === "handed over" && !this.held.has(ticket.token)) {
      this.#takeIn(ticket);
      ticket.state = "held";
      if (ticket.autoExtend) ticket.extendMs = nowMs;
      this.#setDue(ticket);
    }
  }

  #finishHandOver(ticket: HeldTicket, waiter: Waiter): void {
    this.#leave(ticket, "handed over");
    const value = formatReference(ticket.token, ticket.keys[0]);
    this.effects.push({ kind: "settled", waiter, value, error: undefined });
  }

  // Ending.

  /** The client ends: its tickets are lost with it (`reason`), or just closed. */
  endAll(reason?: LostReason): void {
    for (const expired of this.#expired.values()) {
      const ticket = expired.deref();
      if (ticket !== undefined) ticket.gone = true;
    }
    for (const ticket of [...this.held.values()]) {
      if (reason !== undefined) {
        ticket.gone = true;
        this.#lose(ticket, reason);
      } else {
        this.#leave(ticket, "closed");
        this.#failWaiting(ticket, clientClosed(ticket));
      }
    }
  }
}

function clientClosed(ticket: HeldTicket): ClosedError {
  return new ClosedError(`the client of the ticket for ${nameOf(ticket)} is closed`);
}
