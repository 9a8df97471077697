/** What each reply of the server does to the request or the ticket that it is about. */

import {
  DROP_LEASE_OVER,
  DROP_OPERATOR,
  DROP_OTHER_CLIENT,
  ERROR_BAD_FRAME,
  ERROR_FORBIDDEN,
  ERROR_LEASE_TOO_LONG,
  ERROR_NOT_SERVING,
  ERRORS,
  OP_CANCEL,
  OP_EXTEND,
  OP_HELLO,
  OP_PING,
  OP_RELEASE,
  REPLY_CANCELLED,
  REPLY_DROPPED,
  REPLY_ERROR,
  REPLY_EXTENDED,
  REPLY_GRANTED,
  REPLY_NOT_HELD,
  REPLY_OVERLOADED,
  REPLY_PING,
  REPLY_RELEASED,
  REPLY_TIMED_OUT,
  WAIT_MS_TRY,
} from "../constants_gen.js";
import {
  AuthError,
  HeldError,
  InvalidArgumentError,
  type LostReason,
  NotHeldError,
  OverloadedError,
  ProtocolError,
  type TicketingError,
  WaitTimeoutError,
} from "../errors.js";
import { sanitised } from "./arguments.js";
import { Malformed } from "./codec.js";
import type { Effect } from "./effects.js";
import type { Reply } from "./frames.js";
import { isAcquire, type RequestTable } from "./requests.js";
import type { CoreSettings } from "./settings.js";
import { nameOf, type TicketDesk } from "./tickets.js";

const DROP_REASONS: ReadonlyMap<number, LostReason> = new Map([
  [DROP_LEASE_OVER, "lease_over"],
  [DROP_OPERATOR, "operator"],
  [DROP_OTHER_CLIENT, "other_client"],
]);

const isRelease = (op: number) => op === OP_RELEASE;
const isExtend = (op: number) => op === OP_EXTEND;
const isReleaseOrExtend = (op: number) => op === OP_RELEASE || op === OP_EXTEND;
const isCancel = (op: number) => op === OP_CANCEL;
const isPing = (op: number) => op === OP_PING;
const isAny = (op: number) => op !== OP_HELLO;

/** Matches replies with requests; throws Malformed for what can't be a reply. */
export class ReplyReading {
  constructor(
    private readonly settings: CoreSettings,
    private readonly requests: RequestTable,
    private readonly tickets: TicketDesk,
    private readonly effects: Effect[],
  ) {}

  /** Carry out one reply; true if the connection has to be left for another. */
  read(reply: Reply, nowMs: number): boolean {
    switch (reply.op) {
      case REPLY_GRANTED:
        this.#granted(reply, nowMs);
        return false;
      case REPLY_RELEASED:
        this.#released(reply, nowMs);
        return false;
      case REPLY_TIMED_OUT:
        this.#timedOut(reply, nowMs);
        return false;
      case REPLY_OVERLOADED:
        this.#overloaded(reply);
        return false;
      case REPLY_NOT_HELD:
        this.#notHeld(reply, nowMs);
        return false;
      case REPLY_EXTENDED:
        this.#extended(reply, nowMs);
        return false;
      case REPLY_CANCELLED:
        this.#cancelled(reply);
        return false;
      case REPLY_DROPPED:
        this.#dropped(reply);
        return false;
      case REPLY_PING:
        this.requests.settle(this.requests.answered(reply.requestId, isPing), undefined);
        return false;
      case REPLY_ERROR:
        return this.#error(reply, nowMs);
      default:
        throw new Malformed(
          "state",
          `a frame ${String.fromCharCode(reply.op)} after the handshake`,
        );
    }
  }

