/** Packs the package, looks at what is in it, and uses the packed one in a project of its own. */

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

const root = new URL("..", import.meta.url).pathname;
const project = mkdtempSync(join(tmpdir(), "ticketing-package-"));
const run = (cwd, command, ...args) => execFileSync(command, args, { cwd, encoding: "utf8" });

try {
  const packed = run(root, "npm", "pack", "--json", "--pack-destination", project);
  // The build writes to stdout too; the report is the array at its end.
  const [report] = JSON.parse(packed.slice(packed.search(/^\[/m)));
  const files = report.files.map(({ path }) => path);
  for (const file of files) {
    const isWanted =
      /^(package\.json|README\.md|CHANGELOG\.md|LICENSE|build\/src\/.*\.(js|d\.ts))$/;
    assert.match(file, isWanted, `${file} does not belong into the package`);
  }
  for (const file of [
    "build/src/index.js",
    "build/src/index.d.ts",
    "README.md",
    "CHANGELOG.md",
    "LICENSE",
  ]) {
    assert.ok(files.includes(file), `${file} is missing`);
  }

  writeFileSync(join(project, "package.json"), '{ "type": "module", "private": true }');
  run(project, "npm", "install", "--offline", "--no-audit", "--no-fund", `./${report.filename}`);
  const use = `
    import { connect, TicketingError, VERSION } from "ticketing-client";
    try {
      await connect("ticketing://127.0.0.1:1");
    } catch (error) {
      console.log(VERSION, error instanceof TicketingError, error.code);
    }`;
  writeFileSync(join(project, "use.mjs"), use);
  assert.equal(run(project, process.execPath, "use.mjs"), "0.1.0 true TICKETING_CONNECTION\n");

  const typed = `
    import { type Client, connect, type TicketLike } from "ticketing-client";
    const client: Client = await connect();
    const token: bigint = await client.withTicket("k", ({ token }) => token);
    const ticket: TicketLike | null = await client.tryAcquire("k");
    console.log(token, ticket?.signal.aborted);`;
  writeFileSync(join(project, "typed.mts"), typed);
  const options = ["--noEmit", "--strict", "--module", "nodenext", "--target", "es2022"];
  const types = ["--typeRoots", join(root, "node_modules/@types"), "--types", "node"];
  const libraries = ["--lib", "es2022,esnext.disposable"];
  const compiler = join(root, "node_modules/typescript/bin/tsc");
  run(project, process.execPath, compiler, ...options, ...types, ...libraries, "typed.mts");
  console.log(`${report.filename}: ${files.length} files, ${report.size} bytes, works`);
} finally {
  rmSync(project, { recursive: true });
}
