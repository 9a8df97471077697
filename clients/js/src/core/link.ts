/**
 * The client's one connection: rounds over the endpoints, handshake, roles, silence.
 *
 * The link knows nothing of requests. It tells its owner when requests may be sent and when the
 * connection is gone, and hands it every reply that is not about the connection itself.
 */

import {
  CLIENT_BACKOFF_RESET_MS,
  CLIENT_CONNECT_TIMEOUT_MS,
  CLIENT_CONNECT_TIMEOUT_SEVERAL_MS,
  CLIENT_HANDSHAKE_TIMEOUT_MS,
  CLIENT_NO_LEADER_WAIT_MS,
  ERROR_AUTH_FAILED,
  ERROR_NOT_SERVING,
  ERRORS,
  GREETING_BYTES,
  KEEPALIVE_S_MAX,
  KEEPALIVE_S_MIN,
  PROTOCOL_VERSION,
  REPLY_ERROR,
  REPLY_LEADER,
  REPLY_PING,
  REPLY_WELCOME,
  ROLE_FOLLOWER,
  ROLE_UNKNOWN,
  SILENCE_KEEPALIVES,
} from "../constants_gen.js";
import { AuthError, ConnectionFailedError, ProtocolError, type TicketingError } from "../errors.js";
import { latin1, sanitised } from "./arguments.js";
import { Malformed } from "./codec.js";
import { type Deadlines, NEVER } from "./deadlines.js";
import type { Effect } from "./effects.js";
import { pingFrame, type Reply, ReplyReader } from "./frames.js";
import * as handshake from "./handshake.js";
import type { Request } from "./requests.js";
import { Backoff, Rounds } from "./rounds.js";
import type { CoreSettings } from "./settings.js";
import { type Endpoint, parseAddress } from "./urls.js";

const KEEPALIVE_ECHO = 0;
const NO_BYTES = Buffer.alloc(0);

/** Where the link is. Requests are sent in `ready` alone. */
export type LinkState =
  /** No round is under way: not opened yet, or the last one failed with an auth error. */
  | "idle"
  /** Waiting to begin the next round. */
  | "back-off"
  /** The shell is opening a connection, or the greeting has not come whole. */
  | "connecting"
  /** Waiting for the welcome. */
  | "hello sent"
  /** Welcomed by a node that knows no leader; waiting a moment for L. */
  | "leaderless"
  /** Welcomed by a server that serves requests. */
  | "ready"
  | "closed";

/** What the link tells the core. */
export interface LinkOwner {
  /** Requests may be sent from now on. */
  linkReady(nowMs: number): void;
  /** A connection that was ready is gone. */
  linkDown(reason: string, nowMs: number): void;
  /** A round ended without success; false stops the link until it is told to start. */
  linkRoundFailed(error: TicketingError, nowMs: number): boolean;
  /** A reply about a request or a ticket. Throws Malformed to drop the connection. */
  linkReply(reply: Reply, nowMs: number): void;
  /** An E about the whole connection, after the welcome. */
  linkRefused(code: number, text: string, nowMs: number): void;
}

/** One connection at a time, made again for as long as the owner wants it. */
export class Link {
  dueMs = NEVER;
  readonly outgoing: (Buffer | Request)[] = [];
  state: LinkState = "idle";
  serial = 0;
  endpoint: Endpoint | undefined;
  readonly #rounds: Rounds;
  readonly #backoff: Backoff;
  #hellos = 0;
  #reader = new ReplyReader();
  #greeting: Buffer = NO_BYTES;
  #nonce: Buffer = NO_BYTES;
  #keepaliveMs = 0;
  #readyMs = 0;
  #receivedMs = 0;
  #sentMs = 0;
  #pingUnanswered = false;
  #answered = false;
  /** The connection that this round may bring is the first since `start`. */
  #firstConnection = false;

  constructor(
    private readonly settings: CoreSettings,
    private readonly owner: LinkOwner,
    private readonly deadlines: Deadlines,
    private readonly effects: Effect[],
  ) {
    this.#rounds = new Rounds(settings.endpoints);
    this.#backoff = new Backoff(settings.seed);
  }

  /** Whether requests may be sent. */
  get ready(): boolean {
    return this.state === "ready";
  }

  // What the owner asks for.

  /** Begin a round, unless one is under way or a connection stands. */
  start(nowMs: number): void {
    if (this.state !== "idle") return;
    this.#backoff.reset();
    this.#firstConnection = true;
    this.#scheduleRound(nowMs);
  }

  /** A request was answered on this connection, so the next back-off starts afresh. */
  answered(): void {
    this.#answered = true;
  }

  /** Leave this connection for another, as after a loss. */
  reconnect(reason: string, nowMs: number): void {
    this.#drop(new ConnectionFailedError(reason), nowMs);
  }

