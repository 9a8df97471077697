/** Tickets: lease arithmetic, extending, losing, releasing, handing over, closing. */

import assert from "node:assert/strict";
import { test } from "node:test";
import type { HeldTicket } from "../src/core/tickets.js";
import { LostError, type LostReason } from "../src/index.js";
import { Outcome, Rig } from "./rig.js";

function near(value: number, expected: number): void {
  assert.ok(Math.abs(value - expected) < 1e-6, `${value} is not ${expected}`);
}

test("REQ-TICKET-EXPIRY: the sum less 0.2 %, from before this sending was queued", () => {
  for (const [waitedMs, leaseMs] of [
    [0, 1000],
    [4000, 1000],
    [0, 0xfffffffe],
    [1, 1],
  ]) {
    const rig = new Rig().ready();
    const called = rig.now;
    const { request, outcome } = rig.acquire("k", { leaseMs });
    rig.output();
    const lateMs = Math.min(leaseMs / 2, 300);
    rig.pass(waitedMs + lateMs);
    rig.grant(request.id, 7, waitedMs);
    near((outcome.value as HeldTicket).expiresMs, called + (waitedMs + leaseMs) * 0.998);
  }
  const rig = new Rig().ready();
  const { request, outcome } = rig.acquire("k", { leaseMs: 10_000 });
  rig.output();
  rig.pass(2000);
  rig.lose();
  rig.ready();
  const again = rig.now;
  rig.output();
  rig.grant(request.id, 7, 0);
  near((outcome.value as HeldTicket).expiresMs, again + 9980);
});

test("REQ-TICKET-LATE: a grant that was read too late is no grant", () => {
  const rig = new Rig().ready();
  const { request, outcome } = rig.acquire("k", { leaseMs: 1000 });
  rig.output();
  rig.jump(998);
  rig.grant(request.id);
  assert.equal(outcome.kind, "lost");
  assert.deepEqual(rig.kinds(), ["connected"]);
});

test("REQ-TICKET-LONGWAIT: after a long wait an extend comes first", () => {
  for (const end of ["extended", "not_held", "dropped", "cancelled"]) {
    const rig = new Rig().ready(3600);
    const call = rig.acquire("k", { leaseMs: 1000 });
    rig.output();
    rig.pass(60_000);
    rig.grant(call.request.id, 7, 59_990);
    assert.ok(!call.outcome.done);
    const [{ name, fields }] = rig.sent();
    assert.deepEqual([name, fields.token, fields.lease_ms], ["extend", 7n, 1000]);
    const id = Number(fields.request_id);
    const sentAt = rig.now;
    rig.pass(100);
    if (end === "extended") {
      rig.reply("extended", { request_id: id, lease_ms: 1000 });
      near((call.outcome.value as HeldTicket).expiresMs, sentAt + 998);
    } else if (end === "cancelled") {
      rig.abandon(call);
      assert.deepEqual(rig.names(), ["release"]);
      rig.reply("extended", { request_id: id, lease_ms: 1000 });
      assert.ok(!call.outcome.done);
    } else {
      if (end === "dropped") rig.reply("dropped", { token: 7, reason: 1 });
      else rig.reply("not_held", { request_id: id });
      assert.equal(call.outcome.kind, "lost");
    }
  }
});

test("REQ-DEFAULT-LEASE REQ-LOST-ONEEXTEND REQ-TICKET-EXTENDED: renewal each third", () => {
  const rig = new Rig().ready();
  const ticket = rig.hold("k", 7, { leaseMs: 30_000, autoExtend: true });
  for (let turn = 0; turn < 5; turn += 1) {
    rig.pass(9999);
    assert.deepEqual(rig.sent(), []);
    rig.pass(1);
    const [{ fields }] = rig.sent();
    assert.equal(fields.lease_ms, 30_000);
    rig.reply("extended", { request_id: Number(fields.request_id), lease_ms: 30_000 });
    near(ticket.expiresMs, rig.now + 29_940);
  }
});

test("REQ-LOST-RETRY REQ-LOST-EXPIRED: failed renewals are tried again until the end", () => {
  const rig = new Rig({ replyTimeoutMs: 3000 }).ready();
  const ticket = rig.hold("k", 7, { leaseMs: 30_000, autoExtend: true });
  const ids: unknown[] = [];
  for (let ms = 0; ms < 29_900; ms += 100) {
    rig.pass(100);
    for (const { name, fields } of rig.sent()) if (name === "extend") ids.push(fields.request_id);
  }
  assert.equal(ids.length, 5); // at 10 s, and 1 s after each of the failures, 3 s later
  assert.equal(ticket.state, "held");
  rig.pass(100);
  assert.deepEqual([ticket.state, ticket.lostReason], ["lost", "expired"]);
  assert.equal(rig.kinds().filter((kind) => kind === "lost").length, 1);
});

