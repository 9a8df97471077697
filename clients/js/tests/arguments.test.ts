/** URLs, durations, labels, the clock and the heap: what is taken and what is refused. */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { SleepAwareClock } from "../src/clock.js";
import * as args from "../src/core/arguments.js";
import { Deadlines, NEVER } from "../src/core/deadlines.js";
import { parseAddress, parseUrl } from "../src/core/urls.js";
import { InvalidArgumentError, VERSION } from "../src/index.js";

test("REQ-URL-FORMS: URLs", () => {
  const read = (url: string) => parseUrl(url).endpoints.map(String);
  assert.deepEqual(read("ticketing://a"), ["a:5225"]);
  assert.deepEqual(read("TICKETING://a:1,[::1]:2,a:1/"), ["a:1", "[::1]:2"]);
  assert.deepEqual(read("ticketing+unix:///a%20b"), ["unix:/a b"]);
  assert.equal(parseUrl("ticketings://a").tls, true);
  for (const bad of [
    "a:1",
    "http://a",
    "ticketing://",
    "ticketing://a:0",
    "ticketing://a:65536",
    "ticketing://a:1/x",
    "ticketing://::1",
    "ticketing://[::1",
    "ticketing://a,,b",
    "ticketing+unix://a",
    "ticketing+unix:///%zz",
  ]) {
    assert.throws(() => parseUrl(bad), InvalidArgumentError, bad);
  }
  const secret = /hunter2/;
  for (const url of ["ticketing://u:hunter2@a", "other://u:hunter2@a"]) {
    assert.throws(
      () => parseUrl(url),
      (error: Error) => !secret.test(error.message),
    );
  }
  assert.equal(parseAddress("a"), undefined);
});

test("REQ-ARGS-DURATION: to the nearest nanosecond, then up to a millisecond", () => {
  for (const [given, ms] of [
    [0, 0],
    [0.0000004, 0],
    [0.0000006, 1],
    [1, 1],
    [1.0000004, 1],
    [1.000001, 2],
    [29.999_999_9, 30],
    [4_294_967_294, 4_294_967_294],
  ]) {
    assert.equal(args.durationMs("x", given), ms, `${given}`);
  }
  for (const bad of [-1, -1e-9, Number.NaN, Number.POSITIVE_INFINITY, 4_294_967_294.5, "1", null]) {
    assert.throws(() => args.durationMs("x", bad as number), InvalidArgumentError, `${bad}`);
  }
  assert.throws(() => args.leaseMs(0.0000004), /at least a millisecond/);
  assert.equal(args.waitMs("forever"), 0xffffffff);
});

test("REQ-ARGS-SET: sorted by unsigned bytes, doubles are one key", () => {
  const keys = ["é", Buffer.of(0xc3), "z", "a", "ab", Buffer.from("a")];
  const wires = args
    .namedSet(keys, "")
    .map(({ wire }) => Buffer.from(wire, "latin1").toString("hex"));
  assert.deepEqual(wires, ["61", "6162", "7a", "c3", "c3a9"]);
  const bytes = Buffer.from("k");
  const [{ shown }] = args.namedSet([bytes], "");
  bytes[0] = 0;
  assert.deepEqual(shown, Uint8Array.of(0x6b)); // The program can't change it any more.
});

test("REQ-BYTES-LABEL: the name is cleaned and cut, the tail stays", () => {
  const label = (name: string) => Buffer.from(args.makeLabel(name, "0.1.0")).toString();
  assert.equal(label("a b\té😀"), "a_b___;javascript/0.1.0");
  assert.equal(label("x".repeat(100)).length, 64);
  assert.ok(label("x".repeat(100)).endsWith("x;javascript/0.1.0"));
  assert.throws(() => args.checkLabel("a b"), InvalidArgumentError);
});

test("references keep every byte", () => {
  const all = String.fromCharCode(...Array.from({ length: 128 }, (_, at) => at * 2));
  assert.deepEqual(args.parseReference(args.formatReference(7n, all)), { token: 7n, key: all });
});

test("the clock goes on while the machine sleeps", () => {
  let [fine, coarse] = [1000, 90_000];
  const clock = new SleepAwareClock(
    () => fine,
    () => coarse,
  );
  const pass = (awakeMs: number, asleepMs: number) => {
    fine += awakeMs;
    coarse += awakeMs + asleepMs;
    return clock.nowMs();
  };
  assert.equal(pass(100, 0), 1100);
  assert.equal(pass(300, 20), 1400); // The coarse clock's own step is no sleep.
  assert.equal(pass(300, 60_000), 61_720);
  assert.equal(pass(300, 0), 62_020);
  assert.equal(pass(300, -5000), 62_320); // It never goes back.
});

test("the heap of deadlines gives what is due in order, and forgets what is void", () => {
  const deadlines = new Deadlines();
  let state = 7;
  const random = () => {
    state = (state * 1103515245 + 12345) % 2 ** 31;
    return state % 1000;
  };
  const timed = Array.from({ length: 500 }, () => ({ dueMs: NEVER }));
  for (let turn = 0; turn < 20_000; turn += 1) {
    deadlines.set(timed[random() % 500], random() < 300 ? NEVER : random());
    if (turn % 97 === 0) {
      assert.equal(deadlines.next(), Math.min(NEVER, ...timed.map(({ dueMs }) => dueMs)));
    }
  }
  let last = -1;
  for (;;) {
    const dueMs = deadlines.next();
    const due = deadlines.popDue(1000);
    if (due === undefined) break;
    assert.ok(dueMs >= last);
    assert.equal(due.dueMs, NEVER);
    last = dueMs;
  }
  assert.ok(timed.every(({ dueMs }) => dueMs === NEVER));
});

test("the version is the package's", () => {
  const manifest = readFileSync(new URL("../../package.json", import.meta.url), "utf8");
  assert.equal(JSON.parse(manifest).version, VERSION);
  assert.equal(JSON.parse(manifest).dependencies, undefined);
});
