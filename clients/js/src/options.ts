/** Options as programs give them, checked and completed from the environment. */

import { randomBytes } from "node:crypto";
import { readFileSync } from "node:fs";
import { hostname } from "node:os";
import { createSecureContext, type SecureContext } from "node:tls";
import { CLIENT_REPLY_TIMEOUT_MS, FINGERPRINT_BYTES } from "./constants_gen.js";
import * as args from "./core/arguments.js";
import type { LogLevel } from "./core/effects.js";
import type { CoreSettings } from "./core/settings.js";
import { DEFAULT_TARGET, parseUrl, type Target } from "./core/urls.js";
import { InvalidArgumentError } from "./errors.js";
import type { Key, TicketingEvent } from "./events.js";

/** The version of this package. */
export const VERSION = "0.1.0";

/** Where log lines go; `console` is one. */
export type Logger = Readonly<Record<LogLevel, (text: string) => void>>;

/** Files for TLS. TLS 1.2 is the oldest version that is spoken. */
export interface TlsOptions {
  /** PEM file of the authorities to trust instead of Node's. */
  readonly caFile?: string | undefined;
  /** PEM files of what this client shows of itself (mutual TLS). */
  readonly certFile?: string | undefined;
  readonly keyFile?: string | undefined;
  /** Opens `keyFile`. */
  readonly keyPassword?: string | undefined;
  /** The name that the server's certificate must have, where it is not the URL's. */
  readonly serverName?: string | undefined;
  /** A context made with `tls.createSecureContext`, instead of the files. */
  readonly secureContext?: SecureContext | undefined;
}

/** What `connect` takes. Durations are milliseconds. */
export interface ClientOptions {
  /**
   * `ticketing://host:port,host:port`, `ticketings://…` (TLS) or `ticketing+unix:///path`; else
   * TICKETING_URL, else `ticketing://127.0.0.1:5225`.
   */
  readonly url?: string | undefined;
  /** What clients and server share; else TICKETING_SECRET, else empty. */
  readonly secret?: string | Uint8Array | undefined;
  /** What the server's logs call this client; else TICKETING_NAME, else `host:pid`. */
  readonly name?: string | undefined;
  /** Goes before every key on the wire; `ticket.key` shows the key without it. */
  readonly keyPrefix?: Key | undefined;
  /** Default of every acquire, as are the next two. */
  readonly leaseMs?: number | undefined;
  readonly waitTimeoutMs?: args.WaitTimeout | undefined;
  readonly autoExtend?: boolean | undefined;
  /** For a `ticketings://` URL. */
  readonly tls?: TlsOptions | undefined;
  /** Of the cluster that this client must be talking to: 32 bytes or 64 hexadecimal digits. */
  readonly fingerprint?: string | Uint8Array | undefined;
  /** How long to keep trying to open; 0, the default, tries each endpoint once. */
  readonly connectForMs?: number | undefined;
  /** After which a try, an extend or a ping without an answer fails; 10,000 by default. */
  readonly replyTimeoutMs?: number | undefined;
  /** Whether `close` cancels and releases; true by default. */
  readonly releaseOnClose?: boolean | undefined;
  /** Called with each event. Must not block; what it throws is logged and goes no further. */
  readonly onEvent?: ((event: TicketingEvent) => void) | undefined;
  /** Instead of `process.emitWarning` for warnings and `NODE_DEBUG=ticketing` for the rest. */
  readonly logger?: Logger | undefined;
  /** For tests that need the same bytes in every run; random otherwise. */
  readonly clientId?: bigint | undefined;
  /** 16 bytes, likewise. */
  readonly seed?: Uint8Array | undefined;
  /** The whole label of the hello, likewise. */
  readonly label?: string | Uint8Array | undefined;
}

const NAMES = new Set<string>(
  (
    "url secret name keyPrefix leaseMs waitTimeoutMs autoExtend tls fingerprint connectForMs" +
    " replyTimeoutMs releaseOnClose onEvent logger clientId seed label"
  ).split(" "),
);
const TLS_NAMES = new Set(
  "caFile certFile keyFile keyPassword serverName secureContext".split(" "),
);

/** How connections are made. */
export interface Transport {
  readonly secureContext: SecureContext | undefined;
  readonly serverName: string | undefined;
}

/** Refuse options that nobody reads: a misspelt lease would be the default one. */
export function checkNames(what: string, options: object, known: ReadonlySet<string>): void {
  if (typeof options !== "object" || options === null) {
    throw new InvalidArgumentError(`${what} are ${args.shown(options)}: they are an object`);
  }
  for (const name of Object.keys(options)) {
    if (!known.has(name)) {
      const names = [...known].join(", ");
      throw new InvalidArgumentError(`${what} have no ${args.shown(name)}: they take ${names}`);
    }
  }
}