  /** Leave a server that does not serve requests for another endpoint. */
  notServing(reason: string, nowMs: number): void {
    this.#rounds.doesNotLead(this.#endpointInUse());
    this.reconnect(reason, nowMs);
  }

  /** End for good. */
  close(): void {
    if (this.#connectionExists()) this.effects.push({ kind: "disconnect", serial: this.serial });
    this.state = "closed";
    this.deadlines.set(this, NEVER);
  }

  // What the shell reports.

  /** The transport stands. The greeting is still to come, within the same bound. */
  connected(serial: number, nowMs: number): void {
    if (serial === this.serial && this.state === "connecting") {
      this.#receivedMs = this.#sentMs = nowMs;
    }
  }

  /** The transport failed or ended. */
  disconnected(serial: number, reason: string, nowMs: number): void {
    if (serial === this.serial && this.#connectionExists()) {
      this.#drop(new ConnectionFailedError(reason), nowMs, false);
    }
  }

  /** Bytes from the transport; those of an earlier connection don't count any more. */
  receive(serial: number, data: Buffer, nowMs: number): void {
    if (serial !== this.serial || !this.#connectionExists()) return;
    this.#receivedMs = nowMs;
    try {
      const rest = this.state === "connecting" ? this.#readGreeting(data, nowMs) : data;
      if (rest.length > 0) this.#readReplies(serial, rest, nowMs);
    } catch (error) {
      if (!(error instanceof Malformed)) throw error;
      const text = `the server broke the protocol: ${error.message}`;
      this.#drop(new ConnectionFailedError(text), nowMs);
    }
  }

  /** Bytes were handed to the transport. */
  wrote(nowMs: number): void {
    this.#sentMs = nowMs;
  }

  /** The deadline that was set is reached. */
  due(nowMs: number): void {
    switch (this.state) {
      case "back-off":
        this.#rounds.begin();
        this.#tryNext(nowMs);
        break;
      case "connecting": {
        const text =
          `no greeting within ${this.#connectMs()} ms (check the port, and whether it` +
          " speaks TLS: ticketings://, or not: ticketing://)";
        this.#drop(new ConnectionFailedError(text), nowMs);
        break;
      }
      case "hello sent": {
        const text = `no welcome within ${CLIENT_HANDSHAKE_TIMEOUT_MS} ms`;
        this.#drop(new ConnectionFailedError(text), nowMs);
        break;
      }
      case "leaderless":
        this.#drop(new ConnectionFailedError("the node knows no leader"), nowMs);
        break;
      case "ready":
        this.#watchSilence(nowMs);
        break;
    }
  }

  // Rounds.

  #connectionExists(): boolean {
    return this.state !== "idle" && this.state !== "back-off" && this.state !== "closed";
  }

  #connectMs(): number {
    return this.#rounds.several ? CLIENT_CONNECT_TIMEOUT_SEVERAL_MS : CLIENT_CONNECT_TIMEOUT_MS;
  }

