/** Requests and how they are settled: ids, bounds, resending, cancelling, errors. */

import assert from "node:assert/strict";
import { test } from "node:test";
import * as c from "../src/constants_gen.js";
import type { Terms } from "../src/core/client.js";
import { encode, type Fields } from "../src/core/codec.js";
import type { CoreSettings } from "../src/core/settings.js";
import { FOREVER, InvalidArgumentError, ReplyTimeoutError } from "../src/index.js";
import { FOREVER_MS, Rig } from "./rig.js";

test("REQ-BYTES-REQUESTID REQ-BYTES-ORDER: ids count over connections, after the checks", () => {
  const rig = new Rig().ready();
  const one = rig.acquire("a");
  for (const bad of [{ leaseMs: 0 }, { waitTimeoutMs: -1 }]) {
    assert.throws(() => rig.acquire("b", bad), InvalidArgumentError);
  }
  const two = rig.ping();
  rig.lose();
  const three = rig.acquire(["c", "b"]);
  assert.deepEqual(
    [one, two, three].map(({ request }) => request.id),
    [1, 2, 3],
  );
  rig.ready();
  assert.deepEqual(rig.names(), ["acquire", "ping", "acquire_set"]);
});

test("REQ-ARGS-SET REQ-ARGS-SETOFONE REQ-ARGS-TEXT REQ-URL-PREFIX REQ-ARGS-TRY: frames", () => {
  const rig = new Rig({ keyPrefix: Buffer.from("é/").toString("latin1") }).ready();
  rig.acquire("k", { leaseMs: 1500, waitTimeoutMs: 2000 });
  rig.acquire([Buffer.of(0xff), "a", Buffer.from("a"), "b"], { waitTimeoutMs: 0 });
  rig.acquire(["same", Buffer.from("same")], { waitTimeoutMs: FOREVER });
  const key = (text: string) => Buffer.from(`é/${text}`);
  const high = Buffer.concat([key(""), Buffer.of(0xff)]);
  assert.deepEqual(
    rig.sent().map(({ name, fields }) => ({ name, ...fields })),
    [
      { name: "acquire", request_id: 1n, wait_ms: 2000, lease_ms: 1500, key: key("k") },
      {
        name: "acquire_set",
        request_id: 2n,
        wait_ms: 0,
        lease_ms: 10_000,
        keys: [key("a"), key("b"), high],
      },
      { name: "acquire", request_id: 3n, wait_ms: FOREVER_MS, lease_ms: 10_000, key: key("same") },
    ],
  );
});

test("REQ-DEFAULT-WAIT REQ-DEFAULT-LEASE REQ-DEFAULT-FIXED: defaults", () => {
  const none = { leaseMs: undefined };
  const rows: [Partial<CoreSettings>, Terms, number, number, boolean][] = [
    [{}, none, FOREVER_MS, 30_000, true],
    [{}, { ...none, autoExtend: false }, FOREVER_MS, 30_000, false],
    [{}, { leaseMs: 1 }, FOREVER_MS, 1, false],
    [{}, { leaseMs: 5000, autoExtend: true }, FOREVER_MS, 5000, true],
    [{ leaseMs: 7000 }, none, FOREVER_MS, 7000, false],
    [{ leaseMs: 7000, autoExtend: true }, none, FOREVER_MS, 7000, true],
    [{ waitMs: 9 }, {}, 9, 10_000, false],
    [{ waitMs: 9 }, { waitTimeoutMs: FOREVER }, FOREVER_MS, 10_000, false],
  ];
  for (const [settings, terms, waitMs, leaseMs, autoExtend] of rows) {
    const { request } = new Rig(settings).ready().acquire("k", terms);
    const chosen = [request.waitMs, request.leaseMs, request.autoExtend];
    assert.deepEqual(chosen, [waitMs, leaseMs, autoExtend]);
  }
});

