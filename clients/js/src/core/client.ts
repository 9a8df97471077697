/**
 * The client's core: calls, time and bytes in; effects, bytes and the next deadline out.
 *
 * A shell calls the methods below, each with the time of its monotonic clock in milliseconds, and
 * after each call carries out `effects` in order, writes what `takeOutput` returns and sets its one
 * timer to `nextDeadlineMs`.
 */

import {
  CLIENT_CLOSE_TIMEOUT_MS,
  CLIENT_LEASE_MS_DEFAULT,
  CLIENT_WAIT_OVERRUN_MS,
  CLIENT_WAIT_WARNING_MS,
  ERROR_BAD_FRAME,
  ERROR_TAKEN_OVER,
  ERRORS,
  OP_ACQUIRE,
  OP_ACQUIRE_SET,
  OP_CANCEL,
  OP_EXTEND,
  OP_PING,
  OP_RELEASE,
  WAIT_MS_FOREVER,
  WAIT_MS_TRY,
} from "../constants_gen.js";
import {
  AuthError,
  ClosedError,
  type LostReason,
  ProtocolError,
  ReplyTimeoutError,
  type TicketingError,
  WaitTimeoutError,
} from "../errors.js";
import type { TicketingEvent } from "../events.js";
import * as args from "./arguments.js";
import { Deadlines, NEVER } from "./deadlines.js";
import type { Effect, LogLevel, Waiter } from "./effects.js";
import {
  acquireFrame,
  acquireSetFrame,
  cancelFrame,
  extendFrame,
  pingFrame,
  type Reply,
} from "./frames.js";
import { Link, type LinkOwner } from "./link.js";
import { ReplyReading } from "./replies.js";
import { isAcquire, isAlwaysResent, Request, RequestTable } from "./requests.js";
import type { CoreSettings } from "./settings.js";
import { HeldTicket, lostError, nameOf, TicketDesk } from "./tickets.js";

/** What a single acquire may ask for beside its keys; what is left out is the client's default. */
export interface Terms {
  readonly leaseMs?: number | undefined;
  readonly waitTimeoutMs?: args.WaitTimeout | undefined;
  readonly autoExtend?: boolean | undefined;
}

/** One client. It reads no clock, no random source and no socket. */
export class ClientCore implements LinkOwner {
  /** What the shell is to do; it takes the list's content after each call. */
  readonly effects: Effect[] = [];
  /** When a close that is under way stops waiting. */
  dueMs = NEVER;
  readonly #deadlines = new Deadlines();
  readonly #requests: RequestTable;
  readonly #tickets: TicketDesk;
  readonly #replies: ReplyReading;
  readonly #link: Link;
  #opening: Waiter | undefined;
  #openingUntilMs = 0;
  #closing: (Waiter | undefined)[] = [];
  #isClosing = false;
  #closedBecause: string | undefined;
  /** What the last round since the last connection came to; the log says so once. */
  #roundFailure = "";

  constructor(readonly settings: CoreSettings) {
    this.#requests = new RequestTable(this.effects, this.#deadlines);
    this.#tickets = new TicketDesk(settings, this.#requests, this.#deadlines, this.effects);
    this.#replies = new ReplyReading(settings, this.#requests, this.#tickets, this.effects);
    this.#link = new Link(settings, this, this.#deadlines, this.effects);
    this.#requests.link = this.#link;
  }

  // The transport and the clock.

  /** The connection of a connect effect stands. */
  connected(serial: number, nowMs: number): void {
    this.#link.connected(serial, nowMs);
  }

  /** The connection of a connect effect failed or ended; `reason` is for people. */
  disconnected(serial: number, reason: string, nowMs: number): void {
    this.#link.disconnected(serial, args.sanitised(reason), nowMs);
  }

