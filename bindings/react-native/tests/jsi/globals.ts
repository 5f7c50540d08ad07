// What React Native gives to scripts and a bare engine does not.

const scope = globalThis as Record<string, unknown>;
const print = scope.print as (text: string) => void;
const say = (...words: unknown[]) =>
  print(words.map((word) => (word instanceof Error ? `${word.message}\n${word.stack}` : String(word))).join(' '));

class Signal {
  aborted = false;
  private readonly listeners = new Set<() => void>();

  addEventListener(_: string, listener: () => void) {
    this.listeners.add(listener);
  }

  removeEventListener(_: string, listener: () => void) {
    this.listeners.delete(listener);
  }

  throwIfAborted() {
    if (this.aborted) throw Object.assign(new Error('aborted'), { name: 'AbortError' });
  }

  end() {
    if (this.aborted) return;
    this.aborted = true;
    for (const listener of [...this.listeners]) listener();
  }
}

class Controller {
  readonly signal = new Signal();

  abort() {
    this.signal.end();
  }
}

/** UTF-8 by way of what an address may hold. */
class Encoder {
  encode(text: string): Uint8Array {
    const units = encodeURIComponent(text).replace(/%(..)/g, (_, hex) => String.fromCharCode(parseInt(hex, 16)));
    return Uint8Array.from(units, (unit) => unit.charCodeAt(0));
  }

  encodeInto(text: string, into: Uint8Array) {
    const bytes = this.encode(text);
    into.set(bytes);
    return { read: text.length, written: bytes.length };
  }
}

scope.TextEncoder ??= Encoder;
scope.queueMicrotask ??= (work: () => void) => void Promise.resolve().then(work);
scope.global = scope;
scope.console = { log: say, info: say, warn: say, error: say, debug: say };
scope.AbortController ??= Controller;
scope.AbortSignal ??= Signal;

export {};