test("REQ-RESEND-ONCE REQ-ERROR-KINDS: replies settle exactly once", () => {
  const rig = new Rig().ready();
  const tried = rig.acquire("k", { waitTimeoutMs: 0 });
  const waited = rig.acquire("k", { waitTimeoutMs: 5 });
  const full = rig.acquire();
  rig.output();
  rig.reply("timed_out", { request_id: 1 });
  rig.reply("timed_out", { request_id: 2 });
  rig.reply("overloaded", { request_id: 3 });
  assert.equal(tried.outcome.kind, "held");
  assert.equal(waited.outcome.kind, "timeout");
  assert.equal(full.outcome.kind, "overloaded");
  assert.equal(full.outcome.error.code, "TICKETING_OVERLOADED");
  assert.deepEqual(rig.kinds(), ["connected", "timed_out"]);
});

test("REQ-BOUND-REPLY REQ-BOUND-CANCEL: a try, extend and ping are bounded in all", () => {
  const rig = new Rig().ready();
  const began = rig.now;
  const ticket = rig.hold("h", 7, { leaseMs: 60_000 });
  const calls = [rig.acquire("k", { waitTimeoutMs: 0 }), rig.ping(), rig.extend(ticket)];
  rig.output();
  rig.pass(4000);
  rig.reply("dropped", { token: 1, reason: 1 });
  rig.lose();
  rig.ready();
  assert.deepEqual(rig.names(), ["acquire", "ping", "extend"]);
  rig.until(began + 9999);
  assert.ok(!calls.some(({ outcome }) => outcome.done));
  rig.pass(1);
  for (const { outcome } of calls) assert.ok(outcome.error instanceof ReplyTimeoutError);
  assert.equal(rig.names().at(-1), "cancel");
});

test("REQ-BOUND-WAIT: a wait ends one second late when connected", () => {
  const rig = new Rig().ready();
  const call = rig.acquire("k", { waitTimeoutMs: 5000 });
  rig.output();
  rig.pass(5999);
  assert.ok(!call.outcome.done);
  rig.pass(1);
  assert.equal(call.outcome.kind, "timeout");
  const [{ name, fields }] = rig.sent();
  assert.deepEqual([name, fields.acquire_id, fields.key], ["cancel", 1n, Buffer.from("k")]);
});

test("REQ-BOUND-WAIT: a wait ends at its deadline when not connected", () => {
  const rig = new Rig().ready();
  const call = rig.acquire("k", { waitTimeoutMs: 2000 });
  rig.output();
  rig.pass(1000);
  rig.lose();
  rig.pass(999);
  assert.ok(!call.outcome.done);
  rig.pass(1);
  assert.equal(call.outcome.kind, "timeout");
  rig.ready();
  assert.deepEqual(rig.names(), ["cancel"]); // The acquire is not sent again, its cancel is.
});

test("REQ-BOUND-WAIT: a wait that is over ends when the connection does", () => {
  const rig = new Rig().ready();
  const call = rig.acquire("k", { waitTimeoutMs: 5000 });
  rig.output();
  rig.pass(5500);
  assert.ok(!call.outcome.done);
  rig.lose();
  assert.equal(call.outcome.kind, "timeout");
});

test("REQ-BOUND-UNSENT REQ-BYTES-NOREUSE REQ-STOP-CLEAN: given up unwritten is never sent", () => {
  const rig = new Rig().ready();
  const call = rig.acquire("a");
  rig.abandon(call);
  rig.abandon(rig.ping());
  assert.deepEqual(rig.sent(), []);
  assert.equal(rig.acquire("b").request.id, 3);
  assert.ok(!call.outcome.done);
  rig.lose();
  rig.abandon(rig.acquire("c"));
  rig.ready();
  assert.deepEqual(
    rig.sent().map(({ fields }) => fields.key),
    [Buffer.from("b")],
  );
});

test("REQ-BOUND-CANCEL REQ-BOUND-GIVENUP: given up when written is cancelled", () => {
  for (const late of ["granted", "timed_out", "overloaded", "nothing"]) {
    const rig = new Rig().ready();
    const call = rig.acquire(["b", "a"]);
    rig.output();
    rig.abandon(call);
    const cancel = { request_id: 2n, acquire_id: 1n, key: Buffer.from("a") };
    assert.deepEqual(rig.sent(), [{ name: "cancel", fields: cancel }]);
    if (late === "granted") rig.grant(1);
    else if (late !== "nothing") rig.reply(late, { request_id: 1 });
    rig.reply("cancelled", { request_id: 2 });
    assert.deepEqual(rig.disconnects, []);
    assert.ok(!call.outcome.done);
    rig.lose();
    rig.ready();
    assert.deepEqual(rig.sent(), [], late);
  }
});

