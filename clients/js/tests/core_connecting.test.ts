/** Connecting, the handshake, rounds and back-off, silence: on a scripted transport. */

import assert from "node:assert/strict";
import { test } from "node:test";
import * as c from "../src/constants_gen.js";
import { clientMac, clientNonce } from "../src/core/handshake.js";
import { Backoff } from "../src/core/rounds.js";
import { A, B, C, LEADER, Rig } from "./rig.js";

const THREE = { endpoints: [A, B, C] };
const TWO = { endpoints: [A, B] };

test("REQ-BYTES-SOURCE REQ-BYTES-NONCE REQ-HELLO-MAC: hello is derived and counted", () => {
  const rig = new Rig({ secret: Buffer.from("s3"), connectForMs: 60_000 }).open();
  const { seed, label, secret } = rig.core.settings;
  for (const n of [1, 2, 3]) {
    rig.untilConnecting();
    rig.greet();
    const nonce = clientNonce(seed, n);
    const mac = clientMac(secret, rig.greeting, 4, 42n, n, nonce, label);
    const fields = {
      version: 4,
      client_id: 42n,
      connection: n,
      client_nonce: nonce,
      mac,
      label: Buffer.from(label),
    };
    assert.deepEqual(rig.sent(), [{ name: "hello", fields }]);
    rig.lose();
  }
});

test("REQ-CONN-PROOF REQ-CONN-ROLE: nothing is sent before the proof", () => {
  const wrong = new Rig({ connectForMs: 60_000 }).open();
  const call = wrong.acquire("k");
  wrong.greet();
  wrong.welcome({ secret: "another" });
  assert.deepEqual(wrong.names(), []);
  assert.equal(wrong.opened.kind, "auth");
  assert.equal(call.outcome.kind, "closed");
  const right = new Rig().open();
  right.acquire("k");
  right.greet();
  right.welcome();
  assert.deepEqual(right.names(), ["acquire"]);
});

test("REQ-CONNECT-NEVER: opening fails after one round, naming each endpoint", () => {
  const rig = new Rig(THREE).open();
  for (const _ of THREE.endpoints) rig.lose("connection refused");
  assert.deepEqual(rig.connects, [A, B, C].map(String));
  assert.equal(rig.opened.kind, "connection");
  for (const endpoint of THREE.endpoints) {
    assert.ok(rig.opened.error.message.includes(`${endpoint}: connection refused`));
  }
  assert.ok(rig.isStill);
});

test("REQ-CONNECT-FOR: rounds are repeated for that long", () => {
  const rig = new Rig({ connectForMs: 3000 }).open();
  const began = rig.now;
  while (!rig.opened.done) {
    rig.lose("refused");
    if (!rig.opened.done) rig.untilConnecting();
  }
  assert.equal(rig.opened.kind, "connection");
  assert.ok(rig.now - began > 1400 && rig.now - began <= 3000);
  assert.ok(rig.connects.length >= 5);
});

test("REQ-CONNECT-TIMEOUT REQ-HOSTILE-SLOW: connect, greeting and handshake are bounded", () => {
  for (const [settings, boundMs] of [
    [{}, 3000],
    [THREE, 1000],
  ] as const) {
    const rig = new Rig(settings).open();
    rig.pass(boundMs - 1);
    rig.feed(c.GREETING_MAGIC.subarray(0, 3));
    assert.deepEqual(rig.disconnects, []);
    rig.pass(1);
    assert.deepEqual(rig.disconnects, [1]);
  }
  const rig = new Rig().open();
  rig.pass(2000);
  rig.greet();
  rig.pass(4999);
  assert.ok(!rig.opened.done);
  rig.pass(1);
  assert.match(rig.opened.error.message, /5000 ms/);
});

test("REQ-CONNECT-BACKOFF: doubles to a second and spreads", () => {
  const bases = [0, 50, 100, 200, 400, 800, 1000, 1000, 1000];
  const seen = bases.map(() => new Set<number>());
  for (let seed = 0; seed < 50; seed += 1) {
    const backoff = new Backoff(Buffer.of(seed));
    for (const [at, baseMs] of bases.entries()) {
      const delayMs = backoff.nextDelayMs();
      assert.ok(delayMs >= baseMs * 0.5 && delayMs <= baseMs * 1.5);
      seen[at].add(delayMs);
    }
  }
  assert.ok(seen.slice(1).every((delays) => delays.size > 40));
});

