/** What the machine sends and reads: one function per frame, without the codec's generality. */

import {
  HEADER_BYTES,
  OP_ACQUIRE,
  OP_ACQUIRE_SET,
  OP_CANCEL,
  OP_EXTEND,
  OP_PING,
  OP_RELEASE,
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
  SERVER_BODY_BYTES,
} from "../constants_gen.js";
import type { WireKey } from "./arguments.js";
import { Malformed } from "./codec.js";

// A frame is put together here and copied out once: no allocation but the frame itself.
const scratch = Buffer.alloc(4096);
const view = new DataView(scratch.buffer, scratch.byteOffset, scratch.byteLength);
const ID_AT = HEADER_BYTES;
const WORD_AT = ID_AT + 8;
const AFTER_WORD = WORD_AT + 8;

function begin(op: number, requestId: number): void {
  view.setUint8(0, op);
  view.setUint32(ID_AT, Math.floor(requestId / 2 ** 32));
  view.setUint32(ID_AT + 4, requestId >>> 0);
}

function finish(end: number): Buffer {
  view.setUint16(1, end - HEADER_BYTES);
  const frame = Buffer.allocUnsafe(end);
  scratch.copy(frame, 0, 0, end);
  return frame;
}

function finishWithKey(at: number, key: WireKey): Buffer {
  scratch.write(key, at, "latin1");
  return finish(at + key.length);
}

/** `A`: asks for one key. */
export function acquireFrame(
  requestId: number,
  waitMs: number,
  leaseMs: number,
  key: WireKey,
): Buffer {
  begin(OP_ACQUIRE, requestId);
  view.setUint32(WORD_AT, waitMs);
  view.setUint32(WORD_AT + 4, leaseMs);
  return finishWithKey(AFTER_WORD, key);
}

/** `S`: asks for several keys; they must be sorted and different. */
export function acquireSetFrame(
  requestId: number,
  waitMs: number,
  leaseMs: number,
  keys: readonly WireKey[],
): Buffer {
  begin(OP_ACQUIRE_SET, requestId);
  view.setUint32(WORD_AT, waitMs);
  view.setUint32(WORD_AT + 4, leaseMs);
  let at = AFTER_WORD;
  scratch[at++] = keys.length;
  for (const key of keys) {
    scratch[at++] = key.length;
    at += scratch.write(key, at, "latin1");
  }
  return finish(at);
}

/** `R`: ends a ticket. */
export function releaseFrame(requestId: number, token: bigint, key: WireKey): Buffer {
  begin(OP_RELEASE, requestId);
  view.setBigUint64(WORD_AT, token);
  return finishWithKey(AFTER_WORD, key);
}

/** `X`: makes a lease end later. */
export function extendFrame(
  requestId: number,
  token: bigint,
  leaseMs: number,
  key: WireKey,
): Buffer {
  begin(OP_EXTEND, requestId);
  view.setBigUint64(WORD_AT, token);
  view.setUint32(AFTER_WORD, leaseMs);
  return finishWithKey(AFTER_WORD + 4, key);
}

/** `C`: undoes an acquire. */
export function cancelFrame(requestId: number, acquireId: number, key: WireKey): Buffer {
  begin(OP_CANCEL, requestId);
  view.setBigUint64(WORD_AT, BigInt(acquireId));
  return finishWithKey(AFTER_WORD, key);
}

/** `P`: asks for a sign of life. */
export function pingFrame(echo: number): Buffer {
  begin(OP_PING, echo);
  return finish(WORD_AT);
}

const NO_BYTES = Buffer.alloc(0);

/** A server's frame as the machine reads it. What a frame does not have stays at its default. */
export class Reply {
  /** The request id, or the echo of a ping. Ids past 2^53 lose bits, and are never ours. */
  requestId = 0;
  token = 0n;
  /** waited_ms, lease_ms, reason, code, or of a welcome the role. */
  value = 0;
  keepaliveS = 0;
  fingerprint: Buffer = NO_BYTES;
  proof: Buffer = NO_BYTES;
  /** A leader's address, or an error's text. */
  tail: Buffer = NO_BYTES;

  constructor(readonly op: number) {}
}

/** Cuts a server's stream into replies; keeps at most one unfinished frame. */
export class ReplyReader {
  #rest: Buffer = NO_BYTES;

  /** Bytes of the frame that is not yet whole. */
  get bufferedBytes(): number {
    return this.#rest.length;
  }

  /**
   * Hand each whole frame in order to `take`, until that returns false.
   *
   * Throws Malformed at the first byte that breaks the rules; what came before it was handed on.
   */
  feed(data: Buffer, take: (reply: Reply) => boolean): void {
    const whole = this.#rest.length > 0 ? Buffer.concat([this.#rest, data]) : data;
    this.#rest = NO_BYTES;
    const bytes = new DataView(whole.buffer, whole.byteOffset, whole.byteLength);
    const end = whole.length;
    let at = 0;
    while (at < end) {
      const bounds = SERVER_BODY_BYTES.get(whole[at]);
      if (bounds === undefined) {
        throw new Malformed("frame", `op 0x${whole[at].toString(16).padStart(2, "0")} is unknown`);
      }
      if (end - at < HEADER_BYTES) break;
      const length = bytes.getUint16(at + 1);
      if (length < bounds[0] || length > bounds[1]) {
        throw new Malformed("frame", `a body of ${length} bytes is out of bounds`);
      }
      const next = at + HEADER_BYTES + length;
      if (next > end) break;
      if (!take(readBody(whole, bytes, at, next))) return;
      at = next;
    }
    // A copy, so that a few bytes do not keep a whole chunk of the socket's in memory.
    if (at < end) this.#rest = Buffer.from(whole.subarray(at));
  }
}

function readBody(whole: Buffer, bytes: DataView, start: number, end: number): Reply {
  const reply = new Reply(whole[start]);
  const at = start + HEADER_BYTES;
  switch (reply.op) {
    case REPLY_GRANTED:
      reply.requestId = readId(bytes, at);
      reply.token = bytes.getBigUint64(at + 8);
      reply.value = bytes.getUint32(at + 16);
      break;
    case REPLY_RELEASED:
    case REPLY_TIMED_OUT:
    case REPLY_OVERLOADED:
    case REPLY_NOT_HELD:
    case REPLY_CANCELLED:
    case REPLY_PING:
      reply.requestId = readId(bytes, at);
      break;
    case REPLY_EXTENDED:
      reply.requestId = readId(bytes, at);
      reply.value = bytes.getUint32(at + 8);
      break;
    case REPLY_DROPPED:
      reply.token = bytes.getBigUint64(at);
      reply.value = whole[at + 8];
      break;
    case REPLY_ERROR:
      reply.requestId = readId(bytes, at);
      reply.value = whole[at + 8];
      reply.tail = Buffer.from(whole.subarray(at + 9, end));
      break;
    case REPLY_LEADER:
      reply.tail = Buffer.from(whole.subarray(at, end));
      break;
    case REPLY_WELCOME:
      reply.value = whole[at];
      reply.keepaliveS = bytes.getUint16(at + 1);
      reply.fingerprint = Buffer.from(whole.subarray(at + 3, at + 35));
      reply.proof = Buffer.from(whole.subarray(at + 35, at + 67));
      reply.tail = Buffer.from(whole.subarray(at + 67, end));
      break;
  }
  return reply;
}

function readId(bytes: DataView, at: number): number {
  return bytes.getUint32(at) * 2 ** 32 + bytes.getUint32(at + 4);
}
