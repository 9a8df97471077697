/** The API against a real server, on one connection and with many callers. */

import assert from "node:assert/strict";
import { createHook } from "node:async_hooks";
import { after, before, test } from "node:test";
import { setTimeout as sleep, setImmediate as turn } from "node:timers/promises";
import { inspect } from "node:util";
import {
  type Client,
  ClosedError,
  connect,
  HeldError,
  InvalidArgumentError,
  LostError,
  monotonicMs,
  NotHeldError,
  Ticket,
  TicketingError,
  type TicketingEvent,
  WaitTimeoutError,
} from "../src/index.js";
import { LONG_MS, Server } from "./server.js";

let server: Server;
before(async () => {
  server = await Server.start();
});
after(async () => {
  await server[Symbol.asyncDispose]();
});

/** Run with a client of its own; afterwards the server is empty. */
async function withClient(
  body: (client: Client) => Promise<void>,
  options: object = {},
): Promise<void> {
  const client = await connect({ url: server.url, logger: QUIET, ...options });
  try {
    await body(client);
  } finally {
    await client.close();
  }
  await server.empty();
}

const QUIET = { debug: () => {}, info: () => {}, warn: () => {} };

test("withTicket returns what the body returns, and releases", async () => {
  await withClient(async (client) => {
    const result = await client.withTicket("a", async (ticket) => {
      assert.equal(await client.tryAcquire("a"), null);
      assert.equal(typeof ticket.token, "bigint");
      return ticket.key;
    });
    assert.equal(result, "a");
    const set = await client.withTicket(["b", "a"], { leaseMs: 5000 }, ({ keys }) => keys);
    assert.deepEqual(set, ["a", "b"]);
    await assert.rejects(client.withTicket("a", {} as never, 5 as never), InvalidArgumentError);
  });
});

test("REQ-SCOPE-NOMASK: the body's own error comes through, also after a loss", async () => {
  await withClient(async (client) => {
    const own = new Error("mine");
    await assert.rejects(
      client.withTicket("a", () => {
        throw own;
      }),
      own,
    );
    const late = client.withTicket("a", { leaseMs: 100 }, async ({ signal }) => {
      while (!signal.aborted) await sleep(5);
      throw own;
    });
    await assert.rejects(late, own);
  });
});

test("REQ-SCOPE-CANCELBODY REQ-SCOPE-REPORT: the loss aborts the body and is reported", async () => {
  await withClient(async (client) => {
    for (const body of [
      ({ signal }: Ticket) => sleep(LONG_MS, undefined, { signal }),
      async ({ signal }: Ticket) => {
        while (!signal.aborted) await sleep(5);
        signal.throwIfAborted();
      },
      async ({ signal }: Ticket) => {
        while (!signal.aborted) await sleep(5);
      },
    ]) {
      const scope = client.withTicket("a", { leaseMs: 200 }, body);
      await assert.rejects(scope, (error) => error instanceof LostError && error.kind === "lost");
    }
  });
});

test("await using releases at the end of the block", async () => {
  await withClient(async (client) => {
    {
      await using ticket = await client.acquire("a");
      assert.ok(ticket.remainingMs > 0);
    }
    await using again = await client.acquire("a", { waitTimeoutMs: 0 });
    assert.equal(again.key, "a");
  });
  await using client = await connect({ url: server.url });
  await client.ping();
});

test("a ticket tells what it is", async () => {
  await withClient(async (client) => {
    const ticket = await client.acquireSet(["é", Buffer.of(0xff, 1)], { leaseMs: 60_000 });
    const { token } = ticket;
    assert.deepEqual(ticket.keys, ["é", Uint8Array.of(0xff, 1)]);
    assert.equal(ticket.leaseMs, 60_000);
    assert.ok(ticket.remainingMs > 0 && ticket.expiresAtMs <= monotonicMs() + 60_000);
    assert.deepEqual(JSON.parse(JSON.stringify(ticket)), {
      key: "é",
      keys: ["é", "ff01"],
      token: `${token}`,
      leaseMs: 60_000,
      isLost: false,
    });
    assert.match(inspect(ticket), new RegExp(`^<Ticket 'é', .* token=${token} held>$`));
    const { signal } = ticket;
    await ticket.release();
    await ticket.release();
    assert.equal(ticket.remainingMs, 0);
    assert.ok(!signal.aborted); // REQ-LOST-ONCE: never after release was called.
    await assert.rejects(ticket.extend(), NotHeldError);
  });
});

test("waits end, and tries do not wait", async () => {
  await withClient(async (client) => {
    const ticket = await client.acquire("a");
    const wait = client.acquire("a", { waitTimeoutMs: 50 });
    await assert.rejects(wait, (e) => e instanceof WaitTimeoutError && !(e instanceof HeldError));
    await assert.rejects(client.acquire("a", { waitTimeoutMs: 0 }), { code: "TICKETING_HELD" });
    await ticket.extend(60_000);
    assert.ok(ticket.remainingMs > 50_000);
    await ticket.release();
  });
});

