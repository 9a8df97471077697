/**
 * Frames to bytes and back, written by hand on the generated constants.
 *
 * Pure. Fields of eight bytes are bigints, other integers are numbers, everything else is bytes.
 */

import {
  CLIENT_BODY_BYTES,
  CLIENT_MAC_BYTES,
  CLIENT_NONCE_BYTES,
  DROP_LEASE_OVER,
  DROP_OTHER_CLIENT,
  ERRORS,
  FINGERPRINT_BYTES,
  HEADER_BYTES as HEADER,
  KEEPALIVE_S_MAX,
  KEEPALIVE_S_MIN,
  KEY_BYTES_MAX,
  KEY_BYTES_MIN,
  LEASE_MS_MAX,
  LEASE_MS_MIN,
  OP_ACQUIRE,
  OP_ACQUIRE_SET,
  OP_CANCEL,
  OP_EXTEND,
  OP_HELLO,
  OP_PING,
  OP_RELEASE,
  PROOF_BYTES,
  REPLY_CANCELLED,
  REPLY_DROPPED,
  REPLY_ERROR,
  REPLY_EXTENDED,
  REPLY_GRANTED,
  REPLY_LEADER,
  REPLY_NOT_HELD,
  REPLY_OVERLOADED,
  REPLY_PING,
  REPLY_RELEASED,
  REPLY_TIMED_OUT,
  REPLY_WELCOME,
  ROLE_UNKNOWN,
  SERVER_BODY_BYTES,
  SET_KEYS_MAX,
  SET_KEYS_MIN,
} from "../constants_gen.js";

export type Direction = "client" | "server";
export type FieldValue = number | bigint | Uint8Array | readonly Uint8Array[];
export type Fields = Record<string, FieldValue>;

/** Bytes that no correct peer sends. */
export class Malformed extends Error {
  constructor(
    readonly layer: "stream" | "frame" | "body" | "state",
    why: string,
  ) {
    super(why);
  }
}

/** One frame: its fixed fields with their sizes in bytes, then its tail. */
interface Layout {
  readonly name: string;
  readonly op: number;
  readonly fixed: readonly (readonly [name: string, bytes: number])[];
  readonly fixedBytes: number;
  readonly tail: string;
}

const FIELD_BYTES: Readonly<Record<string, number>> = {
  version: 1,
  client_id: 8,
  connection: 4,
  client_nonce: CLIENT_NONCE_BYTES,
  mac: CLIENT_MAC_BYTES,
  request_id: 8,
  wait_ms: 4,
  lease_ms: 4,
  token: 8,
  acquire_id: 8,
  echo: 8,
  role: 1,
  keepalive_s: 2,
  fingerprint: FINGERPRINT_BYTES,
  proof: PROOF_BYTES,
  waited_ms: 4,
  reason: 1,
  code: 1,
};

function layout(name: string, op: number, fields: string, tail = ""): Layout {
  const names = fields === "" ? [] : fields.split(" ");
  const fixed = names.map((field) => [field, FIELD_BYTES[field]] as const);
  const fixedBytes = fixed.reduce((sum, [, bytes]) => sum + bytes, 0);
  return { name, op, fixed, fixedBytes, tail };
}

