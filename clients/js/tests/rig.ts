/** A core under a scripted transport and a clock that is turned by hand. */

import assert from "node:assert/strict";
import { GREETING_MAGIC } from "../src/constants_gen.js";
import { namedSet } from "../src/core/arguments.js";
import { ClientCore, type Terms } from "../src/core/client.js";
import { decode, encode, type Fields } from "../src/core/codec.js";
import { NEVER } from "../src/core/deadlines.js";
import type { Waiter } from "../src/core/effects.js";
import { serverProof } from "../src/core/handshake.js";
import type { Request } from "../src/core/requests.js";
import type { CoreSettings } from "../src/core/settings.js";
import type { HeldTicket } from "../src/core/tickets.js";
import { Endpoint } from "../src/core/urls.js";
import type { TicketingError } from "../src/errors.js";
import type { Key, TicketingEvent } from "../src/events.js";

export const A = Endpoint.tcp("10.0.0.1", 5225);
export const B = Endpoint.tcp("10.0.0.2", 5225);
export const C = Endpoint.tcp("10.0.0.3", 5225);
export const LEADER = Endpoint.tcp("10.0.0.9", 7000);
export const FOREVER_MS = 0xffffffff;

const SETTINGS: CoreSettings = {
  endpoints: [A],
  clientId: 42n,
  seed: Uint8Array.from({ length: 16 }, (_, at) => at),
  label: Buffer.from("test;javascript/0"),
  secret: Buffer.alloc(0),
  fingerprint: undefined,
  keyPrefix: "",
  leaseMs: undefined,
  waitMs: FOREVER_MS,
  autoExtend: undefined,
  connectForMs: 0,
  replyTimeoutMs: 10_000,
  releaseOnClose: true,
  observed: true,
};

/** Stands where the shell puts a promise; fails the test when it is settled twice. */
export class Outcome implements Waiter {
  #outcomes: { value: unknown; error: TicketingError | undefined }[] = [];

  settle(value: unknown, error: TicketingError | undefined): void {
    this.#outcomes.push({ value, error });
    assert.equal(this.#outcomes.length, 1, "settled twice");
  }

  get done(): boolean {
    return this.#outcomes.length > 0;
  }

  get value(): unknown {
    assert.ok(this.done, "not settled yet");
    const [{ value, error }] = this.#outcomes;
    assert.equal(error, undefined);
    return value;
  }

  get error(): TicketingError {
    assert.ok(this.done, "not settled yet");
    const [{ error }] = this.#outcomes;
    assert.ok(error !== undefined, "settled without an error");
    return error;
  }

  get kind(): string {
    return this.error.kind;
  }
}

export interface Call {
  readonly request: Request;
  readonly outcome: Outcome;
}

export interface Sent {
  readonly name: string;
  readonly fields: Fields;
}

/** Drives a core and notes what it does. */
export class Rig {
  readonly core: ClientCore;
  now = 1_000_000.25;
  connects: string[] = [];
  serial = 0;
  readonly disconnects: number[] = [];
  readonly events: TicketingEvent[] = [];
  readonly logs: { level: string; text: string }[] = [];
  readonly ended: HeldTicket[] = [];
  readonly opened = new Outcome();
  greeting = Buffer.alloc(0);

  constructor(changes: Partial<CoreSettings> = {}) {
    this.core = new ClientCore({ ...SETTINGS, ...changes });
  }

  // The shell's part.

  /** Carry out the effects. */
  run(): void {
    for (const effect of this.core.effects.splice(0)) {
      if (effect.kind === "settled") effect.waiter.settle(effect.value, effect.error);
      else if (effect.kind === "disconnect") this.disconnects.push(effect.serial);
      else if (effect.kind === "notify") this.events.push(effect.event);
      else if (effect.kind === "log") this.logs.push(effect);
      else if (effect.kind === "ticket_ended") this.ended.push(effect.ticket);
      else if (effect.kind === "connect") {
        this.connects.push(`${effect.endpoint}`);
        this.serial = effect.serial;
      }
    }
  }

  /** Let time pass, calling the core at each of its deadlines. */
  pass(ms: number): void {
    this.until(this.now + ms);
  }

  until(endMs: number): void {
    for (;;) {
      const dueMs = this.core.nextDeadlineMs();
      if (dueMs > endMs) break;
      this.now = Math.max(this.now, dueMs);
      this.core.onTime(this.now);
      this.run();
      assert.ok(this.core.nextDeadlineMs() > this.now, "a deadline that time does not move");
    }
    this.now = endMs;
  }

  /** Let time pass without calling the core: the process was stopped. */
  jump(ms: number): void {
    this.now += ms;
  }

  /** The bytes that the core wants written now. */
  output(): Buffer {
    return Buffer.concat(this.core.takeOutput(this.now));
  }

  /** The frames that the core wants written now. */
  sent(): Sent[] {
    return this.core.takeOutput(this.now).map((frame) => decode("client", frame));
  }

  names(): string[] {
    return this.sent().map(({ name }) => name);
  }