test("REQ-TICKET-EXTENDED REQ-LOST-ONEEXTEND: extends, one at a time, only forward", () => {
  const rig = new Rig().ready();
  const ticket = rig.hold("k", 7, { leaseMs: 60_000 });
  const before = ticket.expiresMs;
  const [one, two] = [rig.extend(ticket, 1000), rig.extend(ticket, 90_000)];
  assert.equal(rig.sent().length, 1);
  rig.reply("extended", { request_id: 2, lease_ms: 1000 });
  assert.equal(ticket.expiresMs, before);
  assert.equal(one.outcome.value, undefined);
  assert.equal(rig.sent()[0].fields.lease_ms, 90_000);
  rig.reply("extended", { request_id: 3, lease_ms: 90_000 });
  assert.equal(two.outcome.value, undefined);
  near(ticket.expiresMs, rig.now + 89_820);
});

test("REQ-LOST-DROP REQ-SCOPE-DROPPED REQ-LOST-EXTEND: dropped, each reason", () => {
  const reasons: LostReason[] = ["lease_over", "operator", "other_client"];
  for (const [at, reason] of reasons.entries()) {
    const rig = new Rig().ready();
    const ticket = rig.hold("k");
    let told = 0;
    ticket.listeners.push(() => {
      told += 1;
    });
    rig.reply("dropped", { token: 7, reason: at + 1 });
    assert.deepEqual(rig.ended, [ticket]);
    assert.equal(told, 0); // Listeners are the shell's to call.
    const outcomes = [rig.release(ticket), rig.extend(ticket).outcome, rig.handOver(ticket)];
    for (const { error } of outcomes) {
      assert.ok(error instanceof LostError && error.reason === reason);
    }
    assert.deepEqual(rig.sent(), []);
  }
});

test("REQ-SCOPE-EXPIRED REQ-BOUND-LATE: after expires_at alone a release is sent", () => {
  const rig = new Rig().ready();
  const ticket = rig.hold("k", 7, { leaseMs: 1000 });
  rig.pass(999);
  assert.equal(ticket.state, "lost");
  const released = rig.release(ticket);
  assert.deepEqual(rig.names(), ["release"]);
  rig.reply("released", { request_id: 2 });
  assert.equal(released.kind, "lost");
  const dropped = rig.hold("k", 8, { leaseMs: 1000 });
  rig.pass(999);
  rig.reply("dropped", { token: 8, reason: 1 });
  assert.equal(rig.release(dropped).kind, "lost");
  assert.deepEqual(rig.sent(), []);
});

test("REQ-SCOPE-IDEMPOTENT REQ-LOST-ONCE: release once, each caller gets the same", () => {
  const rig = new Rig().ready();
  const ticket = rig.hold(["b", "a"]);
  const [one, two] = [rig.release(ticket), rig.release(ticket)];
  const release = { request_id: 2n, token: 7n, key: Buffer.from("a") };
  assert.deepEqual(rig.sent(), [{ name: "release", fields: release }]);
  rig.reply("dropped", { token: 7, reason: 3 });
  rig.reply("released", { request_id: 2 });
  for (const outcome of [one, two, rig.release(ticket)]) assert.equal(outcome.value, undefined);
  assert.deepEqual(rig.kinds(), ["connected", "granted", "released"]);
});

test("REQ-RESEND-RELEASED: not held is loss, or an earlier sending's doing", () => {
  const rig = new Rig().ready();
  const first = rig.release(rig.hold("k"));
  rig.output();
  rig.reply("not_held", { request_id: 2 });
  assert.equal(first.kind, "lost");
  for (const written of [true, false]) {
    const again = new Rig().ready();
    const outcome = again.release(again.hold("k"));
    if (written) again.output();
    again.lose();
    again.ready();
    again.output();
    again.reply("not_held", { request_id: 2 });
    if (written) assert.equal(outcome.value, undefined);
    else assert.equal(outcome.kind, "lost");
  }
});

test("REQ-BOUND-RELEASE REQ-RESEND-ALWAYS: a release is bounded, and sent until answered", () => {
  for (const [leaseMs, boundMs] of [
    [500, 1000],
    [5000, 4990],
  ]) {
    const rig = new Rig().ready();
    const outcome = rig.release(rig.hold("k", 7, { leaseMs }));
    rig.output();
    rig.pass(boundMs - 1);
    assert.ok(!outcome.done);
    rig.pass(2);
    assert.equal(outcome.kind, "lost");
    rig.lose();
    rig.ready();
    assert.deepEqual(rig.names(), ["release"]);
    rig.reply("released", { request_id: 2 });
    assert.deepEqual(rig.disconnects, []);
  }
});

