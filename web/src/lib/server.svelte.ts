// What is known of the server: whether it answers, and its models.

import * as api from "./api.ts";
import { Failure } from "./api.ts";
import type { Problem } from "./tree.ts";
import type { Model } from "./types.ts";

type Link = "asking" | "ok" | "unreachable" | "key" | "failing";

const OFTEN = 1500;
const SELDOM = 30_000;
const LONGEST = 15_000;

class Server {
  link: Link = $state("asking");
  problem: Problem | null = $state(null);
  models: Model[] = $state([]);
  hasKey = $state(false);
  /** The key that was given last was refused. */
  keyRefused = $state(false);
  #timer: ReturnType<typeof setTimeout> | undefined;
  #failures = 0;
  #asking: Promise<void> | undefined;

  find(id: string): Model | undefined {
    return this.models.find((model) => model.id === id);
  }

  /** Asks now, and from then on now and then. */
  refresh(): Promise<void> {
    this.#asking ??= this.#ask().finally(() => (this.#asking = undefined));
    return this.#asking;
  }

  async #ask(): Promise<void> {
    clearTimeout(this.#timer);
    try {
      this.models = await api.models();
      this.link = "ok";
      this.problem = null;
      this.keyRefused = false;
      this.hasKey = api.hasKey();
      this.#failures = 0;
    } catch (e) {
      this.met(e instanceof Failure ? e : new Failure({ kind: "server", message: String(e) }));
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
    await this.refresh();
    if ((this.link as Link) === "key") {
      this.keyRefused = true;
      api.setKey(null, false);
    }
  }

  forgetKey(): void {
    api.setKey(null, false);
    void this.refresh();
  }

  start(): void {
    api.recallKey();
    void this.refresh();
    window.addEventListener("online", () => void this.refresh());
    document.addEventListener("visibilitychange", () => {
      if (document.visibilityState === "visible" && this.link !== "key") void this.refresh();
    });
  }
}

export const server = new Server();
