// What is known of the server: whether it answers, and its models.

import * as api from "./api.ts";
import { Failure } from "./api.ts";
import type { Problem } from "./tree.ts";
import type { Model } from "./types.ts";

type Link = "asking" | "ok" | "unreachable" | "key" | "failing";

const OFTEN = 1500;
const SELDOM = 30_000;
const LONGEST = 15_000;
/** A list of models that takes longer than this does not come. */
const PATIENCE = 20_000;

class Server {
  link: Link = $state("asking");
  problem: Problem | null = $state(null);
  models: Model[] = $state([]);
  hasKey = $state(false);
  /** The key that was given last was refused. */
  keyRefused = $state(false);
  #timer: ReturnType<typeof setTimeout> | undefined;
  #failures = 0;
  #asking: { done: Promise<void>; abort: AbortController } | undefined;

  find(id: string): Model | undefined {
    return this.models.find((model) => model.id === id);
  }

  /** Asks now, and from then on now and then. Who is being asked already is not asked twice. */
  refresh(): Promise<void> {
    return (this.#asking ??= this.#begin()).done;
  }

  /** As `refresh`, for somebody who waits: what is under way may hang, or began before what they changed. */
  retry(): Promise<void> {
    this.#asking?.abort.abort();
    this.#failures = 0;
    this.#asking = this.#begin();
    return this.#asking.done;
  }

  #begin(): { done: Promise<void>; abort: AbortController } {
    clearTimeout(this.#timer);
    const abort = new AbortController();
    const done = this.#ask(abort.signal).finally(() => {
      if (this.#asking?.abort === abort) this.#asking = undefined;
    });
    return { done, abort };
  }

  async #ask(signal: AbortSignal): Promise<void> {
    const late = new AbortController();
    const patience = setTimeout(() => late.abort(), PATIENCE);
    const gone = () => late.abort();
    signal.addEventListener("abort", gone);
    try {
      const models = await api.models(late.signal);
      // Its answer came, but another one is waited for by now.
      if (signal.aborted) return;
      this.models = models;
      this.link = "ok";
      this.problem = null;
      this.keyRefused = false;
      this.hasKey = api.hasKey();
      this.#failures = 0;
    } catch (e) {
      if (signal.aborted) return;
      if (late.signal.aborted) this.met(api.unreachable());
      else this.met(e instanceof Failure ? e : new Failure({ kind: "server", message: String(e) }));
    } finally {
      clearTimeout(patience);
      signal.removeEventListener("abort", gone);
    }
    this.#plan();
  }

  /** A failure of any request tells about the server, too. */
  met({ problem }: Failure): void {
    if (problem.kind === "unreachable") this.link = "unreachable";
    else if (problem.kind === "key") this.link = "key";
    else this.link = "failing";
    this.problem = problem;
    this.#failures++;
    this.#plan();
  }

  #plan(): void {
    clearTimeout(this.#timer);
    if (this.link === "key") return;
    const loading = this.models.some((model) => model.state === "loading");
    const wait = this.link === "ok" ? (loading ? OFTEN : SELDOM) : Math.min(OFTEN * 1.6 ** this.#failures, LONGEST);
    this.#timer = setTimeout(() => {
      if (document.visibilityState === "visible") void this.refresh();
      else this.#plan();
    }, wait);
  }

  async giveKey(key: string, keepWithTab: boolean): Promise<void> {
    api.setKey(key, keepWithTab);
    await this.retry();
    if ((this.link as Link) === "key") {
      this.keyRefused = true;
      api.setKey(null, false);
    }
  }

  forgetKey(): void {
    api.setKey(null, false);
    void this.retry();
  }

  start(): void {
    api.recallKey();
    void this.refresh();
    window.addEventListener("online", () => void this.retry());
    document.addEventListener("visibilitychange", () => {
      if (document.visibilityState === "visible" && this.link !== "key") void this.refresh();
    });
  }
}

export const server = new Server();