test("REQ-STOP-READ: cancelled after the grant was read is released", () => {
  const rig = new Rig().ready();
  const call = rig.acquire("a");
  rig.output();
  rig.grant(1, 5);
  rig.abandon(call);
  const release = { request_id: 2n, token: 5n, key: Buffer.from("a") };
  assert.deepEqual(rig.sent(), [{ name: "release", fields: release }]);
});

test("REQ-RESEND-ALL REQ-RESEND-ALWAYS REQ-RESEND-CHECK: sent again in id order", () => {
  const rig = new Rig().ready();
  rig.hold("f", 9);
  rig.hold("r", 4, { leaseMs: 30_000, autoExtend: true });
  const gone = rig.hold("g", 6);
  const waiting = rig.acquire("w");
  rig.ping();
  const givenUp = rig.acquire("u");
  rig.release(gone);
  const first = rig.output();
  rig.abandon(givenUp);
  rig.output();
  rig.lose();
  const whileAway = rig.acquire("y");
  rig.ready();
  const frames = rig.sent();
  assert.deepEqual(
    frames.map(({ name, fields }) => [name, fields.request_id ?? fields.echo]),
    [
      ["acquire", BigInt(waiting.request.id)],
      ["ping", 5n],
      ["release", 7n],
      ["cancel", 8n],
      ["acquire", BigInt(whileAway.request.id)],
      ["extend", 10n], // in token order
      ["extend", 11n],
    ],
  );
  const [renewed, fixed] = frames.slice(5).map(({ fields }) => [fields.token, fields.lease_ms]);
  assert.deepEqual(renewed, [4n, 30_000]); // it is auto-extended
  assert.deepEqual(fixed, [9n, 1]); // changes nothing, tells what is left
  assert.ok(first.includes(waiting.request.frame));
});

test("REQ-RESEND-CHECK REQ-LOST-NOTHELD: learns what ended while it was away", () => {
  const rig = new Rig().ready();
  const ticket = rig.hold("k");
  rig.lose();
  rig.ready();
  rig.reply("not_held", { request_id: Number(rig.sent()[0].fields.request_id) });
  assert.deepEqual([ticket.state, ticket.lostReason], ["lost", "not_held"]);
  assert.deepEqual(rig.ended, []); // Nobody listens to it.
  assert.equal(rig.kinds().at(-1), "lost");
});

test("REQ-ERROR-REQUEST REQ-ERROR-CONNECTION: bad_frame settles one request, or all", () => {
  for (const requestId of [1, 0]) {
    const rig = new Rig().ready();
    const calls = [rig.acquire("a"), rig.acquire("b")];
    rig.output();
    rig.refuse(c.ERROR_BAD_FRAME, requestId, "key\x01");
    assert.equal(calls[0].outcome.kind, "protocol");
    assert.match(calls[0].outcome.error.message, /bad_frame: key\?/);
    assert.deepEqual(rig.disconnects, [1]);
    assert.equal(calls[1].outcome.done, requestId === 0);
    rig.ready();
    assert.equal(rig.sent().length, requestId === 0 ? 0 : 1);
  }
});

test("REQ-ERROR-TABLE: errors about one request leave the connection alone", () => {
  for (const [code, kind] of [
    [c.ERROR_LEASE_TOO_LONG, "invalid_argument"],
    [c.ERROR_FORBIDDEN, "auth"],
  ] as const) {
    const rig = new Rig().ready();
    const call = rig.acquire();
    rig.output();
    rig.refuse(code, 1);
    assert.equal(call.outcome.kind, kind);
    assert.deepEqual(rig.disconnects, []);
  }
});

test("REQ-ERROR-NOTSERVING: sends again elsewhere, its caller sees nothing of it", () => {
  const rig = new Rig().ready();
  const call = rig.acquire();
  const bytes = rig.output();
  rig.refuse(c.ERROR_NOT_SERVING, 1);
  assert.deepEqual(rig.disconnects, [1]);
  rig.ready();
  assert.deepEqual(rig.output(), bytes);
  assert.ok(!call.outcome.done);
});