  #granted(reply: Reply, nowMs: number): void {
    if (reply.token === 0n || this.tickets.held.has(reply.token)) {
      throw new Malformed("body", `token ${reply.token}, which no new ticket can have`);
    }
    const request = this.requests.answered(reply.requestId, isAcquire);
    // One that was given up has its cancel on the way, which releases the ticket.
    if (!request.settled) this.tickets.granted(request, reply.token, reply.value, nowMs);
  }

  #timedOut(reply: Reply, nowMs: number): void {
    const request = this.requests.answered(reply.requestId, isAcquire);
    if (request.settled) return;
    const keys = nameOf(request);
    if (request.waitMs === WAIT_MS_TRY) {
      this.requests.settle(request, undefined, new HeldError(`${keys} is held`));
      return;
    }
    if (this.settings.observed) {
      const waitedMs = nowMs - request.calledMs;
      const event = { kind: "timed_out", keys: request.shownKeys, waitedMs } as const;
      this.effects.push({ kind: "notify", event });
    }
    const text = `the wait for ${keys} ended after ${request.waitMs} ms`;
    this.requests.settle(request, undefined, new WaitTimeoutError(text));
  }

  #overloaded(reply: Reply): void {
    const request = this.requests.answered(reply.requestId, isAcquire);
    const text = `the server has no room for ${nameOf(request)} now`;
    this.requests.settle(request, undefined, new OverloadedError(text));
  }

  #released(reply: Reply, nowMs: number): void {
    const request = this.requests.answered(reply.requestId, isRelease);
    if (request.ticket) this.tickets.releaseAnswered(request.ticket, request, true, nowMs);
  }

  #notHeld(reply: Reply, nowMs: number): void {
    const request = this.requests.answered(reply.requestId, isReleaseOrExtend);
    if (request.purpose === "adopt") {
      const text = `no ticket with token ${request.token} has ${nameOf(request)}`;
      this.requests.settle(request, undefined, new NotHeldError(text));
    } else if (request.ticket && request.op === OP_RELEASE) {
      this.tickets.releaseAnswered(request.ticket, request, false, nowMs);
    } else if (request.ticket) {
      this.tickets.extendRefused(request.ticket, request, nowMs);
    }
  }

  #extended(reply: Reply, nowMs: number): void {
    const request = this.requests.answered(reply.requestId, isExtend);
    if (request.purpose === "adopt") {
      if (!request.settled) this.tickets.adopted(request, reply.value, nowMs);
    } else if (request.ticket) {
      this.tickets.extendAnswered(request.ticket, request, reply.value, nowMs);
    }
  }

  #cancelled(reply: Reply): void {
    const request = this.requests.answered(reply.requestId, isCancel);
    this.requests.unanswered.delete(request.acquireId);
  }

  #dropped(reply: Reply): void {
    const reason = DROP_REASONS.get(reply.value);
    if (reason === undefined) throw new Malformed("body", `reason ${reply.value} is unknown`);
    this.tickets.dropped(reply.token, reason);
  }

  #error(reply: Reply, nowMs: number): boolean {
    const { requestId, value: code } = reply;
    if (code === ERROR_NOT_SERVING) {
      this.requests.match(requestId, isAny); // It stays unanswered: nothing was done.
      return true;
    }
    const said = `${ERRORS.get(code)?.name}: ${sanitised(reply.tail)}`;
    const error = errorAboutRequest(code, said);
    if (error === undefined) {
      throw new Malformed("body", `${ERRORS.get(code)?.name} about request ${requestId}`);
    }
    const request = this.requests.answered(requestId, isAny);
    const { ticket } = request;
    if (request.op === OP_RELEASE && ticket) {
      if (!request.settled) this.tickets.releaseEnded(ticket, request, error, nowMs);
    } else if (request.op === OP_EXTEND && ticket) {
      this.tickets.extendFailed(ticket, request, error, nowMs);
    } else {
      this.requests.settle(request, undefined, error);
    }
    return code === ERROR_BAD_FRAME;
  }
}

function errorAboutRequest(code: number, said: string): TicketingError | undefined {
  switch (code) {
    case ERROR_BAD_FRAME:
      return new ProtocolError(said);
    case ERROR_LEASE_TOO_LONG:
      return new InvalidArgumentError(said);
    case ERROR_FORBIDDEN:
      return new AuthError(said);
    default:
      return undefined;
  }
}
