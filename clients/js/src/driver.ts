/**
 * Runs one core on the event loop: the only place of the client that touches sockets and timers.
 *
 * One write per turn of the loop, one timer for the core's next deadline, one promise per call. As
 * long as a call has no result the socket and the timer keep the process alive; else they don't.
 */

import type { Socket } from "node:net";
import { debuglog } from "node:util";
import { onAbort } from "./aborts.js";
import { monotonicMs } from "./clock.js";
import { ClientCore } from "./core/client.js";
import { NEVER } from "./core/deadlines.js";
import type { Effect, LogLevel, Waiter } from "./core/effects.js";
import type { Request } from "./core/requests.js";
import type { CoreSettings } from "./core/settings.js";
import type { HeldTicket } from "./core/tickets.js";
import type { Endpoint } from "./core/urls.js";
import type { TicketingError } from "./errors.js";
import type { TicketingEvent } from "./events.js";
import type { Logger, Transport } from "./options.js";
import { openSocket, why } from "./transport.js";

// Node's timers stand still while the machine sleeps, and end at 2^31 - 1 ms: so look now and then.
const LONGEST_SLEEP_MS = 1000;

const debug = debuglog("ticketing");
const DEFAULT_LOGGER: Logger = {
  debug: (text) => debug("%s", text),
  info: (text) => debug("%s", text),
  warn: (text) => process.emitWarning(text, "TicketingWarning"),
};

/** A call that waits for its result. */
class Call<T> implements Waiter {
  readonly promise: Promise<T>;
  #resolve!: (value: T) => void;
  #reject!: (error: unknown) => void;
  #isOver = false;

  constructor(private readonly driver: Driver) {
    this.promise = new Promise<T>((resolve, reject) => {
      this.#resolve = resolve;
      this.#reject = reject;
    });
    driver.callBegan();
  }

  settle(value: unknown, error: TicketingError | undefined): void {
    if (this.#isOver) return; // It was cancelled; whoever did that abandons the request.
    this.#end();
    if (error === undefined) this.#resolve(value as T);
    else this.#reject(error);
  }

  cancel(reason: unknown): void {
    if (this.#isOver) return;
    this.#end();
    this.#reject(reason);
  }

  #end(): void {
    this.#isOver = true;
    this.driver.callEnded();
  }
}

/** A connection, or an attempt at one. */
interface Wire {
  readonly serial: number;
  readonly socket: Socket;
  /** Whether the server has said anything. */
  heard: boolean;
  open: boolean;
  /** Whether the socket has as much to write as it takes. */
  full: boolean;
  failure: string | undefined;
}

/** One core, its connection, its timer. */
export class Driver {
  readonly core: ClientCore;
  readonly logger: Logger;
  #wire: Wire | undefined;
  #timer: NodeJS.Timeout | undefined;
  #timerMs = NEVER;
  #callsUnderWay = 0;
  #isFlushing = false;
  #isWorking = false;
  #isOver = false;
  /** Resolves when no socket of this driver is left. */
  #sockets = new Set<Socket>();
  #onSocketsGone: (() => void)[] = [];

  constructor(
    settings: CoreSettings,
    private readonly transport: Transport,
    private readonly onEvent: ((event: TicketingEvent) => void) | undefined,
    logger: Logger | undefined,
  ) {
    this.core = new ClientCore(settings);
    this.logger = logger ?? DEFAULT_LOGGER;
  }

  // Calls.

  /**
   * Make a call of the core and wait for its result; `begin` hands the waiter to the core.
   *
   * When the signal aborts, `undo` leaves things as if the call had not been made, and the promise
   * rejects with the signal's reason.
   */
  async call<T, R>(
    begin: (waiter: Waiter, nowMs: number) => R,
    signal?: AbortSignal,
    undo?: (begun: R, waiter: Waiter) => void,
  ): Promise<T> {
    signal?.throwIfAborted();
    const call = new Call<T>(this);
    let begun: R;
    try {
      begun = begin(call, monotonicMs());
    } catch (error) {
      call.cancel(error);
      return call.promise;
    }
    this.afterCall();
    if (signal === undefined) return call.promise;
    const stopListening = onAbort(signal, () => call.cancel(signal.reason));
    try {
      const value = await call.promise;
      // It may have been aborted between the result and this moment.
      signal.throwIfAborted();
      return value;
    } catch (error) {
      if (signal.aborted) {
        undo?.(begun, call);
        throw signal.reason;
      }
      throw error;
    } finally {
      stopListening();
    }
  }

  /** A caller waits: the process has to stay alive. */
  callBegan(): void {
    this.#callsUnderWay += 1;
    if (this.#callsUnderWay === 1) {
      this.#wire?.socket.ref();
      this.#timer?.ref();
    }
  }

  /** A caller has its result. */
  callEnded(): void {
    this.#callsUnderWay -= 1;
    if (this.#callsUnderWay === 0) {
      this.#wire?.socket.unref();
      this.#timer?.unref();
    }
  }

