import type { Host } from './host';

/** How this package works, for the whole app. */
export interface Setup {
  /** A folder of the app for downloaded models. Phones need it. */
  cache?: string;
  /** Another hub than Hugging Face's. */
  endpoint?: string;
  /** The hub's token, for models with terms. */
  token?: string;
  /** Never connects. */
  offline?: boolean;
  /** Where engines are, instead of in this process. */
  host?: Host;
}

let current: Setup = {};
let made: Host | null = null;

/** Says how this package works. Call it before the first `useLLM`. */
export function setUp(setup: Setup): void {
  current = setup;
  made = null;
}

/** The host that was set up, or the one that `make` makes. */
export function theHost(make: (setup: Setup) => Host): Host {
  made ??= current.host ?? make(current);
  return made;
}