test("REQ-SHUT-TAKENOVER: taken_over ends the client and its tickets", () => {
  const rig = new Rig().ready();
  const ticket = rig.hold("a");
  const call = rig.acquire("b");
  rig.output();
  rig.refuse(c.ERROR_TAKEN_OVER);
  assert.equal(call.outcome.kind, "closed");
  assert.equal(ticket.lostReason, "taken_over");
  assert.throws(() => rig.acquire("c"), /newer client/);
  assert.ok(rig.isStill);
  assert.equal(rig.connects.length, 1);
});

test("REQ-HOSTILE-CLOSE REQ-HOSTILE-REPLY REQ-HOSTILE-KIND: hostile bytes end the connection", () => {
  const frame = (name: string, fields: Fields) => encode("server", name, fields);
  const id = (request_id: number) => ({ request_id });
  const hostile: Record<string, Buffer> = {
    "unknown op": Buffer.of(0x5a, 0, 0),
    "too long": Buffer.of(0x52, 0xff, 0xff),
    "too short": Buffer.of(0x41, 0, 1),
    "never sent": frame("released", id(99)),
    "wrong op": frame("released", id(1)),
    "past 2^53": frame("granted", { request_id: (1n << 53n) + 1n, token: 5, waited_ms: 0 }),
    "second reply": Buffer.concat([frame("timed_out", id(1)), frame("timed_out", id(1))]),
    "token 0": frame("granted", { request_id: 1, token: 0, waited_ms: 0 }),
    "second welcome": frame("welcome", {
      role: 0,
      keepalive_s: 5,
      fingerprint: Buffer.alloc(32),
      proof: Buffer.alloc(32),
      leader: Buffer.alloc(0),
    }),
    "ping never sent": frame("ping", { echo: 0 }),
    "unknown code": Buffer.concat([Buffer.of(0x45, 0, 9), Buffer.alloc(8), Buffer.of(77)]),
    "unknown reason": Buffer.concat([Buffer.of(0x44, 0, 9), Buffer.alloc(8), Buffer.of(9)]),
    "wrong leader": frame("leader", { leader: Buffer.from("nowhere") }),
    "tls or http": Buffer.from("HTTP/1.1 400 Bad Request\r\n"),
  };
  for (const [what, bytes] of Object.entries(hostile)) {
    for (const single of [false, true]) {
      const rig = new Rig().ready();
      const call = rig.acquire();
      rig.output();
      for (const part of single ? Array.from(bytes, (byte) => Buffer.of(byte)) : [bytes]) {
        rig.feed(part, 1);
      }
      assert.deepEqual(rig.disconnects, [1], what);
      if (what === "second reply") continue;
      rig.ready();
      assert.deepEqual(rig.names(), ["acquire"], what);
      assert.ok(!call.outcome.done, what);
    }
  }
});

test("REQ-LOST-UNKNOWN: a drop of an unknown token is ignored", () => {
  const rig = new Rig().ready();
  rig.reply("dropped", { token: 5, reason: 2 });
  assert.deepEqual(rig.disconnects, []);
});

test("REQ-EVENT-LONGWAIT REQ-EVENT-OWNKEY: long waits and own keys are warned about", () => {
  const rig = new Rig().ready();
  rig.hold("k", 7, { leaseMs: 60_000 });
  rig.acquire("k");
  assert.match(rig.warnings()[0], /'k', which it holds itself/);
  rig.pass(10_000);
  assert.match(rig.warnings()[1], /waiting for 'k' since 10 s/);
  rig.pass(20_000);
  assert.equal(rig.warnings().length, 2);
});

test("deadlines of settled requests do not pile up", () => {
  const rig = new Rig().ready();
  const before = process.memoryUsage().heapUsed;
  for (let n = 1; n <= 100_000; n += 2) {
    const ticket = rig.hold("k", n, { leaseMs: 3_600_000 });
    rig.release(ticket);
    rig.output();
    rig.reply("released", { request_id: n + 1 });
    rig.events.length = 0;
  }
  assert.ok(process.memoryUsage().heapUsed - before < 100e6);
});