  /** Carry out what the core wants. To be called after every call into the core. */
  afterCall(): void {
    if (this.core.effects.length > 0) this.#carryOut();
    if (!this.#isFlushing && this.core.hasOutput) this.#flushSoon();
    this.#arm();
  }

  /** The caller was cancelled: leave neither waiter nor ticket behind. */
  abandon(request: Request): void {
    this.core.abandon(request, monotonicMs());
    this.afterCall();
  }

  /** Release without anybody waiting for it. */
  releaseUnattended(ticket: HeldTicket): void {
    this.core.release(ticket, undefined, monotonicMs());
    this.afterCall();
  }

  /** The client was dropped: close without anybody waiting for it. */
  closeUnattended(): void {
    this.core.close(undefined, monotonicMs());
    this.afterCall();
  }

  /** Wait until no socket is left. */
  socketsGone(): Promise<void> {
    if (this.#sockets.size === 0) return Promise.resolve();
    return new Promise((resolve) => this.#onSocketsGone.push(resolve));
  }

  // Effects.

  #carryOut(): void {
    if (this.#isWorking) return; // The loop below sees what was added meanwhile.
    this.#isWorking = true;
    const { effects } = this.core;
    try {
      for (let at = 0; at < effects.length; at += 1) this.#carryOutOne(effects[at]);
    } finally {
      effects.length = 0;
      this.#isWorking = false;
    }
  }

  #carryOutOne(effect: Effect): void {
    switch (effect.kind) {
      case "settled":
        effect.waiter.settle(effect.value, effect.error);
        break;
      case "connect":
        this.#connect(effect.serial, effect.endpoint);
        break;
      case "disconnect":
        if (this.#wire?.serial === effect.serial) this.#dropWire(this.#wire);
        break;
      case "ticket_ended":
        for (const listener of effect.ticket.listeners.splice(0)) listener();
        break;
      case "notify":
        this.#notify(effect.event);
        break;
      case "log":
        this.#log(effect.level, effect.text);
        break;
      case "closed":
        this.#isOver = true;
        clearTimeout(this.#timer);
        this.#timer = undefined;
        break;
    }
  }

  #notify(event: TicketingEvent): void {
    try {
      this.onEvent?.(event);
    } catch (error) {
      this.#log("warn", `onEvent threw for ${event.kind}: ${error}`);
    }
  }

  /** Whatever a logger does, the effects after this line have to be carried out. */
  #log(level: LogLevel, text: string): void {
    try {
      this.logger[level](text);
    } catch (error) {
      process.emitWarning(`the logger threw (${error}) for: ${text}`, "TicketingWarning");
    }
  }

  // Time and output.

  #arm(): void {
    const dueMs = this.core.nextDeadlineMs();
    if (dueMs === NEVER || this.#isOver) return;
    if (this.#timer !== undefined && this.#timerMs <= dueMs) return;
    clearTimeout(this.#timer);
    const delayMs = Math.min(Math.max(0, dueMs - monotonicMs()), LONGEST_SLEEP_MS);
    this.#timerMs = dueMs;
    this.#timer = setTimeout(this.#onTimer, Math.ceil(delayMs));
    if (this.#callsUnderWay === 0) this.#timer.unref();
  }

  readonly #onTimer = (): void => {
    this.#timer = undefined;
    this.core.onTime(monotonicMs());
    this.afterCall();
  };

  #flushSoon(): void {
    this.#isFlushing = true;
    setImmediate(this.#flush);
  }

  readonly #flush = (): void => {
    this.#isFlushing = false;
    const wire = this.#wire;
    // There is a flush when the connection stands, or takes bytes again.
    if (wire === undefined || !wire.open || wire.full || wire.serial !== this.core.serial) return;
    const frames = this.core.takeOutput(monotonicMs());
    if (frames.length === 0) return;
    const batch = frames.length === 1 ? frames[0] : Buffer.concat(frames);
    wire.full = !wire.socket.write(batch);
  };

  // The connection.

  #connect(serial: number, endpoint: Endpoint): void {
    let socket: Socket;
    try {
      socket = openSocket(endpoint, this.transport);
    } catch (error) {
      // What Node itself refuses, such as a secureContext that is none.
      this.core.disconnected(serial, (error as Error).message, monotonicMs());
      return;
    }
    const isTls = this.transport.secureContext !== undefined && !endpoint.path;
    const wire: Wire = {
      serial,
      socket,
      heard: false,
      open: false,
      full: false,
      failure: undefined,
    };
    this.#wire = wire;
    this.#sockets.add(socket);
    if (this.#callsUnderWay === 0) socket.unref();
    socket.once(isTls ? "secureConnect" : "connect", () => this.#wireMade(wire));
    socket.on("data", (data: Buffer) => this.#wireReceived(wire, data));
    socket.on("drain", () => this.#wireWritable(wire));
    socket.on("error", (error) => {
      wire.failure ??= why(error, endpoint.host);
    });
    socket.once("end", () => socket.destroy());
    socket.once("close", () => this.#wireLost(wire, isTls));
  }

  #wireMade(wire: Wire): void {
    if (this.#wire !== wire) return;
    wire.open = true;
    // While it was connecting it may have changed its handle, which forgets this.
    if (this.#callsUnderWay === 0) wire.socket.unref();
    else wire.socket.ref();
    this.core.connected(wire.serial, monotonicMs());
    this.afterCall();
  }

  #wireReceived(wire: Wire, data: Buffer): void {
    if (this.#wire !== wire) return;
    wire.heard = true;
    this.core.receive(wire.serial, data, monotonicMs());
    this.afterCall();
  }

  #wireWritable(wire: Wire): void {
    wire.full = false;
    if (this.#wire === wire && !this.#isFlushing) this.#flushSoon();
  }

  /** Let go of a connection that the core does not want any more. */
  #dropWire(wire: Wire): void {
    this.#wire = undefined;
    wire.socket.destroy();
  }

  #wireLost(wire: Wire, isTls: boolean): void {
    this.#sockets.delete(wire.socket);
    if (this.#wire === wire) {
      this.#wire = undefined;
      let reason = wire.failure ?? "the server closed the connection";
      if (isTls && !wire.heard && wire.failure === undefined) {
        reason += " (if it asks for a certificate: tls.certFile and tls.keyFile)";
      }
      this.core.disconnected(wire.serial, reason, monotonicMs());
      this.afterCall();
    }
    if (this.#sockets.size === 0) for (const gone of this.#onSocketsGone.splice(0)) gone();
  }
}
