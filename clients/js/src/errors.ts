/**
 * The errors of the client: one tree, with a `kind` that is the same in every language.
 *
 * Everything that the client throws on purpose is a `TicketingError`; a cancelled call rejects with
 * the reason of its AbortSignal. Recognise errors by class, `code` or `kind`, never by their text.
 */

/** Why a ticket ended without its holder's release. */
export type LostReason =
  /** The server says that the lease ended. */
  | "lease_over"
  /** An operator released it. */
  | "operator"
  /** Another client released it with its token. */
  | "other_client"
  /** The server, asked about the ticket, does not know it any more. */
  | "not_held"
  /** `expiresAtMs` passed without a word from the server. */
  | "expired"
  /** A newer client with the same client id took over. */
  | "taken_over";

/** The kind of an error: one word, the same in all languages. */
export type ErrorKind =
  | "timeout"
  | "held"
  | "auth"
  | "invalid_argument"
  | "overloaded"
  | "not_held"
  | "lost"
  | "closed"
  | "protocol"
  | "connection";

/** Base of all errors of this client. */
export abstract class TicketingError extends Error {
  /** One word, the same in all languages. */
  abstract readonly kind: ErrorKind;

  /** The kind as Node's errors have it: `TICKETING_LOST` for `lost`. */
  get code(): `TICKETING_${Uppercase<ErrorKind>}` {
    return `TICKETING_${this.kind.toUpperCase() as Uppercase<ErrorKind>}`;
  }

  override get name(): string {
    return this.constructor.name;
  }
}

/** The wait for a key ended before it was granted; nothing is held. */
export class WaitTimeoutError extends TicketingError {
  readonly kind: ErrorKind = "timeout";
}

/** An acquire that does not wait (`waitTimeoutMs: 0`) found the key held. */
export class HeldError extends WaitTimeoutError {
  override readonly kind = "held";
}

/** Client and server do not have the same secret, or the secret may not do this. */
export class AuthError extends TicketingError {
  readonly kind = "auth";
}

/** An argument that the client, or the server (a lease over its limit), does not take. */
export class InvalidArgumentError extends TicketingError {
  readonly kind = "invalid_argument";
}

/** A limit of the server is reached; nothing was queued. Try again later. */
export class OverloadedError extends TicketingError {
  readonly kind = "overloaded";
}

/** The ticket is not this client's to use: never held, released already, or handed over. */
export class NotHeldError extends TicketingError {
  readonly kind = "not_held";
}

/** A ticket ended without its holder's release; somebody else may hold the key. */
export class LostError extends TicketingError {
  readonly kind = "lost";

  /** `reason` says how the client learned of it. */
  constructor(
    text: string,
    readonly reason: LostReason = "expired",
  ) {
    super(text);
  }
}

/** The client is closed, or the ticket's client is. */
export class ClosedError extends TicketingError {
  readonly kind = "closed";
}

/** The server says that the client broke the protocol. A bug in one of the two. */
export class ProtocolError extends TicketingError {
  readonly kind = "protocol";
}

/** No server could be reached; the text names each endpoint with its error. */
export class ConnectionFailedError extends TicketingError {
  readonly kind = "connection";
}

/** A try, extend or ping had no answer within `replyTimeoutMs`. */
export class ReplyTimeoutError extends ConnectionFailedError {}
