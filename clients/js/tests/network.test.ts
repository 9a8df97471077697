/** Transports, restarts and failures, and what keeps a process alive. */

import assert from "node:assert/strict";
import { execFileSync, spawn } from "node:child_process";
import { writeFileSync } from "node:fs";
import { type AddressInfo, createServer, type Server as Listener } from "node:net";
import { join } from "node:path";
import { test } from "node:test";
import {
  AuthError,
  type ClientOptions,
  ConnectionFailedError,
  connect,
  InvalidArgumentError,
} from "../src/index.js";
import { LONG_MS, Server } from "./server.js";

const PACKAGE = new URL("../src/index.js", import.meta.url);

async function takeOne(options: ClientOptions): Promise<void> {
  const client = await connect(options);
  await client.withTicket("a", () => {});
  await client.close();
}

test("REQ-URL-FORMS: IPv6", async () => {
  await using server = await Server.start(["--listen", "[::1]:0"]);
  await takeOne({ url: server.url });
});

test("REQ-URL-FORMS: a Unix socket", async () => {
  await using server = await Server.start();
  await server.kill();
  const path = join(server.folder, "a b.sock");
  await using unix = await Server.start(["--listen", `unix:${path}`]);
  await takeOne({ url: `ticketing+unix://${encodeURI(path)}` });
  await unix.kill();
  const gone = connect(`ticketing+unix://${encodeURI(path)}`);
  await assert.rejects(gone, /unix:.*(no such socket|connection refused)/);
});

test("REQ-URL-RESOLVE REQ-CONNECT-ORDER: names are resolved, endpoints tried in order", async () => {
  await using server = await Server.start();
  await takeOne({ url: `ticketing://localhost:1,localhost:${server.port}` });
  await assert.rejects(connect("ticketing://no.such.host.invalid:1"), /does not resolve/);
});

