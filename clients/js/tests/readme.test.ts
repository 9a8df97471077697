/** The README's first example is the one in examples, and prints what it says. */

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import * as api from "../src/index.js";
import { Server } from "./server.js";

const ROOT = new URL("../../", import.meta.url);
const README = readFileSync(new URL("README.md", ROOT), "utf8");

test("the first example runs as printed", async () => {
  const found = /<!-- example: (\S+) -->\n```js\n(.*?)```/s.exec(README);
  assert.ok(found !== null);
  const [, path, code] = found;
  assert.equal(code, readFileSync(new URL(path, ROOT), "utf8"));
  await using server = await Server.start();
  const main = fileURLToPath(new URL("build/src/index.js", ROOT));
  const copy = join(server.folder, "example.mjs");
  writeFileSync(copy, code.replace('"ticketing-client"', JSON.stringify(main)));
  const env = { ...process.env, TICKETING_URL: server.url };
  for (const file of [copy, fileURLToPath(new URL(path, ROOT))]) {
    const { stdout } = await promisify(execFile)(process.execPath, [file], { env });
    assert.match(stdout, /^I hold orders\/42 with token [0-9]+\n$/);
  }
});

test("every error and option is in the README", () => {
  const errors = Object.entries(api).filter(([name]) => /Error$/.test(name));
  assert.ok(errors.length > 10);
  for (const [name] of errors) assert.ok(README.includes(`\`${name}\``), name);
  const options = readFileSync(new URL("src/options.ts", ROOT), "utf8");
  const names = [...options.matchAll(/^ {2}readonly (\w+)\?/gm)].map(([, name]) => name);
  assert.ok(names.length > 20);
  for (const name of names) assert.ok(README.includes(name), name);
});

test("headings are those of the other clients", () => {
  const headings = (text: string) =>
    [...text.matchAll(/^## (.*)$/gm)].map(([, heading]) => heading).filter((h) => h !== "Sync");
  const python = readFileSync(new URL("../python/README.md", ROOT), "utf8");
  assert.deepEqual(headings(README), headings(python));
});

test("requirements that are named here are the spec's", () => {
  const known = readFileSync(new URL("../../spec/ticketing.toml", ROOT), "utf8");
  const named = ["src", "tests"].flatMap((folder) => {
    const files = readdirSync(new URL(folder, ROOT), { recursive: true, encoding: "utf8" });
    const sources = files.filter((file) => file.endsWith(".ts"));
    return sources.map((file) => readFileSync(new URL(`${folder}/${file}`, ROOT), "utf8"));
  });
  const ids = new Set(named.join().match(/REQ-[A-Z0-9]+-[A-Z0-9]+/g));
  assert.ok(ids.size > 50);
  for (const id of ids) assert.ok(known.includes(`"${id}"`), id);
});