/** Checked settings with their own identity; throws InvalidArgumentError naming the option. */
export function coreSettings(options: ClientOptions, target: Target): CoreSettings {
  const replyTimeoutMs = options.replyTimeoutMs ?? CLIENT_REPLY_TIMEOUT_MS;
  const wholeReplyMs = args.durationMs("replyTimeoutMs", replyTimeoutMs);
  if (wholeReplyMs === 0) throw new InvalidArgumentError("replyTimeoutMs is 0: it takes more");
  if (options.onEvent !== undefined && typeof options.onEvent !== "function") {
    throw new InvalidArgumentError(`onEvent is ${args.shown(options.onEvent)}: it is a function`);
  }
  for (const level of ["debug", "info", "warn"] as const) {
    if (options.logger !== undefined && typeof options.logger?.[level] !== "function") {
      throw new InvalidArgumentError(`logger has no function ${level}, as console has it`);
    }
  }
  return {
    endpoints: target.endpoints,
    clientId: clientIdOf(options.clientId),
    seed: seedOf(options.seed),
    label: labelOf(options),
    secret: args.checkSecret(options.secret ?? process.env.TICKETING_SECRET ?? ""),
    fingerprint: fingerprintOf(options.fingerprint),
    keyPrefix: args.wirePrefix(options.keyPrefix ?? ""),
    leaseMs: options.leaseMs === undefined ? undefined : args.leaseMs(options.leaseMs),
    waitMs: args.waitMs(options.waitTimeoutMs ?? args.FOREVER),
    autoExtend: args.checkFlag("autoExtend", options.autoExtend),
    connectForMs: args.durationMs("connectForMs", options.connectForMs ?? 0),
    replyTimeoutMs: wholeReplyMs,
    releaseOnClose: args.checkFlag("releaseOnClose", options.releaseOnClose) ?? true,
    observed: options.onEvent !== undefined,
  };
}

/** Where to connect: the URL given, else TICKETING_URL, else the default. */
export function targetOf(options: ClientOptions): Target {
  checkNames("options of connect", options, NAMES);
  const url = options.url ?? (process.env.TICKETING_URL || undefined);
  return url === undefined ? DEFAULT_TARGET : parseUrl(url);
}

/** How to connect there. Throws InvalidArgumentError naming the file that can't be used. */
export function transportOf(target: Target, tls: TlsOptions | undefined): Transport {
  if (!target.tls) {
    if (tls !== undefined) {
      throw new InvalidArgumentError("tls was given, but the URL does not say ticketings://");
    }
    return { secureContext: undefined, serverName: undefined };
  }
  checkNames("options in tls", tls ?? {}, TLS_NAMES);
  const { secureContext, ...texts } = tls ?? {};
  for (const [name, value] of Object.entries(texts)) {
    if (value !== undefined && (typeof value !== "string" || value === "")) {
      throw new InvalidArgumentError(`tls: ${name} is ${args.shown(value)}: it takes text`);
    }
  }
  const { keyPassword, serverName, ...files } = texts;
  if (secureContext !== undefined) return { secureContext, serverName };
  if (files.keyFile !== undefined && files.certFile === undefined) {
    throw new InvalidArgumentError("tls: keyFile needs a certFile");
  }
  try {
    const context = createSecureContext({
      ca: fileContent("caFile", files.caFile),
      cert: fileContent("certFile", files.certFile),
      key: fileContent("keyFile", files.keyFile ?? files.certFile),
      passphrase: keyPassword,
      minVersion: "TLSv1.2",
    });
    return { secureContext: context, serverName };
  } catch (error) {
    if (error instanceof InvalidArgumentError) throw error;
    const { caFile, certFile, keyFile } = files;
    const names = Object.entries({ caFile, certFile, keyFile }).filter(([, path]) => path);
    const given = names.map(([name, path]) => `${name} ${args.shown(path)}`).join(", ");
    throw new InvalidArgumentError(`tls: ${given}: ${(error as Error).message}`);
  }
}

function fileContent(option: string, path: string | undefined): Buffer | undefined {
  if (path === undefined) return undefined;
  try {
    return readFileSync(path);
  } catch (error) {
    const text = `tls: ${option} ${args.shown(path)} can't be read: ${(error as Error).message}`;
    throw new InvalidArgumentError(text);
  }
}

function clientIdOf(clientId: bigint | undefined): bigint {
  if (clientId === undefined) return randomBytes(8).readBigUInt64BE();
  if (typeof clientId !== "bigint" || clientId < 0n || clientId >= 1n << 64n) {
    throw new InvalidArgumentError(`clientId is ${args.shown(clientId)}: a bigint below 2n ** 64n`);
  }
  return clientId;
}

function seedOf(seed: Uint8Array | undefined): Uint8Array {
  if (seed === undefined) return randomBytes(16);
  if (!(seed instanceof Uint8Array) || seed.length !== 16) {
    throw new InvalidArgumentError("seed takes 16 bytes");
  }
  return Uint8Array.from(seed);
}

function labelOf(options: ClientOptions): Uint8Array {
  if (options.label !== undefined) return args.checkLabel(options.label);
  const name = options.name ?? (process.env.TICKETING_NAME || undefined);
  return args.makeLabel(name ?? `${hostname()}:${process.pid}`, VERSION);
}

function fingerprintOf(pinned: string | Uint8Array | undefined): Uint8Array | undefined {
  if (pinned === undefined) return undefined;
  const isHex = typeof pinned === "string" && /^[0-9a-f]{64}$/i.test(pinned);
  const bytes = isHex ? Buffer.from(pinned, "hex") : pinned;
  if (!(bytes instanceof Uint8Array) || bytes.length !== FINGERPRINT_BYTES) {
    throw new InvalidArgumentError("fingerprint takes 32 bytes, or 64 hexadecimal digits");
  }
  return Uint8Array.from(bytes);
}
