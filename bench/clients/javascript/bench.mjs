/**
 * Acquire and release with 64 callers on one connection, beside ioredis with auto-pipelining.
 *
 * Both servers and this program run on this machine; the sides take turns, a round each. The peer
 * does what people do for a lock with Redis: SET NX PX, then a script that compares and deletes.
 * Every answer is verified. The client has to be built: `npm run build` in clients/js.
 */

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { randomUUID } from "node:crypto";
import { existsSync, mkdtempSync, readFileSync, rmSync } from "node:fs";
import { createServer } from "node:net";
import { loadavg, tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { parseArgs } from "node:util";
import { Redis } from "ioredis";
import { connect } from "../../../clients/js/build/src/index.js";

const { values } = parseArgs({
  options: {
    callers: { type: "string", default: "64" },
    rounds: { type: "string", default: "15" },
    seconds: { type: "string", default: "1" },
    server: { type: "string", default: "python3 -m ticketing_server" },
  },
});
const callers = Number(values.callers);
const rounds = Number(values.rounds);
const roundMs = Number(values.seconds) * 1000;
const LEASE_MS = 60_000;
const folder = mkdtempSync(join(tmpdir(), "ticketing-bench-"));
const processes = [];

function start(command, args) {
  const child = spawn(command, args, { stdio: "ignore" });
  child.on("error", (error) => {
    console.error(`${command} could not be started: ${error.message}`);
    process.exitCode = 1;
  });
  processes.push(child);
}

async function freePort() {
  const listener = createServer();
  await new Promise((resolve) => listener.listen(0, "127.0.0.1", resolve));
  const { port } = listener.address();
  await new Promise((resolve) => listener.close(resolve));
  return port;
}

async function startTicketing() {
  const ready = join(folder, "ready");
  const [command, ...args] = values.server.split(" ");
  start(command, [...args, "--listen", "127.0.0.1:0", "--ready-file", ready]);
  while (!existsSync(ready) || !readFileSync(ready, "utf8").includes("pid=")) await sleep(20);
  return /^url=(.*)$/m.exec(readFileSync(ready, "utf8"))[1];
}

async function startRedis() {
  const port = await freePort();
  start("redis-server", [
    "--port",
    `${port}`,
    "--bind",
    "127.0.0.1",
    "--save",
    "",
    "--dir",
    folder,
  ]);
  return port;
}

/** Let the callers take turns on keys of their own; pairs per second and CPU per pair in µs. */
async function round(pair) {
  let pairs = 0;
  const cpu = process.cpuUsage();
  const began = performance.now();
  const until = began + roundMs;
  const caller = async (key) => {
    while (performance.now() < until) {
      await pair(key);
      pairs += 1;
    }
  };
  await Promise.all(Array.from({ length: callers }, (_, n) => caller(`orders/${n}`)));
  const { user, system } = process.cpuUsage(cpu);
  return {
    perSecond: pairs / ((performance.now() - began) / 1000),
    cpuUs: (user + system) / pairs,
  };
}

const median = (numbers) => numbers.toSorted((a, b) => a - b)[Math.floor(numbers.length / 2)];
const spread = (numbers, digits = 0) => {
  const [low, mid, high] = [Math.min(...numbers), median(numbers), Math.max(...numbers)];
  return `${mid.toFixed(digits)} (${low.toFixed(digits)}–${high.toFixed(digits)})`;
};

try {
  const client = await connect(await startTicketing());
  const redis = new Redis({ port: await startRedis(), enableAutoPipelining: true });
  redis.defineCommand("unlock", {
    numberOfKeys: 1,
    lua: 'if redis.call("get", KEYS[1]) == ARGV[1] then return redis.call("del", KEYS[1]) end return 0',
  });
  let last = 0n;
  const sides = {
    ticketing: async (key) => {
      const ticket = await client.acquire(key, { leaseMs: LEASE_MS });
      assert.ok(ticket.token > last); // Granted in the order of the requests on one connection.
      last = ticket.token;
      await ticket.release();
    },
    ioredis: async (key) => {
      const value = randomUUID();
      assert.equal(await redis.set(key, value, "PX", LEASE_MS, "NX"), "OK");
      assert.equal(await redis.unlock(key, value), 1);
    },
  };
  const results = { ticketing: [], ioredis: [] };
  for (const pair of Object.values(sides)) await round(pair); // Both are warm, and compiled.
  for (let n = 0; n < rounds; n += 1) {
    for (const [name, pair] of Object.entries(sides)) results[name].push(await round(pair));
  }
  for (const [name, all] of Object.entries(results)) {
    const perSecond = spread(all.map((one) => one.perSecond));
    console.log(
      `${name}: ${perSecond} pairs/s, ${spread(
        all.map((one) => one.cpuUs),
        1,
      )} µs CPU a pair`,
    );
  }
  const { ticketing, ioredis } = results;
  const ratios = ticketing.map(({ perSecond }, n) => perSecond / ioredis[n].perSecond);
  console.log(
    `× ${spread(ratios, 2)}, gate ≥ 1; CPU of the client × ${spread(
      ticketing.map(({ cpuUs }, n) => cpuUs / ioredis[n].cpuUs),
      2,
    )}`,
  );
  console.log(
    `${callers} callers, ${rounds} rounds of ${values.seconds} s, Node ${process.version}, load ${loadavg()[0].toFixed(1)}`,
  );
  if (median(ratios) < 1) process.exitCode = 1;
  await client.close();
  redis.disconnect();
} finally {
  for (const child of processes) child.kill();
  await sleep(200);
  rmSync(folder, { recursive: true, force: true });
}