  /** Bytes came in on a connection. */
  receive(serial: number, data: Buffer, nowMs: number): void {
    this.#link.receive(serial, data, nowMs);
    if (this.#isClosing) this.#finishCloseIfAnswered(nowMs);
  }

  /** Whether `takeOutput` has something to say. */
  get hasOutput(): boolean {
    return this.#link.outgoing.length > 0;
  }

  /** The connection that output belongs to. */
  get serial(): number {
    return this.#link.serial;
  }

  /** The frames to write now in one batch. Once taken they count as handed to the socket. */
  takeOutput(nowMs: number): Buffer[] {
    return this.#requests.takeOutput(nowMs);
  }

  /** When `onTime` is to be called at the latest; `NEVER` when it is not. */
  nextDeadlineMs(): number {
    return this.#deadlines.next();
  }

  /** Do whatever is due at `nowMs`, in the order of the deadlines. */
  onTime(nowMs: number): void {
    for (;;) {
      const timed = this.#deadlines.popDue(nowMs);
      if (timed === undefined) return;
      if (timed instanceof Request) this.#requestDue(timed, nowMs);
      else if (timed instanceof HeldTicket) this.#tickets.due(timed, nowMs);
      else if (timed === this.#link) this.#link.due(nowMs);
      else this.#finishClose(nowMs);
    }
  }

  // Opening and closing.

  /** The server in use, or undefined while there is none. */
  get connectionAddress(): string | undefined {
    return this.#link.ready ? `${this.#link.endpoint}` : undefined;
  }

  /** Whether the connection is in its back-off: the next round begins at the next deadline. */
  get isBackingOff(): boolean {
    return this.#link.state === "back-off";
  }

  /** Whether calls are refused. */
  get isClosed(): boolean {
    return this.#closedBecause !== undefined;
  }

  /** Connect; settles once a server serves this client, or a round came to nothing. */
  open(waiter: Waiter, nowMs: number): void {
    this.#opening = waiter;
    this.#openingUntilMs = nowMs + this.settings.connectForMs;
    this.#link.start(nowMs);
  }

  /** Cancel what waits, release what is held, and end. Closing again waits for the same. */
  close(waiter: Waiter | undefined, nowMs: number): void {
    if (this.isClosed && !this.#isClosing) {
      this.#settle(waiter);
      return;
    }
    this.#closing.push(waiter);
    if (this.#isClosing) return;
    this.#closedBecause = "the client is closed";
    this.#isClosing = true;
    this.#settle(this.#opening, new ClosedError(this.#closedBecause));
    this.#opening = undefined;
    this.#writeOff(nowMs);
    this.#deadlines.set(this, nowMs + CLIENT_CLOSE_TIMEOUT_MS);
    this.#finishCloseIfAnswered(nowMs);
  }

  /** One batch: C for each acquire that waits, R for each ticket held, by acquire id. */
  #writeOff(nowMs: number): void {
    const error = new ClosedError("the client was closed meanwhile");
    const openEnds: { id: number; end: Request | HeldTicket }[] = [];
    for (const request of [...this.#requests.unanswered.values()]) {
      if (isAcquire(request.op) && !request.settled && request.sendings > 0) {
        openEnds.push({ id: request.id, end: request });
      }
      if (!isAlwaysResent(request.op)) {
        this.#requests.settle(request, undefined, error);
        this.#requests.withdraw(request);
      }
    }
    const held = [...this.#tickets.held.values()];
    for (const ticket of held) {
      if (ticket.acquire !== undefined) this.#requests.settle(ticket.acquire, undefined, error);
      ticket.acquire = undefined;
    }
    if (!this.settings.releaseOnClose || !this.#link.ready) {
      this.#tickets.endAll();
      return;
    }
    for (const ticket of held) openEnds.push({ id: ticket.acquireId, end: ticket });
    openEnds.sort((one, other) => one.id - other.id);
    for (const { end } of openEnds) {
      if (end instanceof HeldTicket) this.#tickets.release(end, undefined, nowMs);
      else this.#sendCancel(end, nowMs);
    }
  }

  #finishCloseIfAnswered(nowMs: number): void {
    if (!this.#isClosing) return;
    if (this.#link.ready) {
      for (const request of this.#requests.unanswered.values()) {
        if (isAlwaysResent(request.op)) return;
      }
    }
    this.#finishClose(nowMs);
  }

  #finishClose(nowMs: number): void {
    this.#isClosing = false;
    this.#deadlines.set(this, NEVER);
    this.#end("the client is closed", nowMs);
    for (const waiter of this.#closing) this.#settle(waiter);
    this.#closing = [];
  }

  /** Nothing works from here on; every call that still waits fails with `closed`. */
  #end(because: string, nowMs: number, lost?: LostReason): void {
    this.#closedBecause = because;
    const error = new ClosedError(because);
    for (const ticket of this.#tickets.held.values()) {
      if (ticket.acquire !== undefined) this.#requests.settle(ticket.acquire, undefined, error);
    }
    this.#tickets.endAll(lost);
    this.#settleUnanswered(error, nowMs);
    this.#link.close();
    this.#link.outgoing.length = 0;
    this.effects.push({ kind: "closed" });
  }

  /** Every unanswered request has this error, and none is sent again. */
  #settleUnanswered(error: TicketingError, nowMs: number): void {
    const unanswered = [...this.#requests.unanswered.values()];
    this.#requests.unanswered.clear();
    for (const request of unanswered) {
      this.#deadlines.set(request, NEVER);
      const { ticket } = request;
      if (request.op === OP_RELEASE && ticket) {
        if (!request.settled) this.#tickets.releaseEnded(ticket, request, error, nowMs);
      } else if (request.op === OP_EXTEND && ticket) {
        this.#tickets.extendFailed(ticket, request, error, nowMs);
      } else {
        this.#requests.settle(request, undefined, error);
      }
    }
  }

  // Calls.

  /**
   * Ask for a key or a set. The waiter's value is a HeldTicket.
   *
   * Throws InvalidArgumentError and ClosedError at once; then no id was taken.
   */
  acquire(keys: readonly args.NamedKey[], terms: Terms, waiter: Waiter, nowMs: number): Request {
    const request = new Request(OP_ACQUIRE, waiter, nowMs);
    request.keys = keys.map((key) => key.wire);
    request.shownKeys = keys.map((key) => key.shown);
    this.#chooseLease(request, terms);
    const { waitTimeoutMs } = terms;
    request.waitMs =
      waitTimeoutMs === undefined ? this.settings.waitMs : args.waitMs(waitTimeoutMs);
    this.#checkOpen();
    const { waitMs, leaseMs } = request;
    request.id = this.#requests.takeId();
    if (request.keys.length === 1) {
      request.frame = acquireFrame(request.id, waitMs, leaseMs, request.keys[0]);
    } else {
      request.op = OP_ACQUIRE_SET;
      request.frame = acquireSetFrame(request.id, waitMs, leaseMs, request.keys);
    }
    this.#setWaitBounds(request);
    this.#requests.issue(request, nowMs);
    return request;
  }

  /** No lease: the default, extended while held. A lease: fixed unless told otherwise. */
  #chooseLease(request: Request, terms: Terms): void {
    const { settings } = this;
    const leaseMs = terms.leaseMs === undefined ? settings.leaseMs : args.leaseMs(terms.leaseMs);
    const autoExtend = args.checkFlag("autoExtend", terms.autoExtend) ?? settings.autoExtend;
    request.autoExtend = autoExtend ?? leaseMs === undefined;
    request.leaseMs = leaseMs ?? CLIENT_LEASE_MS_DEFAULT;
  }

  #setWaitBounds(request: Request): void {
    const { calledMs, waitMs } = request;
    if (waitMs === WAIT_MS_TRY) {
      this.#setReplyBound(request);
      return;
    }
    const { heldKeys } = this.#tickets;
    if (heldKeys.size > 0 && request.keys.some((key) => heldKeys.has(key))) {
      this.#warn(`this client waits for ${nameOf(request)}, which it holds itself`);
    }
    if (waitMs !== WAIT_MS_FOREVER) request.boundMs = calledMs + waitMs;
    request.warnMs = calledMs + CLIENT_WAIT_WARNING_MS;
    this.#deadlines.set(request, Math.min(request.boundMs, request.warnMs));
  }

  /**
   * The caller of an acquire, extend, adoption or ping was cancelled.
   *
   * It leaves neither waiter nor ticket behind, however far the request has come. The waiter is
   * not settled.
   */
  abandon(request: Request, nowMs: number): void {
    request.waiter = undefined;
    const { ticket } = request;
    if (ticket !== undefined && (isAcquire(request.op) || request.purpose === "adopt")) {
      if (ticket.state === "held" || ticket.state === "confirming") {
        ticket.acquire = undefined;
        this.#requests.settle(request, undefined);
        this.#tickets.release(ticket, undefined, nowMs);
      }
      return;
    }
    if (!request.settled) this.#giveUp(request, undefined, nowMs);
  }

  /** Make a lease end later. Throws InvalidArgumentError at once. */
  extend(ticket: HeldTicket, leaseMs: number | undefined, waiter: Waiter, nowMs: number): Request {
    const wholeMs = leaseMs === undefined ? ticket.leaseMs : args.leaseMs(leaseMs);
    return this.#tickets.extend(ticket, wholeMs, waiter, nowMs);
  }

  /** Release a ticket; without a waiter when nobody waits for the answer. */
  release(ticket: HeldTicket, waiter: Waiter | undefined, nowMs: number): void {
    this.#tickets.release(ticket, waiter, nowMs);
  }

  /** End this client's part in a ticket; the waiter's value is the reference. */
  handOver(ticket: HeldTicket, waiter: Waiter, nowMs: number): void {
    this.#tickets.handOver(ticket, waiter, nowMs);
  }

  /** The caller of a handOver was cancelled before it had the reference. */
  stopHandOver(ticket: HeldTicket, waiter: Waiter, nowMs: number): void {
    if (!this.isClosed) this.#tickets.stopHandOver(ticket, waiter, nowMs);
  }

  /** Make a ticket out of a reference. The waiter's value is a HeldTicket. */
  adopt(reference: string, terms: Terms, waiter: Waiter, nowMs: number): Request {
    const { token, key } = args.parseReference(reference);
    const request = new Request(OP_EXTEND, waiter, nowMs);
    request.purpose = "adopt";
    request.keys = [key];
    request.shownKeys = [args.shownKey(key)];
    this.#chooseLease(request, terms);
    this.#checkOpen();
    request.token = token;
    request.id = this.#requests.takeId();
    request.frame = extendFrame(request.id, token, request.leaseMs, key);
    this.#setReplyBound(request);
    this.#requests.issue(request, nowMs);
    return request;
  }

  /** Ask the server for a sign of life. */
  ping(waiter: Waiter, nowMs: number): Request {
    this.#checkOpen();
    const request = new Request(OP_PING, waiter, nowMs);
    request.id = this.#requests.takeId();
    request.frame = pingFrame(request.id);
    this.#setReplyBound(request);
    this.#requests.issue(request, nowMs);
    return request;
  }

  #setReplyBound(request: Request): void {
    request.boundMs = request.calledMs + this.settings.replyTimeoutMs;
    this.#deadlines.set(request, request.boundMs);
  }

