/** Listening to AbortSignals. */

interface Listening {
  readonly listeners: Set<() => void>;
  readonly tellAll: () => void;
}

const listening = new WeakMap<AbortSignal, Listening>();

/**
 * Call `listener` when the signal aborts, until the function that is returned is called.
 *
 * Each signal has one listener of ours, however many calls it cancels: Node warns of a leak where
 * there are more than ten, and one signal for all that a program does is common.
 */
export function onAbort(signal: AbortSignal, listener: () => void): () => void {
  let found = listening.get(signal);
  if (found === undefined) {
    const listeners = new Set<() => void>();
    const tellAll = () => {
      for (const one of [...listeners]) one();
    };
    found = { listeners, tellAll };
    listening.set(signal, found);
    signal.addEventListener("abort", tellAll, { once: true });
  }
  const { listeners, tellAll } = found;
  listeners.add(listener);
  return () => {
    listeners.delete(listener);
    if (listeners.size > 0) return;
    signal.removeEventListener("abort", tellAll);
    listening.delete(signal);
  };
}
