/** The conformance adapter of the JavaScript client: lines in, lines out (conformance/ADAPTER.md). */

import { createHook } from "node:async_hooks";
import { readdirSync, readlinkSync } from "node:fs";
import { createInterface } from "node:readline";
import { setImmediate as immediate, setTimeout as sleep } from "node:timers/promises";
import { Malformed } from "../src/core/codec.js";
import { TicketingError } from "../src/index.js";
import { BodyError, Ended, type Fields, Unsupported, type Value, Verbs } from "./verbs.js";

const CLOSE_MS = 2000;
const RESET_MS = 5000;

interface Answer {
  readonly status: string;
  readonly fields: Fields;
}

interface Call {
  readonly answer: Promise<Answer>;
  readonly stop: AbortController;
}

const timers = new Set<number>();
createHook({
  init(id, type) {
    if (type === "Timeout") timers.add(id);
  },
  destroy(id) {
    timers.delete(id);
  },
}).enable();

function parseItem(text: string): Value {
  if (text.startsWith("x:")) return Buffer.from(text.slice(2), "hex");
  const run = /^r:([0-9a-f]{2})\*(\d+)$/.exec(text);
  if (run !== null) return Buffer.alloc(Number(run[2]), Number.parseInt(run[1], 16));
  if (!/^-?\d+$/.test(text)) return text;
  return Number.isSafeInteger(Number(text)) ? Number(text) : BigInt(text);
}

function parse(line: string): { number: string; verb: string; fields: Fields } {
  const [number, verb, ...parts] = line.split(" ");
  const fields: Fields = {};
  for (const part of parts) {
    const at = part.indexOf("=");
    const value = part.slice(at + 1);
    const items = value === "" ? [] : value.split(",").map(parseItem);
    fields[part.slice(0, at)] = items.length === 1 ? items[0] : items;
  }
  return { number, verb, fields };
}

function show(value: Value): string {
  if (Array.isArray(value)) return value.map(show).join(",");
  if (value instanceof Uint8Array) return `x:${Buffer.from(value).toString("hex")}`;
  return `${value}`;
}

/** The answer that an error is. */
function judge(error: unknown): Answer {
  const text = Buffer.from(error instanceof Error ? error.message : `${error}`);
  if (error instanceof TicketingError) return err({ kind: error.kind, text });
  if (error instanceof Malformed) return err({ kind: "malformed", text });
  if (error instanceof BodyError) return err({ kind: "body" });
  if (error instanceof Ended) return err(error.fields);
  if (error instanceof Unsupported) return { status: "unsupported", fields: {} };
  if (error instanceof Error && error.name === "AbortError") return err({ kind: "cancelled" });
  const stack = error instanceof Error ? `${error.stack}` : `${error}`;
  return { status: "fail", fields: { text: Buffer.from(stack.slice(0, 4000)) } };
}

function err(fields: Fields): Answer {
  return { status: "err", fields };
}

/** Wait at most so long; undefined when that was too short. */
async function within<T>(promise: Promise<T>, ms: number): Promise<T | undefined> {
  const enough = new AbortController();
  const late = sleep(ms, undefined, { signal: enough.signal }).catch(() => undefined);
  try {
    return await Promise.race([promise, late]);
  } finally {
    enough.abort();
  }
}

class Adapter {
  readonly #verbs = new Verbs();
  readonly #calls = new Map<string, Call>();
  #started: Promise<Answer>[] = [];
  readonly #baseline = counts();

  async run(verb: string, fields: Fields): Promise<Answer> {
    switch (verb) {
      case "await":
        return this.#await(fields);
      case "cancel":
        return this.#cancel(fields);
      case "leak_check":
        return this.#leakCheck();
      case "reset":
        return this.reset();
    }
    const method = this.#verbs.find(verb);
    if (method === undefined) return { status: "unsupported", fields: {} };
    const { detach, cancel_after_ms: cancelAfter, ...own } = fields;
    const stop = new AbortController();
    const answer = this.#answer(method(own, stop.signal));
    if (typeof cancelAfter === "number") {
      const timer = setTimeout(() => stop.abort(), cancelAfter);
      void answer.then(() => clearTimeout(timer));
    }
    if (!detach) return answer;
    this.#calls.set(`${fields.as}`, { answer, stop });
    this.#started.push(answer);
    return { status: "ok", fields: {} };
  }

  async #answer(call: Promise<Fields | undefined>): Promise<Answer> {
    try {
      return { status: "ok", fields: (await call) ?? {} };
    } catch (error) {
      return judge(error);
    }
  }

  async #await(fields: Fields): Promise<Answer> {
    const call = this.#calls.get(`${fields.as}`);
    if (call === undefined) throw new Error(`there is no background call ${fields.as}`);
    const ms = typeof fields.timeout_ms === "number" ? fields.timeout_ms : 30_000;
    return (await within(call.answer, ms)) ?? err({ kind: "pending" });
  }

  #cancel(fields: Fields): Answer {
    const call = this.#calls.get(`${fields.as}`);
    if (call === undefined) throw new Error(`there is no background call ${fields.as}`);
    call.stop.abort();
    return { status: "ok", fields: {} };
  }

  async #leakCheck(): Promise<Answer> {
    const deadline = performance.now() + CLOSE_MS;
    const left = () => {
      const now = counts();
      return {
        timers: Math.max(0, now.timers - this.#baseline.timers),
        sockets: Math.max(0, now.sockets - this.#baseline.sockets),
      };
    };
    // Turns of the loop instead of a timer, which would be counted too.
    while (left().timers + left().sockets > 0 && performance.now() < deadline) await immediate();
    return { status: "ok", fields: left() };
  }

  async reset(): Promise<Answer> {
    const closing = this.#verbs.opened.map((client) =>
      this.#answer(client.close().then(() => undefined)),
    );
    const all = Promise.all([...this.#started, ...closing]);
    const done = await within(all, RESET_MS);
    this.#verbs.forget();
    this.#calls.clear();
    this.#started = [];
    if (done !== undefined) return { status: "ok", fields: {} };
    return { status: "fail", fields: { text: Buffer.from("calls did not end") } };
  }
}

function counts(): { timers: number; sockets: number } {
  let sockets = 0;
  for (const number of readdirSync("/proc/self/fd")) {
    try {
      if (readlinkSync(`/proc/self/fd/${number}`).startsWith("socket:")) sockets += 1;
    } catch {
      // The descriptor of the listing itself is gone by now.
    }
  }
  return { timers: timers.size, sockets };
}

const adapter = new Adapter();
for await (const line of createInterface({ input: process.stdin })) {
  const { number, verb, fields } = parse(line);
  let answer: Answer;
  try {
    answer = await adapter.run(verb, fields);
  } catch (error) {
    answer = judge(error);
  }
  const words = Object.entries(answer.fields).map(([name, value]) => `${name}=${show(value)}`);
  process.stdout.write(`${[number, answer.status, ...words].join(" ")}\n`);
}
await within(adapter.reset(), CLOSE_MS);
process.exit(0);