test("leases longer than a timer may be", async () => {
  await using long = await Server.start(["--max-lease", "720h"]);
  await using client = await connect({ url: long.url });
  const leaseMs = 2 ** 31 + 1000;
  const ticket = await client.acquire("a", { leaseMs });
  await sleep(50);
  assert.ok(!ticket.isLost);
  assert.ok(ticket.remainingMs > leaseMs * 0.99);
  await client.close();
  await long.empty();
});

test("REQ-DEFAULT-LEASE: a ticket without a lease is renewed", async () => {
  const events: TicketingEvent[] = [];
  const onEvent = (event: TicketingEvent) => {
    events.push(event);
    if (event.kind === "granted") throw new Error("of the hook");
  };
  const warnings: string[] = [];
  const logger = { ...QUIET, warn: (text: string) => warnings.push(text) };
  await withClient(
    async (client) => {
      const ticket = await client.acquire("a", { leaseMs: 300, autoExtend: true });
      const first = ticket.expiresAtMs;
      while (events.filter(({ kind }) => kind === "extended").length < 3) await sleep(10);
      assert.ok(ticket.expiresAtMs > first);
      await ticket.release();
    },
    { onEvent, logger },
  );
  assert.ok(warnings.includes("onEvent threw for granted: Error: of the hook"));
  assert.equal(events.at(-1)?.kind, "released");
});

test("hand over and adopt", async () => {
  await withClient(async (client) => {
    const ticket = await client.acquire("a/b");
    const reference = await ticket.handOver();
    assert.equal(reference, `${ticket.token}:a%2Fb`);
    const adopted = await client.adopt(reference);
    assert.equal(adopted.token, ticket.token);
    await adopted.release();
    await assert.rejects(client.adopt(reference), NotHeldError);
  });
});

test("what is not taken is refused before anything is sent", async () => {
  await withClient(async (client) => {
    const before = (await server.status()).requests_total;
    const refused = [
      () => client.acquire(""),
      () => client.acquire("x".repeat(129)),
      () => client.acquire("\ud800"),
      () => client.acquire(5 as never),
      () => client.acquire("a", { leaseMs: 0 }),
      () => client.acquire("a", { leaseMs: Number.NaN }),
      () => client.acquire("a", { leaseMs: "5" as never }),
      () => client.acquire("a", { waitTimeoutMs: -1 }),
      () => client.acquire("a", { waitTimeoutMs: 2 ** 32 }),
      () => client.acquire("a", { lease: 5 } as never),
      () => client.acquire("a", { signal: 5 as never }),
      () => client.acquire("a", { autoExtend: 1 as never }),
      () => client.acquireSet("ab" as never),
      () => client.acquireSet([]),
      () => client.adopt("5"),
    ];
    for (const call of refused) await assert.rejects(call, InvalidArgumentError);
    assert.equal((await server.status()).requests_total, before);
  });
  for (const options of [
    { url: "http://localhost" },
    { url: server.url, tls: {} },
    { url: server.url, secret: "a\n" },
    { url: server.url, leese: 5 },
    { url: server.url, seed: Buffer.alloc(3) },
    5,
  ]) {
    await assert.rejects(connect(options as never), InvalidArgumentError);
  }
});

test("REQ-ARGS-KEY REQ-ARGS-DURATION: a value of any wrong type is refused, or taken", async () => {
  const odd = [null, true, 5, -5, 5n, "\ud800", "", Symbol("s"), {}, [], [5], () => 5, new Date()];
  const names = "url secret name keyPrefix leaseMs waitTimeoutMs autoExtend tls fingerprint".split(
    " ",
  );
  names.push(..."connectForMs replyTimeoutMs releaseOnClose onEvent logger clientId".split(" "));
  names.push(..."seed label signal".split(" "));
  const isRefused = (error: unknown) =>
    error instanceof TicketingError && ["invalid_argument", "connection"].includes(error.kind);
  for (const name of names) {
    for (const value of odd) {
      // No URL at all means the environment's.
      process.env.TICKETING_URL = "ticketing://127.0.0.1:1";
      const opening = connect({ [name]: value } as never);
      await assert.rejects(opening, isRefused, `${name} ${inspect(value)}`);
      delete process.env.TICKETING_URL;
    }
  }
  const tls = "caFile certFile keyFile keyPassword serverName secureContext".split(" ");
  for (const name of tls) {
    for (const value of odd) {
      const options = { url: "ticketings://127.0.0.1:1", tls: { [name]: value } };
      await assert.rejects(connect(options as never), isRefused, `${name} ${inspect(value)}`);
    }
  }
  await withClient(async (client) => {
    for (const value of odd as never[]) {
      const calls = [
        () => client.acquire(value),
        () => client.acquireSet(value),
        () => client.tryAcquire(value),
        () => client.adopt(value),
        () => client.withTicket("k", value),
        () => client.acquire("k", value),
        ...["leaseMs", "waitTimeoutMs", "autoExtend", "signal"].map(
          (name) => () => client.acquire("k", { [name]: value }),
        ),
      ];
      for (const [at, call] of calls.entries()) {
        try {
          const result = await (call as () => Promise<unknown>)();
          if (result instanceof Ticket) await result.release();
        } catch (error) {
          assert.ok(error instanceof InvalidArgumentError, `${at} ${inspect(value)}: ${error}`);
        }
      }
    }
  });
});