test("REQ-CONNECT-RESET: only a useful connection resets the back-off", () => {
  for (const useful of ["answered", "lived", "neither"]) {
    const rig = new Rig().ready();
    for (let times = 0; times < 6; times += 1) {
      rig.lose();
      rig.pass(2000);
      rig.greet();
      rig.welcome();
    }
    assert.equal(rig.connects.length, 7);
    const { request } = rig.acquire("k", { waitTimeoutMs: 0 });
    rig.output();
    if (useful === "answered") rig.reply("timed_out", { request_id: request.id });
    rig.pass(useful === "lived" ? 5000 : 100);
    rig.lose();
    assert.equal(rig.connects.length === 7, useful === "neither", useful);
  }
});

test("REQ-CONNECT-ORDER: the leader named last, the list, the one just lost at its end", () => {
  const listed = new Rig(THREE).open();
  listed.lose("refused");
  listed.greet();
  listed.welcome();
  listed.lose();
  listed.untilConnecting();
  listed.lose("refused");
  listed.lose("refused");
  assert.deepEqual(listed.connects, [A, B, A, C, B].map(String));
  const led = new Rig(THREE).open();
  led.greet();
  led.welcome({ role: 1, leader: `${LEADER}` });
  led.lose();
  led.untilConnecting();
  for (const _ of THREE.endpoints) led.lose("refused");
  assert.deepEqual(led.connects, [A, LEADER, B, C, A].map(String));
});

test("REQ-CONN-FOLLOWER REQ-CONNECT-ADVERTISE: role 2 goes to the leader, once per round", () => {
  const rig = new Rig(TWO).open();
  rig.greet();
  rig.welcome({ role: 2, leader: `${LEADER}` });
  assert.deepEqual(rig.connects, [A, LEADER].map(String));
  rig.lose("connection refused");
  rig.greet();
  rig.welcome({ role: 2, leader: `${LEADER}` });
  assert.deepEqual(rig.connects, [A, LEADER, B].map(String));
  assert.match(rig.opened.error.message, /10\.0\.0\.9:7000: connection refused .*--advertise/);
});

test("REQ-CONN-NOLEADER: role 3 waits a second for a leader", () => {
  const rig = new Rig(TWO).open();
  rig.greet();
  rig.welcome({ role: 3 });
  rig.pass(999);
  assert.deepEqual(rig.connects, [`${A}`]);
  rig.pass(1);
  rig.greet();
  rig.welcome({ role: 3 });
  rig.reply("leader", { leader: Buffer.from(`${A}`) });
  assert.deepEqual(rig.connects, [A, B, A].map(String)); // It knew no leader; now it leads.
  rig.greet();
  rig.welcome({ role: 1, leader: `${A}` });
  assert.equal(rig.opened.value, undefined);
});

test("REQ-CONN-FOLLOWER: nodes that name each other end the round", () => {
  const rig = new Rig(TWO).open();
  for (let turn = 0; turn < 20 && !rig.opened.done; turn += 1) {
    const here = rig.connects.at(-1);
    rig.greet();
    rig.welcome({ role: 3 });
    rig.reply("leader", { leader: Buffer.from(`${here === `${A}` ? B : A}`) });
  }
  assert.equal(rig.opened.kind, "connection");
});

test("REQ-CONN-LEADER: L reconnects as after a loss, also to the same address", () => {
  for (const [leader, next] of [
    [`${A}`, A],
    [`${LEADER}`, LEADER],
    ["", B],
  ] as const) {
    const rig = new Rig(TWO).ready();
    rig.reply("leader", { leader: Buffer.from(leader) });
    assert.deepEqual(rig.disconnects, [1]);
    assert.deepEqual(rig.connects, [A, next].map(String));
  }
});