test("REQ-HANDOVER-FORM REQ-HANDOVER-ENDS REQ-HANDOVER-ADOPT: hand over and adopt", () => {
  const rig = new Rig({ keyPrefix: "p/" }).ready();
  const ticket = rig.hold(Buffer.from("k%\xff", "latin1"), 7, { leaseMs: 60_000 });
  rig.extend(ticket);
  const handed = rig.handOver(ticket);
  assert.ok(!handed.done); // It waits for the extend.
  rig.output();
  rig.reply("extended", { request_id: 2, lease_ms: 60_000 });
  assert.equal(handed.value, "7:p%2Fk%25%FF");
  assert.equal(rig.release(ticket).value, undefined);
  rig.pass(100_000);
  assert.ok(!rig.names().includes("release"));
  const { request, outcome } = rig.adopt("9:a%2Fb", {});
  const extend = rig.sent().find(({ name }) => name === "extend");
  assert.deepEqual([extend?.fields.lease_ms, extend?.fields.key], [30_000, Buffer.from("a/b")]);
  rig.reply("extended", { request_id: request.id, lease_ms: 30_000 });
  const adopted = outcome.value as HeldTicket;
  assert.deepEqual([adopted.token, adopted.shownKeys, adopted.autoExtend], [9n, ["a/b"], true]);
  const gone = rig.adopt("9:x");
  rig.output();
  rig.reply("not_held", { request_id: gone.request.id });
  assert.equal(gone.outcome.kind, "not_held");
  for (const bad of ["", "0:a", "18446744073709551616:a", "1:", "1:a b", "1:%4", "x:a"]) {
    assert.throws(() => rig.adopt(bad), /not one that handOver returned/);
  }
});

test("REQ-STOP-CLEAN: a handOver that was given up leaves the ticket here", () => {
  const rig = new Rig().ready();
  const ticket = rig.hold("k", 7, { leaseMs: 60_000 });
  const handed = new Outcome();
  rig.core.handOver(ticket, handed, rig.now);
  rig.core.stopHandOver(ticket, handed, rig.now);
  assert.equal(ticket.state, "held");
});

test("REQ-SHUT-ORDER REQ-SHUT-PENDING: close writes in one go, by acquire id", () => {
  const rig = new Rig().ready();
  const first = rig.hold("a", 20);
  const waiting = rig.acquire("w");
  const later = rig.hold("b", 10);
  const releasing = rig.hold("c", 5);
  rig.release(releasing);
  const givenUp = rig.acquire("g");
  rig.output();
  rig.abandon(givenUp);
  rig.output();
  const unwritten = rig.acquire("u");
  const closed = rig.close();
  assert.deepEqual(
    [waiting, unwritten].map(({ outcome }) => outcome.kind),
    ["closed", "closed"],
  );
  const frames = rig.sent();
  assert.deepEqual(
    frames.map(({ name, fields }) => [name, fields.token ?? fields.acquire_id]),
    [
      ["release", 20n],
      ["cancel", 2n],
      ["release", 10n],
    ],
  );
  assert.ok(!closed.done);
  for (const { name, fields } of frames) {
    const reply = name === "cancel" ? "cancelled" : "released";
    rig.reply(reply, { request_id: Number(fields.request_id) });
  }
  rig.reply("released", { request_id: 5 });
  rig.reply("cancelled", { request_id: 7 });
  assert.equal(closed.value, undefined);
  assert.deepEqual(rig.disconnects, [1]);
  assert.ok(rig.isStill);
  assert.equal(first.state, "released");
  assert.equal(later.state, "released");
});

test("REQ-SHUT-BOUND REQ-SHUT-OPTION REQ-SHUT-OFFLINE REQ-SHUT-AFTER: close is bounded", () => {
  const slow = new Rig().ready();
  slow.hold("a");
  const closed = slow.close();
  assert.deepEqual(slow.names(), ["release"]);
  slow.pass(999);
  assert.ok(!closed.done);
  slow.pass(1);
  assert.equal(closed.value, undefined);
  assert.throws(() => slow.ping(), /closed/);

  const keeping = new Rig({ releaseOnClose: false }).ready();
  const ticket = keeping.hold("a");
  assert.equal(keeping.close().value, undefined);
  assert.deepEqual(keeping.sent(), []);
  assert.equal(keeping.release(ticket).kind, "closed");

  const away = new Rig().ready();
  away.hold("a");
  away.lose();
  const connects = away.connects.length;
  assert.equal(away.close().value, undefined);
  away.pass(60_000);
  assert.equal(away.connects.length, connects);
});

test("lost beliefs never outlive the lease: stalls of every length", () => {
  for (let stallMs = 0; stallMs <= 1300; stallMs += 50) {
    const rig = new Rig().ready();
    const call = rig.acquire("k", { leaseMs: 1000 });
    rig.output();
    const leaseEnds = rig.now + 1000; // It begins at the server at the very moment of the sending.
    rig.jump(stallMs);
    rig.grant(call.request.id);
    rig.run();
    if (stallMs >= 998) {
      assert.equal(call.outcome.kind, "lost");
      continue;
    }
    const ticket = call.outcome.value as HeldTicket;
    assert.ok(ticket.expiresMs <= leaseEnds);
    rig.until(leaseEnds);
    assert.equal(ticket.state, "lost");
  }
});