test("aborted calls reject with the signal's reason and leave nothing behind", async () => {
  await withClient(async (client) => {
    const held = await client.acquire("a");
    const stop = new AbortController();
    const { signal } = stop;
    const calls = [client.acquire("a", { signal }), client.withTicket("a", { signal }, () => {})];
    await server.until(({ waiters }) => waiters === 2);
    const reason = new Error("enough");
    stop.abort(reason);
    for (const call of calls) await assert.rejects(call, reason);
    await assert.rejects(client.ping({ signal }), reason);
    await assert.rejects(held.extend(5000, { signal }), reason);
    await assert.rejects(held.handOver({ signal }), reason);
    await server.until(({ waiters }) => waiters === 0);
    await assert.rejects(held.release({ signal }), reason); // Ends only the waiting.
    await server.empty();
    await assert.rejects(connect({ url: server.url, signal }), reason);
  });
});

test("ten thousand pairs from a hundred callers on one connection", async () => {
  await withClient(async (client) => {
    const tokens = new Set<bigint>();
    let left = 10_000;
    const caller = async (n: number) => {
      while (left > 0) {
        left -= 1;
        const ticket = await client.acquire(`k${n % 50}`, { leaseMs: LONG_MS });
        tokens.add(ticket.token);
        await ticket.release();
      }
    };
    await Promise.all(Array.from({ length: 100 }, (_, n) => caller(n)));
    assert.equal(tokens.size, 10_000);
    assert.equal((await server.status()).connections, 1);
  });
});

test("REQ-STOP-CLEAN: aborted in the very moment of the grant, a thousand times", async () => {
  await withClient(async (client) => {
    const outcomes = { granted: 0, aborted: 0 };
    for (let n = 0; n < 1000; n += 1) {
      const holder = await client.acquire("a");
      const stop = new AbortController();
      const waiting = client.acquire("a", { signal: stop.signal });
      const released = holder.release();
      // From before the requests are written to after the grant was read.
      if (n % 4 === 1) await turn();
      if (n % 4 === 2) await released;
      if (n % 4 === 3) void released.then(() => stop.abort());
      else stop.abort();
      try {
        await (await waiting).release();
        outcomes.granted += 1;
      } catch (error) {
        assert.equal((error as Error).name, "AbortError");
        outcomes.aborted += 1;
      }
      await released;
    }
    assert.ok(outcomes.aborted > 300, JSON.stringify(outcomes));
    await server.empty();
  });
});

test("ten thousand clients leave no timer and no socket", async () => {
  const there = new Map<number, string>();
  const watch = createHook({
    init(id, type) {
      if (type === "Timeout" || type.endsWith("WRAP")) there.set(id, type);
    },
    destroy(id) {
      there.delete(id);
    },
  }).enable();
  let left = 10_000;
  const lane = async () => {
    while (left > 0) {
      left -= 1;
      const client = await connect({ url: server.url });
      await client.close();
    }
  };
  await Promise.all(Array.from({ length: 40 }, lane));
  await server.until(({ connections }) => connections === 0);
  watch.disable();
  // The status page was fetched over a connection or two, which are kept for a while.
  const leftOver = [...there.values()].filter((type) => !type.startsWith("HTTP"));
  assert.ok(leftOver.length < 20, `${leftOver}`);
});

test("one signal serves any number of calls", async () => {
  const warnings: string[] = [];
  const note = ({ name }: Error) => warnings.push(name);
  process.on("warning", note);
  await withClient(async (client) => {
    const ticket = await client.acquire("a");
    const stop = new AbortController();
    const calls = Array.from({ length: 200 }, () => client.acquire("a", { signal: stop.signal }));
    const all = Promise.allSettled(calls);
    await server.until(({ waiters }) => waiters === 200);
    stop.abort();
    assert.ok((await all).every(({ status }) => status === "rejected"));
    await ticket.release();
  });
  process.off("warning", note);
  assert.deepEqual(warnings, []);
});

test("a logger that throws hides nothing", async () => {
  const fail = () => {
    throw new Error("of the logger");
  };
  const warned = new Promise<Error>((resolve) => process.once("warning", resolve));
  await withClient(
    async (client) => {
      const ticket = await client.acquire("a", { leaseMs: 50 });
      await assert.rejects(sleep(LONG_MS, undefined, { signal: ticket.signal }));
      assert.ok(ticket.isLost);
    },
    { logger: { debug: fail, info: fail, warn: fail } },
  );
  assert.match((await warned).message, /of the logger/);
});

test("REQ-SHUT-ORDER REQ-SHUT-BOUND: close ends what waits and releases what is held", async () => {
  await using client = await connect(server.url);
  const ticket = await client.acquire("a");
  const waiting = assert.rejects(client.acquire("a"), ClosedError);
  await server.until(({ waiters }) => waiters === 1);
  await client.close();
  await waiting;
  await client.close();
  await assert.rejects(client.ping(), ClosedError);
  await assert.rejects(ticket.extend(), NotHeldError);
  await server.empty();
});