/** An authority, a certificate for localhost and loopback, one for another host, one for clients. */
function makeCertificates(folder: string): void {
  const openssl = (...args: string[]) =>
    execFileSync("openssl", args, { cwd: folder, stdio: "pipe" });
  const key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"];
  openssl(
    "req",
    "-x509",
    ...key,
    "-keyout",
    "ca.key",
    "-out",
    "ca.pem",
    "-subj",
    "/CN=ca",
    "-days",
    "9",
  );
  for (const [name, alternatives] of [
    ["server", "DNS:localhost,IP:127.0.0.1,IP:::1"],
    ["other", "DNS:elsewhere.test"],
    ["client", "DNS:client.test"],
  ]) {
    openssl("req", ...key, "-keyout", `${name}.key`, "-out", `${name}.csr`, "-subj", `/CN=${name}`);
    writeFileSync(join(folder, "names"), `subjectAltName=${alternatives}\n`);
    const ca = ["-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "9"];
    openssl(
      "x509",
      "-req",
      "-in",
      `${name}.csr`,
      ...ca,
      "-extfile",
      "names",
      "-out",
      `${name}.pem`,
    );
  }
}

test("TLS with a private authority, and mutual TLS", async () => {
  await using plain = await Server.start();
  const file = (name: string) => join(plain.folder, name);
  makeCertificates(plain.folder);
  const pair = (name: string) => [
    "--tls-cert",
    file(`${name}.pem`),
    "--tls-key",
    file(`${name}.key`),
  ];
  const caFile = file("ca.pem");

  await using server = await Server.start(pair("server"));
  const { url } = server;
  assert.match(url, /^ticketings:/);
  await takeOne({ url, tls: { caFile } });
  await takeOne({ url: `ticketings://localhost:${server.port}`, tls: { caFile } });
  await assert.rejects(connect(url), /not trusted.*tls\.caFile/);
  await assert.rejects(
    connect({ url, tls: { caFile, serverName: "elsewhere.test" } }),
    /not trusted/,
  );
  await assert.rejects(connect(url.replace("ticketings", "ticketing")), ConnectionFailedError);
  const mixedUp = connect({ url: plain.url.replace("ticketing", "ticketings"), tls: { caFile } });
  await assert.rejects(mixedUp, /TLS failed/);
  await assert.rejects(connect({ url, tls: { caFile: file("none") } }), InvalidArgumentError);
  await assert.rejects(
    connect({ url, tls: { secureContext: {} as never } }),
    ConnectionFailedError,
  );
  await assert.rejects(connect({ url, tls: { keyFile: file("client.key") } }), /needs a certFile/);

  await using other = await Server.start(pair("other"));
  await assert.rejects(connect({ url: other.url, tls: { caFile } }), /not trusted/);
  await takeOne({ url: other.url, tls: { caFile, serverName: "elsewhere.test" } });

  await using mutual = await Server.start([...pair("server"), "--tls-client-ca", caFile]);
  const [certFile, keyFile] = [file("client.pem"), file("client.key")];
  await takeOne({ url: mutual.url, tls: { caFile, certFile, keyFile } });
  await assert.rejects(connect({ url: mutual.url, tls: { caFile } }), ConnectionFailedError);
});

test("REQ-CONNECT-AUTH: a wrong secret is an auth error that says what to do", async () => {
  await using server = await Server.start([], "a long enough secret");
  const { url } = server;
  await takeOne({ url, secret: "a long enough secret" });
  const wrong = connect({ url, secret: "another" });
  await assert.rejects(
    wrong,
    (e: Error) => e instanceof AuthError && /TICKETING_SECRET/.test(e.message),
  );
});

/** A listener that does not answer, or says something of its own. */
async function impostor(says: string): Promise<{ listener: Listener; url: string }> {
  const listener = createServer((socket) => {
    socket.on("error", () => {});
    if (says) socket.write(says);
  });
  await new Promise<void>((resolve) => listener.listen(0, "127.0.0.1", resolve));
  return { listener, url: `ticketing://127.0.0.1:${(listener.address() as AddressInfo).port}` };
}

test("REQ-CONNECT-NEVER REQ-CONNECT-TIMEOUT: no server, a silent one, another one", async () => {
  await assert.rejects(connect("ticketing://127.0.0.1:1"), /127\.0\.0\.1:1: connection refused/);
  for (const [says, text] of [
    ["", /no greeting within 3000 ms/],
    ["SSH-2.0-x\r\n", /no greeting of a ticketing server/],
  ] as const) {
    const { listener, url } = await impostor(says);
    await assert.rejects(connect(url), text);
    listener.close();
  }
});

test("REQ-RESEND-ALL REQ-RESEND-ONCE: killed and restarted under a hundred waiters", async () => {
  await using server = await Server.start();
  const logger = { debug: () => {}, info: () => {}, warn: () => {} };
  await using client = await connect({ url: server.url, logger });
  const holder = await client.acquire("k", { leaseMs: 600_000 });
  const settled = new Array(100).fill(0);
  const waiters = settled.map(async (_, n) => {
    const ticket = await client.acquire("k", { leaseMs: 600_000 });
    settled[n] += 1;
    await ticket.release();
  });
  await server.until((status) => status.waiters === 100);
  await server.kill();
  await server.restart();
  await Promise.all(waiters); // The server in memory mode has forgotten the holder.
  assert.deepEqual(settled, new Array(100).fill(1));
  assert.ok(holder.isLost);
  await server.empty();
});

/** Run a module with the client in scope; returns what it printed when it ended by itself. */
async function run(url: string, source: string, flags: string[] = []): Promise<string> {
  const code = `const { connect } = await import(${JSON.stringify(PACKAGE)});
    const client = await connect(${JSON.stringify(url)});\n${source}`;
  const child = spawn(process.execPath, [...flags, "--input-type=module", "-e", code], {
    stdio: ["ignore", "pipe", "inherit"],
    timeout: LONG_MS,
  });
  let printed = "";
  child.stdout.on("data", (data) => {
    printed += data;
  });
  const status = await new Promise((resolve) => child.once("close", resolve));
  assert.equal(status, 0);
  return printed;
}

test("an idle client lets its process end, a call keeps it alive", async () => {
  await using server = await Server.start();
  assert.equal(await run(server.url, "await client.acquire('a'); console.log('held')"), "held\n");
  await using client = await connect(server.url);
  const ticket = await client.acquire("b");
  const waiting = run(server.url, "const t = await client.acquire('b'); console.log(t.key)");
  await server.until(({ waiters }) => waiters === 1);
  await ticket.release();
  assert.equal(await waiting, "b\n");
});

test("tickets and clients that nobody can end any more are warned about", async () => {
  await using server = await Server.start();
  const code = `
    import { setTimeout as sleep } from "node:timers/promises";
    const warn = (text) => console.log(text);
    const logger = { debug() {}, info() {}, warn };
    const keeper = await connect(${JSON.stringify(server.url)}, { logger });
    async function drop() {
      const other = await connect(${JSON.stringify(server.url)}, { logger });
      await other.withTicket("released", () => {});
      await keeper.acquire("dropped", { leaseMs: 60_000 });
    }
    await drop();
    for (let turn = 0; turn < 20; turn += 1) {
      gc();
      await sleep(20);
    }
    console.log(await client.tryAcquire("dropped") === null ? "still held" : "free");
    await keeper.close();`;
  const lines = (await run(server.url, code, ["--expose-gc"])).trim().split("\n");
  assert.deepEqual(lines.sort(), [
    "a client was dropped without close(); its tickets are released",
    "nobody can release the ticket for 'dropped': held until its lease is over",
    "still held",
  ]);
});

test("a call keeps the process alive while there is no server, too", async () => {
  await using server = await Server.start();
  await using client = await connect(server.url);
  await client.acquire("b");
  const waiting = run(server.url, "const t = await client.acquire('b'); console.log(t.key)");
  await server.until(({ waiters }) => waiters === 1);
  await server.kill();
  await server.restart();
  assert.equal(await waiting, "b\n");
});
