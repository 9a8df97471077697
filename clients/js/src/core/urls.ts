/** Endpoints, and the URLs that name them. */

import { isIPv6 } from "node:net";
import { DEFAULT_PORT } from "../constants_gen.js";
import { InvalidArgumentError } from "../errors.js";

const FORMS =
  "ticketing://host:port, ticketing://host:port,host:port, ticketings://host:port (TLS)" +
  " or ticketing+unix:///path";

/** Where a server listens: a host and port, or the path of a Unix socket. */
export class Endpoint {
  private constructor(
    readonly host: string,
    readonly port: number,
    readonly path: string,
  ) {}

  static tcp(host: string, port: number): Endpoint {
    return new Endpoint(host, port, "");
  }

  static unix(path: string): Endpoint {
    return new Endpoint("", 0, path);
  }

  /** Unique for an endpoint, so that endpoints are compared by it. */
  toString(): string {
    if (this.path) return `unix:${this.path}`;
    return this.host.includes(":") ? `[${this.host}]:${this.port}` : `${this.host}:${this.port}`;
  }

  equals(other: Endpoint | undefined): boolean {
    return other !== undefined && this.toString() === other.toString();
  }
}

/** What a URL says: the endpoints in order, and whether TLS is spoken. */
export interface Target {
  readonly endpoints: readonly Endpoint[];
  readonly tls: boolean;
}

export const DEFAULT_TARGET: Target = {
  endpoints: [Endpoint.tcp("127.0.0.1", DEFAULT_PORT)],
  tls: false,
};

/** Read a URL; throws InvalidArgumentError, which never repeats what may be a password. */
export function parseUrl(url: string): Target {
  if (typeof url !== "string") {
    throw new InvalidArgumentError(`the URL is ${typeof url}: it takes text, as in ${FORMS}`);
  }
  const parts = /^([a-z+]+):\/\/(.*)$/is.exec(url);
  const scheme = parts?.[1].toLowerCase();
  if (parts === null || !["ticketing", "ticketings", "ticketing+unix"].includes(scheme ?? "")) {
    const shown = url.includes("@") ? "given" : JSON.stringify(url);
    throw new InvalidArgumentError(`the URL ${shown} is none of ${FORMS}`);
  }
  let rest = parts[2];
  if (scheme === "ticketing+unix") return { endpoints: [unixEndpoint(url, rest)], tls: false };
  if (rest.includes("@")) {
    throw new InvalidArgumentError(
      "the URL has a user or a password in it: give the secret as option `secret`" +
        " or in TICKETING_SECRET",
    );
  }
  if (rest.endsWith("/")) rest = rest.slice(0, -1);
  if (/[/?#]/.test(rest)) {
    throw new InvalidArgumentError(
      `the URL ${JSON.stringify(url)} has a path or a query: it takes ${FORMS}`,
    );
  }
  const endpoints = new Map<string, Endpoint>();
  for (const part of rest.split(",")) {
    const endpoint = parseAddress(part, DEFAULT_PORT);
    if (endpoint === undefined) {
      throw new InvalidArgumentError(
        `the URL ${JSON.stringify(url)} has ${JSON.stringify(part)}, which is no host:port` +
          " with a port of 1 to 65535 (IPv6 in brackets)",
      );
    }
    if (!endpoints.has(`${endpoint}`)) endpoints.set(`${endpoint}`, endpoint);
  }
  return { endpoints: [...endpoints.values()], tls: scheme === "ticketings" };
}

function unixEndpoint(url: string, rest: string): Endpoint {
  let path = "";
  try {
    path = decodeURIComponent(rest);
  } catch {
    // The path stays empty and is refused below.
  }
  if (!path.startsWith("/") || path === "/" || path.includes("\0")) {
    throw new InvalidArgumentError(
      `the URL ${JSON.stringify(url)} names no absolute path: ticketing+unix:///path`,
    );
  }
  return Endpoint.unix(path);
}

/** Read `host:port` or `[v6]:port`; undefined where it is neither. */
export function parseAddress(text: string, defaultPort?: number): Endpoint | undefined {
  const parts = /^(?:\[([^\]]*)\]|([A-Za-z0-9._-]+))(?::(.*))?$/s.exec(text);
  if (parts === null) return undefined;
  const [, bracketed, name, portText] = parts;
  if (bracketed !== undefined && !isIPv6(bracketed)) return undefined;
  const host = bracketed ?? name;
  if (portText === undefined) {
    return defaultPort === undefined ? undefined : Endpoint.tcp(host, defaultPort);
  }
  const port = /^[0-9]{1,5}$/.test(portText) ? Number(portText) : 0;
  return port >= 1 && port <= 65535 ? Endpoint.tcp(host, port) : undefined;
}