  /** Bytes from the server. */
  feed(data: Uint8Array, serial = this.serial): void {
    this.core.receive(serial, Buffer.from(data), this.now);
    this.run();
  }

  /** One frame from the server. */
  reply(name: string, fields: Fields): void {
    this.feed(encode("server", name, fields));
  }

  refuse(code: number, requestId = 0, text = ""): void {
    this.reply("error", { request_id: requestId, code, text: Buffer.from(text) });
  }

  grant(requestId: number, token = 7, waitedMs = 0): void {
    this.reply("granted", { request_id: requestId, token, waited_ms: waitedMs });
  }

  /** The transport fails or ends. */
  lose(reason = "reset by peer"): void {
    this.core.disconnected(this.serial, reason, this.now);
    this.run();
  }

  // Connecting.

  open(): this {
    this.core.open(this.opened, this.now);
    this.run();
    return this;
  }

  /** The transport stands and the server greets. */
  greet(low = 4, high = 4): void {
    this.core.connected(this.serial, this.now);
    const nonce = Buffer.alloc(16, 100);
    this.greeting = Buffer.concat([GREETING_MAGIC, Buffer.of(low, high, 0, 255), nonce]);
    this.feed(this.greeting);
  }

  /** The server proves itself, with this client's secret unless told otherwise. */
  welcome(
    told: {
      role?: number;
      keepaliveS?: number;
      leader?: string;
      fingerprint?: Uint8Array;
      secret?: string;
    } = {},
  ): void {
    const hello = this.sent().find(({ name }) => name === "hello");
    assert.ok(hello !== undefined, "no hello was sent");
    const nonce = hello.fields.client_nonce as Uint8Array;
    const { role = 0, keepaliveS = 60, fingerprint = Buffer.alloc(32) } = told;
    const leader = Buffer.from(told.leader ?? "");
    const secret = told.secret === undefined ? this.core.settings.secret : Buffer.from(told.secret);
    const facts = [role, keepaliveS, fingerprint, leader] as const;
    const proof = serverProof(secret, this.greeting, nonce, ...facts);
    this.reply("welcome", { role, keepalive_s: keepaliveS, fingerprint, proof, leader });
  }

  /** Open and connect to a server that serves; or reconnect to one. */
  ready(keepaliveS = 60): this {
    if (this.connects.length === 0) this.open();
    this.untilConnecting();
    this.greet();
    this.welcome({ keepaliveS });
    return this;
  }

  /** Let the back-off pass. */
  untilConnecting(): void {
    while (this.core.isBackingOff) this.until(this.core.nextDeadlineMs());
  }

  // Calls.

  /** Acquire a key or keys with a fixed lease of 10 s unless told otherwise. */
  acquire(keys: Key | Key[] = "k", terms: Terms = {}): Call {
    const outcome = new Outcome();
    const named = namedSet(Array.isArray(keys) ? keys : [keys], this.core.settings.keyPrefix);
    const all = { leaseMs: 10_000, ...terms };
    const request = this.core.acquire(named, all, outcome, this.now);
    this.run();
    return { request, outcome };
  }

  /** Acquire and be granted; nothing is left to write. */
  hold(keys: Key | Key[] = "k", token = 7, terms: Terms = {}, waitedMs = 0): HeldTicket {
    const { request, outcome } = this.acquire(keys, terms);
    this.output();
    this.grant(request.id, token, waitedMs);
    return outcome.value as HeldTicket;
  }

  abandon(call: Call): void {
    this.core.abandon(call.request, this.now);
    this.run();
  }

  release(ticket: HeldTicket): Outcome {
    const outcome = new Outcome();
    this.core.release(ticket, outcome, this.now);
    this.run();
    return outcome;
  }

  extend(ticket: HeldTicket, leaseMs?: number): Call {
    const outcome = new Outcome();
    const request = this.core.extend(ticket, leaseMs, outcome, this.now);
    this.run();
    return { request, outcome };
  }

  handOver(ticket: HeldTicket): Outcome {
    const outcome = new Outcome();
    this.core.handOver(ticket, outcome, this.now);
    this.run();
    return outcome;
  }

  adopt(reference: string, terms: Terms = { leaseMs: 10_000 }): Call {
    const outcome = new Outcome();
    const request = this.core.adopt(reference, terms, outcome, this.now);
    this.run();
    return { request, outcome };
  }

  ping(): Call {
    const outcome = new Outcome();
    const request = this.core.ping(outcome, this.now);
    this.run();
    return { request, outcome };
  }

  close(): Outcome {
    const outcome = new Outcome();
    this.core.close(outcome, this.now);
    this.run();
    return outcome;
  }

  kinds(): string[] {
    return this.events.map(({ kind }) => kind);
  }

  warnings(): string[] {
    return this.logs.filter(({ level }) => level === "warn").map(({ text }) => text);
  }

  /** Whether nothing is due any more. */
  get isStill(): boolean {
    return this.core.nextDeadlineMs() === NEVER;
  }
}
