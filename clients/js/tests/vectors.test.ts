/** The codec and the hashes against the golden vectors. Missing files fail; nothing is skipped. */

import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import { test } from "node:test";
import { type Direction, decode, encode, type Fields, Malformed } from "../src/core/codec.js";
import { type Reply, ReplyReader } from "../src/core/frames.js";
import { clientMac, clientNonce, parseGreeting, serverProof } from "../src/core/handshake.js";

const VECTORS = new URL("../../../../spec/vectors/", import.meta.url);
const META = new Set("id frame dir flags why wire error layer answer hash result".split(" "));
const WIDE = new Set("client_id request_id token acquire_id echo".split(" "));
const BYTES = new Set(
  "key keys label leader text mac proof client_nonce fingerprint secret greeting seed nonce magic".split(
    " ",
  ),
);

type Stanza = Record<string, string>;

function stanzas(name: string): Stanza[] {
  const [, ...parts] = readFileSync(new URL(name, VECTORS), "utf8").split("\n\n");
  return parts.map((part) => {
    const lines = part.replace(/\n+$/, "").split("\n");
    return Object.fromEntries(lines.map((line) => /^([^:]*): ?(.*)$/.exec(line)?.slice(1) ?? []));
  });
}

function hex(text: string): Buffer {
  return Buffer.from(text.replace(/^x:/, ""), "hex");
}

function fieldsOf(stanza: Stanza): Fields {
  const fields: Fields = {};
  for (const [name, text] of Object.entries(stanza)) {
    if (META.has(name)) continue;
    if (name === "keys") fields.keys = text.split(",").map(hex);
    else if (BYTES.has(name)) fields[name] = hex(text);
    else fields[name] = WIDE.has(name) ? BigInt(text) : Number(text);
  }
  return fields;
}

test("the files are there", () => {
  const names = readdirSync(VECTORS).filter((name) => /^v4-.*\.vec$/.test(name));
  const expected = "client client-malformed hashes preambles server server-malformed".split(" ");
  assert.deepEqual(names.sort(), expected.map((name) => `v4-${name}.vec`).sort());
});

for (const direction of ["client", "server"] satisfies Direction[]) {
  test(`REQ-FRAME-BYTES: each frame of a ${direction} encodes and decodes`, () => {
    const seen = stanzas(`v4-${direction}.vec`);
    assert.ok(seen.length > 100);
    for (const stanza of seen) {
      const [wire, fields] = [hex(stanza.wire), fieldsOf(stanza)];
      assert.deepEqual(decode(direction, wire), { name: stanza.frame, fields }, stanza.id);
      if (stanza.flags.split(" ").includes("tolerated")) continue;
      assert.deepEqual(encode(direction, stanza.frame, fields), wire, stanza.id);
    }
  });

  test(`REQ-FRAME-OP REQ-FRAME-LENGTH: what no correct ${direction} sends is refused`, () => {
    const seen = stanzas(`v4-${direction}-malformed.vec`);
    assert.ok(seen.length > 100);
    for (const stanza of seen) {
      assert.throws(
        () => decode(direction, hex(stanza.wire)),
        (error) => error instanceof Malformed && error.layer === stanza.layer,
        stanza.id,
      );
    }
  });
}

/** A reply's fields by the names of the spec, for the ops that the machine reads. */
function told(reply: Reply, names: string[]): Fields {
  const value = (name: string) => {
    if (name === "request_id" || name === "echo") return BigInt(reply.requestId);
    if (name === "token") return reply.token;
    if (name === "keepalive_s") return reply.keepaliveS;
    if (name === "fingerprint" || name === "proof") return reply[name];
    return name === "leader" || name === "text" ? reply.tail : reply.value;
  };
  return Object.fromEntries(names.map((name) => [name, value(name)]));
}

test("REQ-FRAME-SPLIT: the reader sees the same whole and byte by byte", () => {
  const seen = stanzas("v4-server.vec");
  const batch = Buffer.concat(seen.map(({ wire }) => hex(wire)));
  const whole: Reply[] = [];
  new ReplyReader().feed(batch, (reply) => whole.push(reply) > 0);
  assert.equal(whole.length, seen.length);
  for (const [at, stanza] of seen.entries()) {
    const fields = fieldsOf(stanza);
    for (const name of ["request_id", "echo"]) {
      // Ids past 2^53 lose bits in the reader, which no id of a client reaches.
      if (name in fields) fields[name] = BigInt(Number(fields[name]));
    }
    assert.deepEqual(told(whole[at], Object.keys(fields)), fields, stanza.id);
  }
  const single: Reply[] = [];
  const reader = new ReplyReader();
  for (const byte of batch) reader.feed(Buffer.of(byte), (reply) => single.push(reply) > 0);
  assert.deepEqual(single, whole);
  assert.equal(reader.bufferedBytes, 0);
});

test("REQ-FRAME-LENGTH: the reader refuses a header before its body", () => {
  const headers = stanzas("v4-server-malformed.vec").filter(({ layer }) => layer === "frame");
  assert.ok(headers.length > 0);
  for (const { wire, id } of headers) {
    const head = hex(wire).subarray(0, 3);
    assert.throws(() => new ReplyReader().feed(head, () => true), Malformed, id);
  }
});

test("greetings are read, spoilt ones refused", () => {
  const greetings = stanzas("v4-preambles.vec").filter(({ frame }) => frame === "greeting");
  assert.ok(greetings.length > 5);
  for (const stanza of greetings) {
    const wire = hex(stanza.wire);
    if ("error" in stanza) {
      assert.throws(() => parseGreeting(wire), Malformed, stanza.id);
      continue;
    }
    const { minVersion, maxVersion, mode, slot } = parseGreeting(wire);
    assert.deepEqual(
      [minVersion, maxVersion, mode, slot].map(String),
      [stanza.min_version, stanza.max_version, stanza.mode, stanza.slot],
      stanza.id,
    );
  }
});

test("REQ-HELLO-MAC REQ-CONN-PROOF REQ-BYTES-NONCE: hashes", () => {
  const seen = new Set<string>();
  for (const stanza of stanzas("v4-hashes.vec")) {
    // biome-ignore lint/suspicious/noExplicitAny: the spec says which types the fields have
    const f = fieldsOf(stanza) as any;
    const result = {
      client_mac: () =>
        clientMac(
          f.secret,
          f.greeting,
          f.version,
          f.client_id,
          f.connection,
          f.client_nonce,
          f.label,
        ),
      proof: () =>
        serverProof(
          f.secret,
          f.greeting,
          f.client_nonce,
          f.role,
          f.keepalive_s,
          f.fingerprint,
          f.leader,
        ),
      client_nonce: () => clientNonce(f.seed, f.connection),
    }[stanza.hash];
    if (result === undefined) continue; // A client only compares the fingerprint it is told.
    seen.add(stanza.hash);
    assert.deepEqual(result(), hex(stanza.result), stanza.id);
  }
  for (const hash of ["client_mac", "proof", "client_nonce"]) assert.ok(seen.has(hash), hash);
});
