/** What a core is built with; every value is checked before it comes here. */

import type { Endpoint } from "./urls.js";

/** All that the core needs to know. Times are whole milliseconds. */
export interface CoreSettings {
  readonly endpoints: readonly Endpoint[];
  readonly clientId: bigint;
  readonly seed: Uint8Array;
  readonly label: Uint8Array;
  readonly secret: Uint8Array;
  readonly fingerprint: Uint8Array | undefined;
  readonly keyPrefix: string;
  readonly leaseMs: number | undefined;
  readonly waitMs: number;
  readonly autoExtend: boolean | undefined;
  readonly connectForMs: number;
  readonly replyTimeoutMs: number;
  readonly releaseOnClose: boolean;
  /** Whether events are made at all; nobody listens otherwise. */
  readonly observed: boolean;
}
