/** Sockets: how they are opened, and what to tell people when one fails. */

import * as net from "node:net";
import * as tls from "node:tls";
import type { Endpoint } from "./core/urls.js";
import type { Transport } from "./options.js";

/** Begin to connect; names are resolved anew, and all their addresses tried. */
export function openSocket(endpoint: Endpoint, transport: Transport): net.Socket {
  if (endpoint.path) return net.connect({ path: endpoint.path });
  const { host, port } = endpoint;
  const address = { host, port, noDelay: true, autoSelectFamily: true };
  const { secureContext, serverName } = transport;
  if (secureContext === undefined) return net.connect(address);
  const name = serverName ?? host;
  const options: tls.ConnectionOptions & typeof address = {
    ...address,
    secureContext,
    minVersion: "TLSv1.2",
    rejectUnauthorized: true,
    checkServerIdentity: (_host, certificate) => tls.checkServerIdentity(name, certificate),
  };
  if (net.isIP(name) === 0) options.servername = name; // An address is no server name in TLS.
  const socket = tls.connect(options);
  socket.setNoDelay(true);
  return socket;
}

/** What went wrong, and where it helps what to do, in words for people. */
export function why(error: Error, host: string): string {
  const { code } = error as NodeJS.ErrnoException;
  if (error instanceof AggregateError && error.errors.length > 0) {
    return [...new Set(error.errors.map((one: Error) => why(one, host)))].join(", ");
  }
  if (code === "ENOTFOUND" || code === "EAI_AGAIN") {
    return `the name '${host}' does not resolve (${code}); check the URL`;
  }
  if (code === "ECONNREFUSED") return "connection refused (is a server running there?)";
  if (code === "ENOENT") return "no such socket (is a server running there?)";
  if (code === "ERR_TLS_CERT_ALTNAME_INVALID") {
    return `the server's certificate is not trusted: ${error.message} (see tls.serverName)`;
  }
  if (code !== undefined && /CERT|ISSUER|LEAF|CRL/.test(code) && !code.startsWith("ERR_SSL")) {
    return (
      `the server's certificate is not trusted: ${error.message}` +
      " (name its authority in tls.caFile)"
    );
  }
  if (code?.startsWith("ERR_SSL") || code === "EPROTO") {
    return `TLS failed: ${error.message} (is the port one for TLS?)`;
  }
  return error.message || code || error.name;
}