  #scheduleRound(nowMs: number): void {
    const delayMs = this.#backoff.nextDelayMs();
    this.state = "back-off";
    if (delayMs > 0) {
      this.deadlines.set(this, nowMs + delayMs);
    } else {
      this.#rounds.begin();
      this.#tryNext(nowMs);
    }
  }

  /** Whether the round that is waited for would begin only after a time. */
  nextRoundIsLate(deadlineMs: number): boolean {
    return this.dueMs !== NEVER && this.dueMs > deadlineMs;
  }

  #tryNext(nowMs: number): void {
    const endpoint = this.#rounds.next();
    if (endpoint === undefined) {
      this.state = "idle";
      this.deadlines.set(this, NEVER);
      this.#scheduleUnlessStopped(this.#rounds.outcome(), nowMs);
      return;
    }
    this.serial += 1;
    this.endpoint = endpoint;
    this.state = "connecting";
    this.outgoing.length = 0;
    this.#reader = new ReplyReader();
    this.#greeting = NO_BYTES;
    this.#answered = false;
    this.#pingUnanswered = false;
    this.deadlines.set(this, nowMs + this.#connectMs());
    this.effects.push({ kind: "connect", serial: this.serial, endpoint });
  }

  #scheduleUnlessStopped(error: TicketingError, nowMs: number): void {
    if (error instanceof AuthError) {
      this.owner.linkRoundFailed(error, nowMs);
      return; // Whether to try again is for the next call to say.
    }
    this.#scheduleRound(nowMs);
    if (!this.owner.linkRoundFailed(error, nowMs) && this.state === "back-off") {
      this.state = "idle";
      this.deadlines.set(this, NEVER);
    }
  }

  /** End this connection: rule the endpoint out for this round, or begin a new one. */
  #drop(error: TicketingError, nowMs: number, tellShell = true): void {
    const endpoint = this.#endpointInUse();
    const wasReady = this.ready;
    if (tellShell) this.effects.push({ kind: "disconnect", serial: this.serial });
    this.deadlines.set(this, NEVER);
    if (!wasReady) {
      this.#rounds.failed(endpoint, error);
      this.#tryNext(nowMs);
      return;
    }
    this.state = "back-off";
    this.outgoing.length = 0;
    this.#rounds.lost(endpoint);
    if (this.#answered || nowMs - this.#readyMs >= CLIENT_BACKOFF_RESET_MS) this.#backoff.reset();
    this.owner.linkDown(error.message, nowMs);
    // The owner may have closed the link meanwhile.
    if ((this.state as LinkState) === "back-off") this.#scheduleRound(nowMs);
  }

  #endpointInUse(): Endpoint {
    if (this.endpoint === undefined) throw new Error("there was no connection yet");
    return this.endpoint;
  }

  // Handshake.

  /** Collect the greeting and answer it with a hello; returns what came after it. */
  #readGreeting(data: Buffer, nowMs: number): Buffer {
    const missing = GREETING_BYTES - this.#greeting.length;
    this.#greeting = Buffer.concat([this.#greeting, data.subarray(0, missing)]);
    if (!handshake.looksLikeGreeting(this.#greeting)) {
      const looksLikeTls = this.#greeting[0] === 0x15 || this.#greeting[0] === 0x16;
      const hint = looksLikeTls ? " (it speaks TLS: use ticketings://)" : "";
      throw new Malformed("stream", `no greeting of a ticketing server${hint}`);
    }
    if (this.#greeting.length < GREETING_BYTES) return NO_BYTES;
    const greeting = handshake.parseGreeting(this.#greeting);
    if (!handshake.speaksOurVersion(greeting)) {
      const text =
        `no common version: the server speaks ${greeting.minVersion} to` +
        ` ${greeting.maxVersion}, this client ${PROTOCOL_VERSION}`;
      this.#drop(new ProtocolError(text), nowMs);
      return NO_BYTES;
    }
    this.#hellos += 1;
    const { seed, secret, clientId, label } = this.settings;
    this.#nonce = handshake.clientNonce(seed, this.#hellos);
    this.outgoing.push(
      handshake.helloFrame(secret, this.#greeting, clientId, this.#hellos, this.#nonce, label),
    );
    this.state = "hello sent";
    this.deadlines.set(this, nowMs + CLIENT_HANDSHAKE_TIMEOUT_MS);
    return data.subarray(missing);
  }

  #readReplies(serial: number, data: Buffer, nowMs: number): void {
    this.#reader.feed(data, (reply) => {
      if (this.state === "ready" && !isAboutConnection(reply.op)) {
        this.owner.linkReply(reply, nowMs);
      } else {
        this.#connectionReply(reply, nowMs);
      }
      return serial === this.serial && this.#connectionExists();
    });
  }

  #connectionReply(reply: Reply, nowMs: number): void {
    const { state } = this;
    if (reply.op === REPLY_ERROR) {
      this.#error(reply, nowMs);
    } else if (state === "hello sent" && reply.op === REPLY_WELCOME) {
      this.#welcome(reply, nowMs);
    } else if ((state === "ready" || state === "leaderless") && reply.op === REPLY_LEADER) {
      this.#leaderMoved(reply, nowMs);
    } else if (state === "ready" && reply.op === REPLY_PING) {
      if (reply.requestId !== KEEPALIVE_ECHO) {
        this.owner.linkReply(reply, nowMs);
      } else if (this.#pingUnanswered) {
        this.#pingUnanswered = false;
        this.#setSilenceDeadline(); // The next ping may be due before the death was.
      } else {
        throw new Malformed("state", "a reply to a ping that was not sent");
      }
    } else {
      throw new Malformed("state", `a frame ${String.fromCharCode(reply.op)} while ${state}`);
    }
  }

  #welcome(welcome: Reply, nowMs: number): void {
    const { settings } = this;
    const { value: role, keepaliveS, fingerprint, proof, tail: leader } = welcome;
    const expected = handshake.serverProof(
      settings.secret,
      this.#greeting,
      this.#nonce,
      role,
      keepaliveS,
      fingerprint,
      leader,
    );
    if (!handshake.sameProof(expected, proof)) {
      const text = "the server can't prove that it knows the secret of this client";
      this.#drop(new AuthError(text), nowMs);
      return;
    }
    if (settings.fingerprint !== undefined && !fingerprint.equals(settings.fingerprint)) {
      const hex = fingerprint.toString("hex");
      const text = `the server is of another cluster: its fingerprint is ${hex}`;
      this.#drop(new AuthError(text), nowMs);
      return;
    }
    if (keepaliveS < KEEPALIVE_S_MIN || keepaliveS > KEEPALIVE_S_MAX) {
      throw new Malformed("body", `keepalive_s ${keepaliveS} is out of bounds`);
    }
    if (role > ROLE_UNKNOWN) throw new Malformed("body", `role ${role} is unknown`);
    const named = leaderEndpoint(leader);
    this.#rounds.welcomed();
    this.#keepaliveMs = keepaliveS * 1000;
    this.#takeRole(role, named, nowMs);
  }

  #takeRole(role: number, named: Endpoint | undefined, nowMs: number): void {
    const endpoint = this.#endpointInUse();
    if (role === ROLE_FOLLOWER) {
      if (named === undefined) throw new Malformed("body", "a follower names no leader");
      this.#rounds.leaderNamed(named, endpoint);
      this.#drop(new ConnectionFailedError(`a follower; it names ${named} as leader`), nowMs);
      return;
    }
    if (role === ROLE_UNKNOWN) {
      this.state = "leaderless";
      this.deadlines.set(this, nowMs + CLIENT_NO_LEADER_WAIT_MS);
      return;
    }
    if (named !== undefined) this.#rounds.leaderNamed(named, endpoint);
    this.state = "ready";
    if (this.#firstConnection) {
      this.#firstConnection = false;
      this.#backoff.reset();
    }
    this.#readyMs = this.#receivedMs = nowMs;
    this.#setSilenceDeadline();
    this.owner.linkReady(nowMs);
  }

  #error(reply: Reply, nowMs: number): void {
    const { value: code } = reply;
    const text = sanitised(reply.tail);
    const row = ERRORS.get(code);
    if (row === undefined) throw new Malformed("body", `code ${code} is unknown`);
    let said = text ? `${row.name}: ${text}` : row.name;
    if (this.ready) {
      if (reply.requestId !== 0) this.owner.linkReply(reply, nowMs);
      else if (code === ERROR_NOT_SERVING) this.notServing(said, nowMs);
      else if (!row.closes) throw new Malformed("body", `${row.name} without a request`);
      else this.owner.linkRefused(code, text, nowMs);
      return;
    }
    if (code === ERROR_AUTH_FAILED) {
      said += " (set the server's secret as option `secret` or in TICKETING_SECRET)";
    }
    let error: TicketingError = new ConnectionFailedError(said);
    if (row.kind === "auth") error = new AuthError(said);
    else if (row.kind === "protocol") error = new ProtocolError(said);
    this.#drop(error, nowMs);
  }

  #leaderMoved(reply: Reply, nowMs: number): void {
    const named = leaderEndpoint(reply.tail);
    this.#rounds.leaderNamed(named, this.#endpointInUse(), true);
    const where = named === undefined ? "elsewhere" : `to ${named}`;
    this.#drop(new ConnectionFailedError(`the server sends its clients ${where}`), nowMs);
  }

  // Silence.

  #setSilenceDeadline(): void {
    const deadMs = this.#receivedMs + SILENCE_KEEPALIVES * this.#keepaliveMs;
    const pingMs = Math.min(this.#receivedMs, this.#sentMs) + this.#keepaliveMs;
    this.deadlines.set(this, this.#pingUnanswered ? deadMs : Math.min(deadMs, pingMs));
  }

  #watchSilence(nowMs: number): void {
    // Sums are compared as they were set: a difference of fractions may fall short of its part.
    if (nowMs >= this.#receivedMs + SILENCE_KEEPALIVES * this.#keepaliveMs) {
      const silentMs = nowMs - this.#receivedMs;
      const text = `nothing received for ${(silentMs / 1000).toFixed(1)} s`;
      this.#drop(new ConnectionFailedError(text), nowMs);
      return;
    }
    const quietSinceMs = Math.min(this.#receivedMs, this.#sentMs);
    if (!this.#pingUnanswered && nowMs >= quietSinceMs + this.#keepaliveMs) {
      this.#pingUnanswered = true;
      this.#sentMs = nowMs;
      this.outgoing.push(pingFrame(KEEPALIVE_ECHO));
    }
    this.#setSilenceDeadline();
  }
}

function isAboutConnection(op: number): boolean {
  return op === REPLY_WELCOME || op === REPLY_LEADER || op === REPLY_ERROR || op === REPLY_PING;
}

/** The endpoint that a server names; throws Malformed for anything but nothing or an address. */
function leaderEndpoint(leader: Buffer): Endpoint | undefined {
  if (leader.length === 0) return undefined;
  const endpoint = parseAddress(latin1(leader));
  if (endpoint === undefined) {
    throw new Malformed("body", `the leader ${sanitised(leader)} is no host:port`);
  }
  return endpoint;
}
