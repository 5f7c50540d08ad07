import { LapidaryError } from './errors';
import type { Host, HostEngine } from './host';
import type { LoadOptions, MemoryPlan, ModelEntry, ModelInfo } from './types';

/** What happens until an engine is there, in this order; each may come many times. */
export type Step =
  | { at: 'downloading'; fraction: number }
  | { at: 'opening' }
  | { at: 'loading'; fraction: number; info: ModelInfo; plan: MemoryPlan };

/** An engine of which somebody has a share. */
export interface Share {
  readonly engine: Promise<HostEngine>;
  /** What happened last, before anybody listened. */
  readonly last: Step | null;
  /** Gives the share back; the last one ends loading, or unloads. */
  release(): void;
}

export interface Wish {
  host: Host;
  model: ModelEntry;
  options: LoadOptions;
  acceptPlan?: (plan: MemoryPlan) => boolean | Promise<boolean>;
}

/** What `acceptPlan` refused. */
export class Declined extends Error {}

interface Entry {
  shares: number;
  abort: AbortController;
  engine: Promise<HostEngine>;
  listeners: Set<(step: Step) => void>;
  last: Step | null;
}

const hosts = new WeakMap<Host, Map<string, Entry>>();

/**
 * An engine for a model. Who asks for the same model with the same options shares it, so two components
 * do not take the memory twice, and a component that StrictMode mounts twice loads once.
 */
export function share(wish: Wish, listener: (step: Step) => void): Share {
  const shelf = hosts.get(wish.host) ?? new Map<string, Entry>();
  hosts.set(wish.host, shelf);
  const { source, backends } = wish.model;
  const key = JSON.stringify([source, backends ?? {}, Object.entries(wish.options).sort()]);
  const entry = shelf.get(key) ?? begin(shelf, key, wish);
  entry.shares += 1;
  entry.listeners.add(listener);
  let released = false;
  return {
    engine: entry.engine,
    last: entry.last,
    release() {
      if (released) return;
      released = true;
      entry.shares -= 1;
      entry.listeners.delete(listener);
      // Whoever mounts again in the same breath gets the same engine.
      setTimeout(() => {
        if (entry.shares > 0 || shelf.get(key) !== entry) return;
        shelf.delete(key);
        entry.abort.abort();
        entry.engine.then((engine) => engine.unload()).catch(() => undefined);
      }, 0);
    },
  };
}

function begin(shelf: Map<string, Entry>, key: string, wish: Wish): Entry {
  const entry: Entry = {
    shares: 0,
    abort: new AbortController(),
    engine: Promise.resolve(null as never),
    listeners: new Set(),
    last: null,
  };
  const tell = (step: Step) => {
    entry.last = step;
    for (const listener of [...entry.listeners]) listener(step);
  };
  entry.engine = bring(wish, entry.abort.signal, tell);
  entry.engine.catch(() => {
    // The next one who asks tries again.
    if (shelf.get(key) === entry) shelf.delete(key);
  });
  shelf.set(key, entry);
  return entry;
}

async function bring(
  { host, model, options, acceptPlan }: Wish,
  signal: AbortSignal,
  tell: (step: Step) => void,
): Promise<HostEngine> {
  // Nothing is told before whoever asked has the share.
  await Promise.resolve();
  const check = () => {
    if (signal.aborted) throw new LapidaryError('cancelled', 'loading was cancelled');
  };
  tell({ at: 'downloading', fraction: 0 });
  if (!(await host.isDownloaded(model.source))) {
    check();
    await host.download(model.source, signal, (fraction) => tell({ at: 'downloading', fraction }));
  }
  check();
  tell({ at: 'opening' });
  const opened = await host.open(model.source);
  try {
    const chosen = await withBackend(host, model, options);
    check();
    const plan = await opened.plan(chosen);
    const loading = { at: 'loading', info: opened.info, plan } as const;
    tell({ ...loading, fraction: 0 });
    if (acceptPlan && !(await acceptPlan(plan))) throw new Declined();
    check();
    const engine = await opened.load(chosen, signal, (fraction) => tell({ ...loading, fraction }));
    if (signal.aborted) {
      await engine.unload();
      check();
    }
    tell({ ...loading, fraction: 1 });
    return engine;
  } finally {
    opened.close();
  }
}

/** The platform's default where none is asked for, as the table says; else the engine chooses. */
export async function withBackend(
  host: Host,
  model: ModelEntry,
  options: LoadOptions,
): Promise<LoadOptions> {
  if (options.backend !== undefined || options.device !== undefined) return options;
  const defaults = model.backends?.[host.platform] ?? [];
  const backend = defaults.length > 0 ? await host.choose(defaults) : undefined;
  return backend === undefined ? options : { ...options, backend };
}
