// The service worker keeps the page itself, so that it opens without the server.

interface ScriptUrlPolicy {
  createScriptURL(url: string): unknown;
}

interface Factory {
  createPolicy(name: string, rules: { createScriptURL(url: string): string }): ScriptUrlPolicy;
}

const WORKER = "/sw.js";

/** The address in the form that the page's policy asks for: no other script may be named. */
function workerUrl(): string {
  const factory = (window as { trustedTypes?: Factory }).trustedTypes;
  if (!factory) return WORKER;
  const policy = factory.createPolicy("lapidary", {
    createScriptURL(url) {
      if (url !== WORKER) throw new TypeError(`${url} is no script of this page`);
      return url;
    },
  });
  return policy.createScriptURL(WORKER) as string;
}

const listeners = new Set<() => void>();
let waiting: ServiceWorker | null = null;

/** Calls back when a newer page is ready. */
export function onUpdate(listener: () => void): void {
  listeners.add(listener);
  if (waiting) listener();
}

/** Changes to the newer page. */
export function takeUpdate(): void {
  navigator.serviceWorker.addEventListener("controllerchange", () => location.reload(), { once: true });
  waiting?.postMessage("take over");
}

export function startWorker(): void {
  // Missing where the page comes from another machine over plain HTTP, and when it is being developed.
  if (!("serviceWorker" in navigator) || !import.meta.env.PROD) return;
  void navigator.serviceWorker
    .register(workerUrl(), { updateViaCache: "none" })
    .then((registration) => {
      const offer = (worker: ServiceWorker | null) => {
        if (!worker || !navigator.serviceWorker.controller) return;
        waiting = worker;
        for (const listener of listeners) listener();
      };
      offer(registration.waiting);
      registration.addEventListener("updatefound", () => {
        const next = registration.installing;
        next?.addEventListener("statechange", () => {
          if (next.state === "installed") offer(next);
        });
      });
    })
    .catch(() => {
      // The page works without; only a reload without the server does not.
    });
}
