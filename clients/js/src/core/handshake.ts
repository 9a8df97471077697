/** Greeting, nonce, mac and proof: how client and server prove that they share a secret. */

import { createHash, createHmac, timingSafeEqual } from "node:crypto";
import {
  CLIENT_NONCE_BYTES,
  GREETING_BYTES,
  GREETING_MAGIC,
  HEADER_BYTES,
  MAC_CONTEXT_CLIENT,
  MAC_CONTEXT_SERVER,
  MODE_CLUSTER,
  MODE_STANDALONE,
  NONCE_CONTEXT,
  OP_HELLO,
  PROTOCOL_VERSION,
} from "../constants_gen.js";
import { Malformed } from "./codec.js";

/** The 26 bytes that a server speaks first. */
export interface Greeting {
  readonly raw: Uint8Array;
  readonly minVersion: number;
  readonly maxVersion: number;
  readonly mode: number;
  readonly slot: number;
}

/** Whether this client and the server have a version in common. */
export function speaksOurVersion(greeting: Greeting): boolean {
  return greeting.minVersion <= PROTOCOL_VERSION && PROTOCOL_VERSION <= greeting.maxVersion;
}

/** Read a whole greeting; throws Malformed. The mode matters only at a common version. */
export function parseGreeting(raw: Uint8Array): Greeting {
  if (raw.length !== GREETING_BYTES || !looksLikeGreeting(raw)) {
    throw new Malformed("stream", "no greeting of a ticketing server");
  }
  const [minVersion, maxVersion, mode, slot] = raw.subarray(GREETING_MAGIC.length);
  const greeting = { raw, minVersion, maxVersion, mode, slot };
  if (speaksOurVersion(greeting) && mode !== MODE_STANDALONE && mode !== MODE_CLUSTER) {
    throw new Malformed("body", `mode ${mode} is unknown`);
  }
  return greeting;
}

/** Whether these first bytes may still become a greeting. */
export function looksLikeGreeting(data: Uint8Array): boolean {
  return data.subarray(0, GREETING_MAGIC.length).every((byte, at) => byte === GREETING_MAGIC[at]);
}

/** The nonce of the client's n-th hello: derived, so that one seed gives one byte stream. */
export function clientNonce(seed: Uint8Array, connection: number): Buffer {
  const counter = Buffer.alloc(8);
  counter.writeBigUInt64BE(BigInt(connection));
  const hash = createHash("sha256").update(NONCE_CONTEXT).update(seed).update(counter);
  return hash.digest().subarray(0, CLIENT_NONCE_BYTES);
}

/** What the client tells of itself: version, client id, connection, nonce. */
function identity(
  version: number,
  clientId: bigint,
  connection: number,
  nonce: Uint8Array,
): Buffer {
  const head = Buffer.alloc(13);
  head.writeUInt8(version, 0);
  head.writeBigUInt64BE(clientId, 1);
  head.writeUInt32BE(connection, 9);
  return Buffer.concat([head, nonce]);
}

/** What a hello proves itself with. */
export function clientMac(
  secret: Uint8Array,
  greeting: Uint8Array,
  version: number,
  clientId: bigint,
  connection: number,
  nonce: Uint8Array,
  label: Uint8Array,
): Buffer {
  const mac = createHmac("sha256", secret).update(MAC_CONTEXT_CLIENT).update(greeting);
  return mac
    .update(identity(version, clientId, connection, nonce))
    .update(label)
    .digest();
}

/** What a welcome proves itself with. */
export function serverProof(
  secret: Uint8Array,
  greeting: Uint8Array,
  nonce: Uint8Array,
  role: number,
  keepaliveS: number,
  fingerprint: Uint8Array,
  leader: Uint8Array,
): Buffer {
  const told = Buffer.alloc(3);
  told.writeUInt8(role, 0);
  told.writeUInt16BE(keepaliveS, 1);
  const mac = createHmac("sha256", secret).update(MAC_CONTEXT_SERVER).update(greeting);
  return mac.update(nonce).update(told).update(fingerprint).update(leader).digest();
}

/** Compare in constant time. */
export function sameProof(one: Uint8Array, other: Uint8Array): boolean {
  return one.length === other.length && timingSafeEqual(one, other);
}

/** The whole hello, mac included. */
export function helloFrame(
  secret: Uint8Array,
  greeting: Uint8Array,
  clientId: bigint,
  connection: number,
  nonce: Uint8Array,
  label: Uint8Array,
): Buffer {
  const who = identity(PROTOCOL_VERSION, clientId, connection, nonce);
  const mac = clientMac(secret, greeting, PROTOCOL_VERSION, clientId, connection, nonce, label);
  const body = Buffer.concat([who, mac, label]);
  const header = Buffer.alloc(HEADER_BYTES);
  header.writeUInt8(OP_HELLO, 0);
  header.writeUInt16BE(body.length, 1);
  return Buffer.concat([header, body]);
}
