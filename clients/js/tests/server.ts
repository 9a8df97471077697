/** A real server in a process of its own. TICKETING_TEST_SERVER is the command that starts it. */

import assert from "node:assert/strict";
import { type ChildProcess, spawn } from "node:child_process";
import { existsSync, mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";

/** After which something that must happen has not happened, on a loaded machine. */
export const LONG_MS = 60_000;

/** What the server's status page counts. */
interface Status {
  readonly tickets: number;
  readonly waiters: number;
  readonly waiters_detached: number;
  readonly connections: number;
  readonly requests_total: number;
}

export class Server implements AsyncDisposable {
  readonly folder = mkdtempSync(join(tmpdir(), "ticketing-"));
  #process: ChildProcess | undefined;
  #ready = new Map<string, string>();

  private constructor(
    private readonly flags: readonly string[],
    private readonly secret: string,
  ) {}

  /** Start a server, on a free port of loopback unless the flags say otherwise. */
  static async start(flags: readonly string[] = [], secret = ""): Promise<Server> {
    const server = new Server(flags, secret);
    await server.#launch(["--listen", "127.0.0.1:0"]);
    return server;
  }

  async #launch(listen: readonly string[]): Promise<void> {
    const ready = join(this.folder, "ready");
    rmSync(ready, { force: true });
    const command = (process.env.TICKETING_TEST_SERVER ?? "python3 -m ticketing_server").split(" ");
    const all = this.flags.includes("--listen") ? this.flags : [...listen, ...this.flags];
    const args = [
      ...command.slice(1),
      ...all,
      "--http-listen",
      "127.0.0.1:0",
      "--ready-file",
      ready,
    ];
    const env = { ...process.env, TICKETING_SECRET: this.secret };
    const child = spawn(command[0], args, { env, stdio: ["ignore", "ignore", "pipe"] });
    let said = "";
    child.stderr?.on("data", (data) => {
      said = (said + data).slice(-4000);
    });
    child.on("error", (error) => {
      said += error.message;
    });
    this.#process = child;
    const giveUp = performance.now() + LONG_MS;
    while (!existsSync(ready) || !readFileSync(ready, "utf8").includes("pid=")) {
      assert.equal(child.exitCode, null, `${command.join(" ")} ended: ${said}`);
      assert.ok(performance.now() < giveUp, `${command.join(" ")} did not start: ${said}`);
      await sleep(20);
    }
    for (const line of readFileSync(ready, "utf8").trim().split("\n")) {
      const at = line.indexOf("=");
      if (!this.#ready.has(line.slice(0, at)))
        this.#ready.set(line.slice(0, at), line.slice(at + 1));
    }
  }

  get url(): string {
    return this.#ready.get("url") as string;
  }

  get port(): number {
    return Number(/:(\d+)$/.exec(this.#ready.get("listen") as string)?.[1]);
  }

  async status(): Promise<Status> {
    const response = await fetch(`http://${this.#ready.get("http-listen")}/status`);
    return (await response.json()) as Status;
  }

  /** Wait until nobody waits and nothing is held. */
  async empty(): Promise<void> {
    await this.until(({ tickets, waiters, waiters_detached: detached }) => {
      return tickets + waiters + detached === 0;
    });
  }

  /** Wait until the status is as wanted; fail where that does not come true. */
  async until(isSo: (status: Status) => boolean): Promise<void> {
    const giveUp = performance.now() + LONG_MS;
    for (;;) {
      const status = await this.status();
      if (isSo(status)) return;
      assert.ok(performance.now() < giveUp, JSON.stringify(status));
      await sleep(5);
    }
  }

  /** End the process at once, as a power cut would. */
  async kill(signal: NodeJS.Signals = "SIGKILL"): Promise<void> {
    const child = this.#process;
    if (child === undefined || child.exitCode !== null || child.signalCode !== null) return;
    const gone = new Promise((resolve) => child.once("exit", resolve));
    child.kill(signal);
    await gone;
  }

  /** Start again on the same port. */
  async restart(): Promise<void> {
    const { port } = this;
    this.#ready.clear();
    await this.#launch(["--listen", `127.0.0.1:${port}`]);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.kill();
    rmSync(this.folder, { recursive: true });
  }
}