test("REQ-CONN-STALE: what an earlier connection says does not count", () => {
  const rig = new Rig().ready();
  const call = rig.acquire("k");
  rig.output();
  const old = rig.serial;
  rig.lose();
  rig.ready();
  const granted = Buffer.from("4100140000000000000001000000000000000900000000", "hex");
  rig.feed(granted, old);
  rig.core.disconnected(old, "late", rig.now);
  rig.run();
  assert.ok(!call.outcome.done);
  assert.deepEqual(rig.names(), ["acquire"]);
  rig.feed(granted);
  assert.ok(call.outcome.value);
});

test("REQ-CONN-VERSION: without a common version it closes without a hello and says so", () => {
  const rig = new Rig(TWO).open();
  rig.greet(5, 9);
  assert.equal(rig.output().length, 0);
  rig.greet(1, 3);
  assert.match(rig.opened.error.message, /no common version.*5 to 9/);
});

test("REQ-CONN-FINGERPRINT: a pinned cluster is the only one", () => {
  const pin = Buffer.alloc(32, 1);
  const other = new Rig({ fingerprint: pin }).open();
  other.greet();
  other.welcome({ fingerprint: Buffer.alloc(32, 2) });
  assert.equal(other.opened.kind, "auth");
  const same = new Rig({ fingerprint: pin }).open();
  same.greet();
  same.welcome({ fingerprint: pin });
  assert.equal(same.opened.value, undefined);
});

test("REQ-CONNECT-UNPROVEN: an error before the proof only rules out its endpoint", () => {
  for (const code of c.ERRORS.keys()) {
    const rig = new Rig(TWO).open();
    rig.greet();
    rig.refuse(code, 0, "no");
    assert.deepEqual(rig.connects, [A, B].map(String));
    rig.greet();
    rig.welcome();
    assert.equal(rig.opened.value, undefined);
  }
});

test("REQ-CONNECT-AUTH: auth errors fail what is unanswered; the next call begins a round", () => {
  const rig = new Rig(TWO).ready();
  const held = rig.hold("h");
  const calls = [rig.acquire("k"), rig.ping()];
  const released = rig.release(held);
  rig.lose();
  rig.untilConnecting();
  rig.greet();
  rig.refuse(c.ERROR_AUTH_FAILED, 0, "wrong mac");
  rig.lose("refused");
  assert.deepEqual(
    calls.map(({ outcome }) => outcome.kind),
    ["auth", "auth"],
  );
  assert.match(released.error.message, /TICKETING_SECRET/);
  const seen = rig.connects.length;
  rig.pass(60_000);
  assert.equal(rig.connects.length, seen);
  rig.acquire("k");
  assert.equal(rig.connects.length, seen + 1);
});

test("REQ-ALIVE-PING REQ-ALIVE-ONEPING: a ping after silence in either direction", () => {
  const rig = new Rig().ready(2);
  rig.pass(1999);
  assert.deepEqual(rig.sent(), []);
  rig.pass(1);
  assert.deepEqual(rig.sent(), [{ name: "ping", fields: { echo: 0n } }]);
  rig.pass(1900);
  assert.deepEqual(rig.sent(), []); // one at most
  rig.reply("ping", { echo: 0 });
  for (let times = 0; times < 4; times += 1) {
    rig.pass(500); // Received all the time, nothing sent.
    rig.reply("dropped", { token: 999, reason: 1 });
  }
  assert.deepEqual(rig.names(), ["ping"]);
});

test("REQ-ALIVE-DEAD: a silent connection is dead, and its ping is not sent again", () => {
  const rig = new Rig().ready(2);
  rig.pass(5999);
  assert.deepEqual(rig.names(), ["ping"]);
  assert.deepEqual(rig.disconnects, []);
  rig.pass(1);
  assert.deepEqual(rig.disconnects, [1]);
  rig.ready(2);
  assert.deepEqual(rig.sent(), []);
});

test("REQ-EVENT-HOOK: loss and return are events", () => {
  const rig = new Rig().ready();
  rig.lose("cable\ncut");
  rig.ready();
  const address = `${A}`;
  assert.deepEqual(rig.events, [
    { kind: "connected", address },
    { kind: "disconnected", address, reason: "cable?cut" },
    { kind: "connected", address },
  ]);
});
