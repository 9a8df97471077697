/**
 * Checks of what callers give, before anything is sent: keys, durations, references, names.
 *
 * Each refusal says what was wrong, what was given and what is taken.
 */

import { inspect } from "node:util";
import {
  KEY_BYTES_MAX,
  LABEL_BYTES_MAX,
  LABEL_BYTES_MIN,
  SECRET_BYTES_MAX,
  SET_KEYS_MAX,
  WAIT_MS_FOREVER,
  WAIT_MS_MAX,
} from "../constants_gen.js";
import { InvalidArgumentError } from "../errors.js";
import type { Key } from "../events.js";

/** A `waitTimeoutMs` that never ends, where the client's own default is a shorter one. */
export const FOREVER = "forever";

/** Milliseconds, or `"forever"`. */
export type WaitTimeout = number | typeof FOREVER;

/**
 * A key as it is sent: one character per byte. Such strings compare as unsigned bytes do, are
 * usable as keys of a Map, and for ASCII text are the text itself.
 */
export type WireKey = string;

const NS_PER_MS = 1_000_000;

/** How a value that was given is shown in an error. */
export function shown(value: unknown): string {
  return inspect(value, { depth: 0, maxStringLength: 200, maxArrayLength: 10, breakLength: 200 });
}

/** The bytes of a key on the wire, prefix included. Throws InvalidArgumentError. */
export function wireKey(key: Key, prefix: WireKey = ""): WireKey {
  let bytes: WireKey;
  if (typeof key === "string") {
    bytes = key;
    if (Buffer.byteLength(key) !== key.length) {
      if (!key.isWellFormed()) {
        throw new InvalidArgumentError(
          `the key ${shown(key)} is not valid Unicode (a lone surrogate): give text, or bytes`,
        );
      }
      bytes = Buffer.from(key).toString("latin1");
    }
  } else if (key instanceof Uint8Array) {
    bytes = latin1(key);
  } else {
    throw new InvalidArgumentError(`a key is a string or a Uint8Array, not ${shown(key)}`);
  }
  if (bytes.length === 0) {
    throw new InvalidArgumentError(`the key is empty: it takes 1 to ${KEY_BYTES_MAX} bytes`);
  }
  if (prefix.length + bytes.length > KEY_BYTES_MAX) {
    const counted = prefix ? " with its prefix" : "";
    throw new InvalidArgumentError(
      `the key has ${prefix.length + bytes.length} bytes${counted}: it takes 1 to ${KEY_BYTES_MAX}`,
    );
  }
  return prefix + bytes;
}

/** Bytes as a string of one character per byte. */
export function latin1(bytes: Uint8Array): string {
  return Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength).toString("latin1");
}

/** A key and what its program calls it. */
export interface NamedKey {
  readonly wire: WireKey;
  readonly shown: Key;
}

/** A key that was given, in a form that the program can't change any more. */
export function namedKey(key: Key, prefix: WireKey): NamedKey {
  const wire = wireKey(key, prefix);
  return { wire, shown: typeof key === "string" ? key : Uint8Array.from(key) };
}

/** The different keys of a set, sorted by unsigned bytes. */
export function namedSet(keys: Iterable<Key>, prefix: WireKey): NamedKey[] {
  const isSeveral =
    typeof keys === "object" &&
    keys !== null &&
    !(keys instanceof Uint8Array) &&
    Symbol.iterator in keys;
  if (!isSeveral) {
    throw new InvalidArgumentError(`a set takes several keys, as in an array, not ${shown(keys)}`);
  }
  const byWire = new Map<WireKey, NamedKey>();
  for (const key of keys) {
    const named = namedKey(key, prefix);
    if (!byWire.has(named.wire)) byWire.set(named.wire, named);
  }
  if (byWire.size < 1 || byWire.size > SET_KEYS_MAX) {
    throw new InvalidArgumentError(
      `the set has ${byWire.size} different keys: it takes 1 to ${SET_KEYS_MAX}`,
    );
  }
  return [...byWire.values()].sort((one, other) => (one.wire < other.wire ? -1 : 1));
}

/** The bytes of a key prefix; empty is none. */
export function wirePrefix(prefix: Key): WireKey {
  if (prefix === "" || (prefix instanceof Uint8Array && prefix.length === 0)) return "";
  let bytes: WireKey;
  try {
    bytes = wireKey(prefix);
  } catch (error) {
    throw new InvalidArgumentError(`keyPrefix: ${(error as Error).message}`);
  }
  if (bytes.length >= KEY_BYTES_MAX) {
    throw new InvalidArgumentError(
      `keyPrefix has ${bytes.length} bytes: it takes up to ${KEY_BYTES_MAX - 1},` +
        " so that a key fits behind it",
    );
  }
  return bytes;
}

/** A duration in whole milliseconds: rounded to the nearest nanosecond, then up. */
export function durationMs(name: string, value: number): number {
  if (typeof value !== "number" || !Number.isFinite(value)) {
    throw new InvalidArgumentError(
      `${name} is ${shown(value)}: it takes a finite number of milliseconds`,
    );
  }
  if (value < 0) {
    throw new InvalidArgumentError(`${name} is ${shown(value)}: it takes nothing negative`);
  }
  const wholeMs = Math.ceil(Math.round(value * NS_PER_MS) / NS_PER_MS);
  if (wholeMs > WAIT_MS_MAX) {
    throw new InvalidArgumentError(
      `${name} is ${shown(value)}: it takes up to ${WAIT_MS_MAX} milliseconds`,
    );
  }
  return wholeMs;
}