const LAYOUTS: Readonly<Record<Direction, readonly Layout[]>> = {
  client: [
    layout("hello", OP_HELLO, "version client_id connection client_nonce mac", "label"),
    layout("acquire", OP_ACQUIRE, "request_id wait_ms lease_ms", "key"),
    layout("acquire_set", OP_ACQUIRE_SET, "request_id wait_ms lease_ms", "keys"),
    layout("release", OP_RELEASE, "request_id token", "key"),
    layout("extend", OP_EXTEND, "request_id token lease_ms", "key"),
    layout("cancel", OP_CANCEL, "request_id acquire_id", "key"),
    layout("ping", OP_PING, "echo"),
  ],
  server: [
    layout("welcome", REPLY_WELCOME, "role keepalive_s fingerprint proof", "leader"),
    layout("granted", REPLY_GRANTED, "request_id token waited_ms"),
    layout("timed_out", REPLY_TIMED_OUT, "request_id"),
    layout("overloaded", REPLY_OVERLOADED, "request_id"),
    layout("released", REPLY_RELEASED, "request_id"),
    layout("not_held", REPLY_NOT_HELD, "request_id"),
    layout("extended", REPLY_EXTENDED, "request_id lease_ms"),
    layout("cancelled", REPLY_CANCELLED, "request_id"),
    layout("dropped", REPLY_DROPPED, "token reason"),
    layout("leader", REPLY_LEADER, "", "leader"),
    layout("error", REPLY_ERROR, "request_id code", "text"),
    layout("ping", REPLY_PING, "echo"),
  ],
};
const BODY_BYTES = { client: CLIENT_BODY_BYTES, server: SERVER_BODY_BYTES };

/** The whole frame, header included. Throws Malformed for a value out of bounds. */
export function encode(direction: Direction, name: string, fields: Fields): Buffer {
  const found = LAYOUTS[direction].find((one) => one.name === name);
  if (found === undefined) throw new Malformed("frame", `a ${direction} sends no frame ${name}`);
  const wanted = found.fixed.map(([field]) => field).concat(found.tail === "" ? [] : [found.tail]);
  const given = Object.keys(fields);
  if (given.length !== wanted.length || !wanted.every((field) => given.includes(field))) {
    throw new Malformed("body", `${name} takes ${wanted.join(" ")}, not ${given.join(" ")}`);
  }
  const parts: Buffer[] = found.fixed.map(([field, bytes]) =>
    encodeFixed(field, bytes, fields[field]),
  );
  if (found.tail === "keys") parts.push(encodeKeys(fields.keys));
  else if (found.tail !== "") parts.push(asBytes(found.tail, fields[found.tail]));
  const body = Buffer.concat(parts);
  checkLength("body", direction, found.op, body.length);
  const frame = Buffer.concat([Buffer.of(found.op, body.length >> 8, body.length & 0xff), body]);
  decode(direction, frame);
  return frame;
}

function encodeFixed(field: string, size: number, value: FieldValue): Buffer {
  if (size > 8) {
    const bytes = asBytes(field, value);
    if (bytes.length !== size) throw new Malformed("body", `${field} takes ${size} bytes`);
    return bytes;
  }
  const isInteger =
    typeof value === "bigint" || (typeof value === "number" && Number.isSafeInteger(value));
  const integer = isInteger ? BigInt(value as number | bigint) : -1n;
  if (integer < 0n || integer >= 1n << BigInt(8 * size)) {
    throw new Malformed("body", `${field} takes an integer of ${size} bytes, not ${value}`);
  }
  const wide = Buffer.alloc(8);
  wide.writeBigUInt64BE(integer);
  return wide.subarray(8 - size);
}

function asBytes(field: string, value: FieldValue): Buffer {
  if (!(value instanceof Uint8Array)) throw new Malformed("body", `${field} takes bytes`);
  return Buffer.from(value);
}

function encodeKeys(keys: FieldValue): Buffer {
  if (!Array.isArray(keys)) throw new Malformed("body", "keys takes a list of bytes");
  const parts: Buffer[] = [Buffer.of(keys.length)];
  for (const key of keys) {
    const bytes = asBytes("keys", key);
    if (bytes.length > KEY_BYTES_MAX) throw new Malformed("body", "keys: a key is too long");
    parts.push(Buffer.of(bytes.length), bytes);
  }
  if (keys.length > SET_KEYS_MAX) throw new Malformed("body", `keys: ${keys.length} keys`);
  return Buffer.concat(parts);
}

