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

scope.global = scope;
scope.console = { log: say, info: say, warn: say, error: say, debug: say };
scope.AbortController ??= Controller;
scope.AbortSignal ??= Signal;

export {};