/** Milliseconds of a lease; throws InvalidArgumentError. */
export function leaseMs(value: number): number {
  const wholeMs = durationMs("leaseMs", value);
  if (wholeMs === 0) {
    throw new InvalidArgumentError(`leaseMs is ${shown(value)}: it takes at least a millisecond`);
  }
  return wholeMs;
}

/** Milliseconds of a wait as it is sent; 0 is a try. Throws InvalidArgumentError. */
export function waitMs(value: WaitTimeout): number {
  return value === FOREVER ? WAIT_MS_FOREVER : durationMs("waitTimeoutMs", value);
}

/** A flag; throws InvalidArgumentError for anything else. */
export function checkFlag(name: string, value: boolean | undefined): boolean | undefined {
  if (value !== undefined && typeof value !== "boolean") {
    throw new InvalidArgumentError(`${name} is ${shown(value)}: it takes true or false`);
  }
  return value;
}

/** What handOver returns: the token, then the first key as sent. */
export function formatReference(token: bigint, key: WireKey): string {
  const escaped = key.replace(
    /[^A-Za-z0-9\-._~]/gs,
    (char) => `%${char.charCodeAt(0).toString(16).toUpperCase().padStart(2, "0")}`,
  );
  return `${token}:${escaped}`;
}

/** Token and key of a reference; throws InvalidArgumentError. */
export function parseReference(reference: string): { token: bigint; key: WireKey } {
  const form = /^([0-9]{1,20}):((?:[A-Za-z0-9\-._~]|%[0-9A-Fa-f]{2})+)$/;
  const parts = typeof reference === "string" ? form.exec(reference) : null;
  if (parts !== null && !reference.endsWith("\n")) {
    const token = BigInt(parts[1]);
    const key = parts[2].replace(/%(..)/g, (_, hex) =>
      String.fromCharCode(Number.parseInt(hex, 16)),
    );
    if (token >= 1n && token < 1n << 64n && key.length <= KEY_BYTES_MAX) return { token, key };
  }
  throw new InvalidArgumentError(
    `the reference ${shown(reference)} is not one that handOver returned: <token>:<key>`,
  );
}

/** A key that came as bytes, as text where it is text. */
export function shownKey(key: WireKey): Key {
  const bytes = Buffer.from(key, "latin1");
  try {
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes);
  } catch {
    return Uint8Array.from(bytes);
  }
}

/** The label of a client: its name, cleaned and cut to fit, then language and version. */
export function makeLabel(name: string, version: string): Uint8Array {
  if (typeof name !== "string") {
    throw new InvalidArgumentError(`name is ${shown(name)}: it takes text`);
  }
  const tail = `;javascript/${version}`;
  const clean = Array.from(name, (char) => (/^[\x21-\x7e]$/.test(char) ? char : "_")).join("");
  return Buffer.from(clean.slice(0, LABEL_BYTES_MAX - tail.length) + tail, "latin1");
}

/** A label that is given whole, for tests. */
export function checkLabel(label: string | Uint8Array): Uint8Array {
  const bytes = typeof label === "string" ? Buffer.from(label) : label;
  const fits =
    bytes instanceof Uint8Array &&
    bytes.length >= LABEL_BYTES_MIN &&
    bytes.length <= LABEL_BYTES_MAX &&
    bytes.every((byte) => byte >= 0x21 && byte <= 0x7e);
  if (!fits) {
    throw new InvalidArgumentError(
      `label is ${shown(label)}: it takes ${LABEL_BYTES_MIN} to ${LABEL_BYTES_MAX}` +
        " bytes of printable ASCII without space",
    );
  }
  return Uint8Array.from(bytes);
}

/** The bytes of a secret. The text of an error never shows it. */
export function checkSecret(secret: string | Uint8Array): Uint8Array {
  if (typeof secret === "string" && !secret.isWellFormed()) {
    throw new InvalidArgumentError("the secret is not valid Unicode");
  }
  const bytes = typeof secret === "string" ? Buffer.from(secret) : secret;
  if (!(bytes instanceof Uint8Array)) {
    throw new InvalidArgumentError(`the secret is a string or a Uint8Array, not ${typeof secret}`);
  }
  if (bytes.length > SECRET_BYTES_MAX) {
    throw new InvalidArgumentError(
      `the secret has ${bytes.length} bytes: it takes up to ${SECRET_BYTES_MAX}`,
    );
  }
  if (bytes.some((byte) => byte === 0 || byte === 10 || byte === 13)) {
    throw new InvalidArgumentError("the secret has a NUL or a line end in it");
  }
  return Uint8Array.from(bytes);
}

/** Text from elsewhere, with anything but printable ASCII as `?`. */
export function sanitised(text: Uint8Array | string): string {
  const characters = typeof text === "string" ? text : latin1(text);
  return characters.replace(/[^\x20-\x7e]/gu, "?");
}