/** Name and fields of one whole frame. Throws Malformed. */
export function decode(direction: Direction, data: Uint8Array): { name: string; fields: Fields } {
  const frame = Buffer.from(data);
  if (frame.length === 0) throw new Malformed("stream", "no bytes");
  const found = LAYOUTS[direction].find((one) => one.op === frame[0]);
  if (found === undefined) {
    throw new Malformed("frame", `a ${direction} sends no op 0x${frame[0].toString(16)}`);
  }
  if (frame.length < HEADER) throw new Malformed("stream", "the header is cut off");
  const length = frame.readUInt16BE(1);
  checkLength("frame", direction, found.op, length);
  if (frame.length !== HEADER + length) {
    throw new Malformed("stream", `the body has ${frame.length - HEADER} bytes, not ${length}`);
  }
  const fields: Fields = {};
  let at = HEADER;
  for (const [field, size] of found.fixed) {
    const bytes = frame.subarray(at, at + size);
    at += size;
    if (size > 8) fields[field] = bytes;
    else fields[field] = size === 8 ? bytes.readBigUInt64BE() : bytes.readUIntBE(0, size);
  }
  checkValues(direction, found.name, fields);
  const tail = frame.subarray(at);
  if (found.tail === "keys") fields.keys = decodeKeys(tail);
  else if (found.tail !== "") fields[found.tail] = tail;
  if (found.tail === "label" && !tail.every((byte) => byte >= 0x21 && byte <= 0x7e)) {
    throw new Malformed("body", "label has bytes other than printable ASCII without space");
  }
  return { name: found.name, fields };
}

function checkLength(
  layer: "frame" | "body",
  direction: Direction,
  op: number,
  length: number,
): void {
  const [low, high] = BODY_BYTES[direction].get(op) as readonly [number, number];
  if (length < low || length > high) {
    const name = String.fromCharCode(op);
    throw new Malformed(layer, `a body of ${length} bytes, where ${name} takes ${low} to ${high}`);
  }
}

function checkValues(direction: Direction, name: string, fields: Fields): void {
  if (direction === "client") {
    if ("lease_ms" in fields) checkBounds(fields, "lease_ms", LEASE_MS_MIN, LEASE_MS_MAX);
  } else if (name === "welcome") {
    checkBounds(fields, "role", 0, ROLE_UNKNOWN);
    checkBounds(fields, "keepalive_s", KEEPALIVE_S_MIN, KEEPALIVE_S_MAX);
  } else if (name === "dropped") {
    checkBounds(fields, "reason", DROP_LEASE_OVER, DROP_OTHER_CLIENT);
  } else if (name === "error" && !ERRORS.has(fields.code as number)) {
    throw new Malformed("body", `code ${fields.code} is unknown`);
  }
}

function checkBounds(fields: Fields, field: string, low: number, high: number): void {
  const value = fields[field] as number;
  if (value < low || value > high) {
    throw new Malformed("body", `${field} ${value} is not ${low} to ${high}`);
  }
}

function decodeKeys(tail: Buffer): Buffer[] {
  const count = tail[0];
  if (count < SET_KEYS_MIN || count > SET_KEYS_MAX) {
    throw new Malformed("body", `keys: ${count} keys are not ${SET_KEYS_MIN} to ${SET_KEYS_MAX}`);
  }
  const keys: Buffer[] = [];
  let at = 1;
  for (let left = count; left > 0; left -= 1) {
    if (at >= tail.length) throw new Malformed("body", "keys end early");
    const length = tail[at];
    const key = tail.subarray(at + 1, at + 1 + length);
    if (length < KEY_BYTES_MIN || length > KEY_BYTES_MAX || key.length < length) {
      throw new Malformed("body", `keys: a key of ${length} bytes`);
    }
    const last = keys.at(-1);
    if (last !== undefined && Buffer.compare(key, last) <= 0) {
      throw new Malformed("body", "keys are not strictly rising");
    }
    keys.push(key);
    at += 1 + length;
  }
  if (at !== tail.length) throw new Malformed("body", "keys do not fill the body");
  return keys;
}