  #checkOpen(): void {
    if (this.#closedBecause !== undefined) throw new ClosedError(this.#closedBecause);
  }

  // Giving up.

  /** Settle a request without its answer, and undo what it may have done. */
  #giveUp(request: Request, error: TicketingError | undefined, nowMs: number): void {
    const { ticket } = request;
    if (request.op === OP_EXTEND && ticket !== undefined && request.purpose !== "adopt") {
      this.#requests.withdraw(request);
      this.#tickets.extendFailed(ticket, request, error ?? UNWANTED, nowMs);
      return;
    }
    this.#requests.settle(request, undefined, error);
    this.#requests.withdraw(request);
    if (ticket !== undefined) {
      ticket.acquire = undefined;
      this.#tickets.release(ticket, undefined, nowMs);
    } else if (isAcquire(request.op) && request.sendings > 0) {
      this.#sendCancel(request, nowMs);
    }
  }

  #sendCancel(acquire: Request, nowMs: number): void {
    const request = new Request(OP_CANCEL, undefined, nowMs);
    request.id = this.#requests.takeId();
    request.acquireId = acquire.id;
    request.frame = cancelFrame(request.id, acquire.id, acquire.keys[0]);
    this.#requests.issue(request, nowMs);
  }

  #requestDue(request: Request, nowMs: number): void {
    if (nowMs >= request.warnMs) {
      const waitedS = ((nowMs - request.calledMs) / 1000).toFixed(0);
      this.#warn(`waiting for ${nameOf(request)} since ${waitedS} s`);
      request.warnMs = NEVER;
    }
    if (nowMs < request.boundMs) {
      this.#deadlines.set(request, Math.min(request.boundMs, request.warnMs));
    } else if (request.op === OP_RELEASE && request.ticket !== undefined) {
      const { ticket } = request;
      this.#tickets.releaseEnded(ticket, request, lostError(ticket), nowMs);
    } else if (!isAcquire(request.op) || request.waitMs === WAIT_MS_TRY) {
      const seconds = this.settings.replyTimeoutMs / 1000;
      const where = this.connectionAddress ?? (this.#roundFailure || "no server in reach");
      const text = `no answer within ${seconds} s (${where})`;
      this.#giveUp(request, new ReplyTimeoutError(text), nowMs);
    } else if (!this.#endWaitIfOver(request, nowMs)) {
      this.#deadlines.set(request, request.boundMs + CLIENT_WAIT_OVERRUN_MS);
    }
  }

  /** End a wait at its deadline, or a little later where the server can still do it. */
  #endWaitIfOver(request: Request, nowMs: number): boolean {
    if (request.waitMs === WAIT_MS_TRY) return false;
    const overrunMs = this.#link.ready ? CLIENT_WAIT_OVERRUN_MS : 0;
    if (nowMs < request.boundMs + overrunMs) return false;
    const waitedMs = nowMs - request.calledMs;
    this.#notify({ kind: "timed_out", keys: request.shownKeys, waitedMs });
    const text = `the wait for ${nameOf(request)} ended after ${request.waitMs} ms`;
    this.#giveUp(request, new WaitTimeoutError(text), nowMs);
    return true;
  }

  // What the link tells.

  /** Send what is unanswered again, then ask about the tickets that are held. */
  linkReady(nowMs: number): void {
    const address = `${this.#link.endpoint}`;
    this.#roundFailure = "";
    this.#log("debug", `connected to ${address}`);
    this.#notify({ kind: "connected", address });
    this.#settle(this.#opening);
    this.#opening = undefined;
    this.#requests.queueAgain(nowMs);
    this.#tickets.queueAfterReconnect(nowMs);
  }

  /** The connection is gone: what was given up is forgotten, waits that are over end. */
  linkDown(reason: string, nowMs: number): void {
    const address = `${this.#link.endpoint}`;
    this.#log("info", `disconnected from ${address}: ${reason}`);
    this.#notify({ kind: "disconnected", address, reason });
    this.#requests.forgetGivenUp();
    if (this.#isClosing) {
      this.#finishClose(nowMs);
      return;
    }
    const waiting = [...this.#requests.unanswered.values()].filter(({ op }) => isAcquire(op));
    for (const { acquire } of this.#tickets.held.values()) {
      if (acquire !== undefined) waiting.push(acquire);
    }
    for (const request of waiting) {
      if (!request.settled) this.#endWaitIfOver(request, nowMs);
    }
  }

  /** Whether to go on with the next round. */
  linkRoundFailed(error: TicketingError, nowMs: number): boolean {
    const isFinal = error instanceof AuthError;
    if (this.#opening !== undefined) {
      if (!isFinal && !this.#link.nextRoundIsLate(this.#openingUntilMs)) return true;
      this.#settle(this.#opening, error);
      this.#opening = undefined;
      this.#end(`the client could not be opened: ${error.message}`, nowMs);
      return false;
    }
    this.#log(this.#roundFailure ? "debug" : "warn", error.message);
    this.#roundFailure = error.message;
    if (isFinal) this.#settleUnanswered(error, nowMs);
    return !isFinal;
  }

  /** A reply about a request or a ticket. */
  linkReply(reply: Reply, nowMs: number): void {
    if (this.#replies.read(reply, nowMs)) {
      this.#link.notServing(said(reply.value, args.sanitised(reply.tail)), nowMs);
    }
  }

  /** The server ends this connection and says why. */
  linkRefused(code: number, text: string, nowMs: number): void {
    const told = said(code, text);
    if (code === ERROR_TAKEN_OVER) {
      this.#warn(told);
      this.#end(`a newer client took over: ${told}`, nowMs, "taken_over");
      return;
    }
    if (code === ERROR_BAD_FRAME) this.#settleUnanswered(new ProtocolError(told), nowMs);
    this.#link.reconnect(told, nowMs);
  }

  // Effects.

  #settle(waiter: Waiter | undefined, error?: TicketingError): void {
    if (waiter !== undefined)
      this.effects.push({ kind: "settled", waiter, value: undefined, error });
  }

  #notify(event: TicketingEvent): void {
    if (this.settings.observed) this.effects.push({ kind: "notify", event });
  }

  #log(level: LogLevel, text: string): void {
    this.effects.push({ kind: "log", level, text });
  }

  #warn(text: string): void {
    this.#log("warn", text);
  }
}

const UNWANTED = new ClosedError("the caller gave up");

/** What an E says, for people. */
function said(code: number, text: string): string {
  const name = ERRORS.get(code)?.name ?? `code ${code}`;
  return text ? `${name}: ${text}` : name;
}
