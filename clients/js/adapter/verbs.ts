/** The verbs of the adapter, over the client's public interface and its codec. */

import { appendFileSync, readFileSync, writeFileSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";
import { SPEC_DIGEST } from "../src/constants_gen.js";
import * as codec from "../src/core/codec.js";
import * as handshake from "../src/core/handshake.js";
import {
  type AcquireOptions,
  type Client,
  type ClientOptions,
  connect,
  HeldError,
  type Key,
  LostError,
  type Ticket,
  VERSION,
} from "../src/index.js";

export type Value = number | bigint | string | Uint8Array | Value[];
export type Fields = Record<string, Value>;
type Verb = (fields: Fields, signal: AbortSignal) => Promise<Fields | undefined>;

const FEATURES = (
  "async codec_both detach cancel cancel_after scope scope_cancel background renewal events" +
  " tls mtls unix ipv6 fractional nan odd_text contend"
).split(" ");

/** What the body of a scope throws by itself. */
export class BodyError extends Error {}

/** An order that the client can't carry out. */
export class Unsupported extends Error {}

/** An end that is an answer of its own: its kind, and what became of the body. */
export class Ended extends Error {
  readonly fields: Fields;

  constructor(kind: string, body = "") {
    super(kind);
    this.fields = body ? { kind, body } : { kind };
  }
}

function bytes(fields: Fields, name: string): Uint8Array {
  const value = fields[name];
  if (!(value instanceof Uint8Array)) throw new Error(`${name} takes bytes`);
  return value;
}

function text(fields: Fields, name: string): string | undefined {
  return name in fields ? Buffer.from(bytes(fields, name)).toString() : undefined;
}

function list(value: Value): Uint8Array[] {
  return (Array.isArray(value) ? value : [value]) as Uint8Array[];
}

/** A key as text; bytes that are no UTF-8 become lone surrogates. */
function keyOf(key: Uint8Array, asText: boolean): Key {
  if (!asText) return key;
  try {
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(key);
  } catch {
    const units = Array.from(key, (byte) => (byte < 0x80 ? byte : 0xdc00 + byte));
    return String.fromCharCode(...units);
  }
}

function asBytes(key: Key): Uint8Array {
  return typeof key === "string" ? Buffer.from(key) : key;
}

function ticketFields(ticket: Ticket): Fields {
  return {
    key: asBytes(ticket.key),
    keys: ticket.keys.map(asBytes),
    token: ticket.token,
    remaining_ms: Math.floor(ticket.remainingMs),
    lost: ticket.isLost ? 1 : 0,
  };
}

function milliseconds(fields: Fields, name: string): number | undefined {
  if (`${name}_ns` in fields) return Number(fields[`${name}_ns`]) / 1e6;
  const given = fields[`${name}_ms`];
  if (given === "inf") return Number.POSITIVE_INFINITY;
  return given === undefined ? undefined : Number(given); // The word `nan` becomes NaN here.
}

function flag(fields: Fields, name: string): boolean | undefined {
  return name in fields ? Boolean(fields[name]) : undefined;
}

/** Options as the API takes them; what was not given is left out. */
function given<T extends object>(options: T): T {
  const entries = Object.entries(options).filter(([, value]) => value !== undefined);
  return Object.fromEntries(entries) as T;
}

function terms(fields: Fields, signal: AbortSignal): AcquireOptions {
  return given({
    leaseMs: milliseconds(fields, "lease"),
    waitTimeoutMs: milliseconds(fields, "wait"),
    autoExtend: flag(fields, "auto_extend"),
    signal,
  });
}

/** The clients and tickets that the harness named, and what it can ask of them. */
export class Verbs {
  readonly #clients = new Map<string, Client>();
  readonly #tickets = new Map<string, Ticket>();
  readonly #seen = new Map<string, string[]>();
  opened: Client[] = [];

  find(verb: string): Verb | undefined {
    return Object.hasOwn(this.#verbs, verb) ? this.#verbs[verb] : undefined;
  }

  forget(): void {
    this.#clients.clear();
    this.#tickets.clear();
    this.#seen.clear();
    this.opened = [];
  }

  #client(fields: Fields): Client {
    const client = this.#clients.get(`${fields.client ?? "c"}`);
    if (client === undefined) throw new Error(`there is no client ${fields.client}`);
    return client;
  }

  #ticket(fields: Fields): Ticket {
    const ticket = this.#tickets.get(`${fields.ticket ?? "t"}`);
    if (ticket === undefined) throw new Error(`there is no ticket ${fields.ticket}`);
    return ticket;
  }

  #keep(fields: Fields, ticket: Ticket): Fields {
    this.#tickets.set(`${fields.as ?? "t"}`, ticket);
    return ticketFields(ticket);
  }

  async #acquire(fields: Fields, signal: AbortSignal): Promise<Ticket> {
    const options = terms(fields, signal);
    const client = this.#client(fields);
    const asText = Boolean(fields.text);
    if ("keys" in fields) {
      const keys = list(fields.keys).map((key) => keyOf(key, asText));
      return client.acquireSet(keys, fields.try ? { ...options, waitTimeoutMs: 0 } : options);
    }
    const key = keyOf(bytes(fields, "key"), asText);
    if (!fields.try) return client.acquire(key, options);
    const ticket = await client.tryAcquire(key, options);
    if (ticket === null) throw new HeldError("the key is held");
    return ticket;
  }

  async #open(fields: Fields, signal: AbortSignal): Promise<undefined> {
    if (fields.api !== "async") throw new Unsupported();
    const seen: string[] = [];
    const tls = given({
      caFile: text(fields, "tls_ca"),
      certFile: text(fields, "tls_cert"),
      keyFile: text(fields, "tls_key"),
      serverName: text(fields, "tls_server_name"),
    });
    const options: ClientOptions = given({
      url: text(fields, "url"),
      secret: "secret" in fields ? bytes(fields, "secret") : undefined,
      clientId: "client_id" in fields ? BigInt(fields.client_id as number) : undefined,
      seed: "seed" in fields ? bytes(fields, "seed") : undefined,
      label: text(fields, "label"),
      name: text(fields, "name"),
      keyPrefix: "key_prefix" in fields ? bytes(fields, "key_prefix") : undefined,
      leaseMs: milliseconds(fields, "lease"),
      waitTimeoutMs: milliseconds(fields, "wait"),
      connectForMs: milliseconds(fields, "connect_for"),
      replyTimeoutMs: milliseconds(fields, "reply_timeout"),
      releaseOnClose: flag(fields, "release_on_close"),
      fingerprint: "fingerprint" in fields ? bytes(fields, "fingerprint") : undefined,
      tls: Object.keys(tls).length > 0 ? tls : undefined,
      onEvent: (event: { kind: string }) => seen.push(event.kind),
    });
    const client = await connect({ ...options, signal });
    const name = `${fields.as ?? "c"}`;
    this.#clients.set(name, client);
    this.#seen.set(name, seen);
    this.opened.push(client);
    return undefined;
  }

  async #scope(fields: Fields, signal: AbortSignal): Promise<Fields> {
    let ended = "";
    const options = terms(fields, signal);
    const key = "keys" in fields ? list(fields.keys) : bytes(fields, "key");
    try {
      await this.#client(fields).withTicket(key, options, async (ticket) => {
        this.#keep(fields, ticket);
        ended = "cancelled";
        // Whichever comes first stops the body, and only the loss is the scope's to report.
        const either = AbortSignal.any([ticket.signal, signal]);
        await sleep(Number(fields.hold_ms ?? 0), undefined, { signal: either });
        ended = "done";
        if (fields.raise) throw new BodyError();
      });
    } catch (error) {
      throw error instanceof LostError ? new Ended("lost", ended) : error;
    }
    return { body: ended };
  }

  async #waitLost(fields: Fields): Promise<undefined> {
    const { signal } = this.#ticket(fields);
    const timeoutMs = Number(fields.timeout_ms ?? 30_000);
    if (!signal.aborted) await sleep(timeoutMs, undefined, { signal }).catch(() => undefined);
    if (!signal.aborted) throw new Ended("pending");
    return undefined;
  }

  async #contend(fields: Fields, signal: AbortSignal): Promise<undefined> {
    const path = text(fields, "file") as string;
    for (let turn = 0; turn < Number(fields.times); turn += 1) {
      const ticket = await this.#acquire(fields, signal);
      writeFileSync(path, `${Number(readFileSync(path, "utf8") || "0") + 1}`);
      appendFileSync(`${path}.tokens`, `${ticket.token}\n`);
      await ticket.release();
    }
    return undefined;
  }

  async #decode({ dir, frame, wire }: Fields): Promise<Fields> {
    const data = wire as Uint8Array;
    if (frame !== "greeting") {
      const { name, fields } = codec.decode(dir as codec.Direction, data);
      return { frame: name, ...(fields as Fields) };
    }
    const { minVersion, maxVersion, mode, slot, raw } = handshake.parseGreeting(data);
    const versions = { min_version: minVersion, max_version: maxVersion };
    return { frame, ...versions, mode, slot, nonce: raw.subarray(10) };
  }

  readonly #verbs: Record<string, Verb> = {
    hello: async () => ({
      protocol: 1,
      language: "javascript",
      client: VERSION,
      runtime: process.versions.node,
      features: FEATURES,
      digest: SPEC_DIGEST,
    }),
    encode: async ({ dir, frame, ...fields }) => {
      if ("keys" in fields) fields.keys = list(fields.keys);
      return {
        wire: codec.encode(dir as codec.Direction, frame as string, fields as codec.Fields),
      };
    },
    decode: (fields) => this.#decode(fields),
    mac: async (f) => {
      const numbers = [Number(f.version), BigInt(f.client_id as number), Number(f.connection)];
      const [version, id, connection] = numbers as [number, bigint, number];
      const [secret, greeting] = [bytes(f, "secret"), bytes(f, "greeting")];
      const [nonce, label] = [bytes(f, "client_nonce"), bytes(f, "label")];
      return { mac: handshake.clientMac(secret, greeting, version, id, connection, nonce, label) };
    },
    proof: async (f) => {
      const [secret, greeting] = [bytes(f, "secret"), bytes(f, "greeting")];
      const [role, keepalive] = [Number(f.role), Number(f.keepalive_s)];
      const told = [bytes(f, "fingerprint"), bytes(f, "leader")] as const;
      const nonce = bytes(f, "client_nonce");
      return { proof: handshake.serverProof(secret, greeting, nonce, role, keepalive, ...told) };
    },
    nonce: async (f) => ({
      nonce: handshake.clientNonce(bytes(f, "seed"), f.connection as number),
    }),
    open: (fields, signal) => this.#open(fields, signal),
    acquire: async (fields, signal) => this.#keep(fields, await this.#acquire(fields, signal)),
    adopt: async (fields, signal) => {
      const { leaseMs, autoExtend } = terms(fields, signal);
      const options = given({ leaseMs, autoExtend, signal });
      const ticket = await this.#client(fields).adopt(`${fields.reference}`, options);
      return this.#keep(fields, ticket);
    },
    release: async (fields, signal) => void (await this.#ticket(fields).release({ signal })),
    extend: async (fields, signal) => {
      const ticket = this.#ticket(fields);
      await ticket.extend(milliseconds(fields, "lease"), { signal });
      return { remaining_ms: Math.floor(ticket.remainingMs) };
    },
    hand_over: async (fields, signal) => ({
      reference: await this.#ticket(fields).handOver({ signal }),
    }),
    ticket: async (fields) => ticketFields(this.#ticket(fields)),
    wait_lost: (fields) => this.#waitLost(fields),
    ping: async (fields, signal) => void (await this.#client(fields).ping({ signal })),
    close: async (fields) => void (await this.#client(fields).close()),
    events: async (fields) => {
      const seen = this.#seen.get(`${fields.client ?? "c"}`) ?? [];
      return { events: seen.splice(0) };
    },
    scope: (fields, signal) => this.#scope(fields, signal),
    contend: (fields, signal) => this.#contend(fields, signal),
  };
}
