// One answer while it comes.

import * as api from "./api.ts";
import { Failure } from "./api.ts";
import type { Piece } from "./answer.ts";
import { server } from "./server.svelte.ts";
import type { Ending, Node } from "./tree.ts";
import type { Usage } from "./types.ts";

/** How often a busy server is asked again by itself. */
const TRIES = 8;

export class Run {
  readonly node: Node;
  phase: "sending" | "waiting" | "streaming" = $state("sending");
  /** Milliseconds of the clock at which a busy server is asked again, and what it said. */
  retryAt = $state(0);
  said = $state("");
  /** How much of the prompt was read, from zero to one. */
  read = $state(0);
  #abort = new AbortController();
  #wake: (() => void) | null = null;
  #text = "";
  #thinking = "";
  #frame = 0;
  #asked = 0;
  #first = 0;
  #pieces = 0;
  #left = false;
  #reason: Ending = "stop";

  constructor(node: Node) {
    this.node = node;
  }

  stop(): void {
    this.#abort.abort();
    this.#wake?.();
  }

  /** The page is being closed: what came so far is all there will be. */
  leave(): void {
    this.#left = true;
    this.stop();
    this.#end("lost");
  }

  retryNow(): void {
    this.#wake?.();
  }

  /** Runs to the end. Failures are put into the message, not thrown. */
  async go(body: () => Promise<Record<string, unknown>>): Promise<void> {
    const { signal } = this.#abort;
    try {
      const request = await body();
      for (let tries = 1; ; tries++) {
        this.read = 0;
        this.#asked = performance.now();
        try {
          await api.chat(request, signal, (piece) => this.#take(piece));
          break;
        } catch (e) {
          const again = e instanceof Failure && e.problem.kind === "busy" && e.retryAfter !== undefined;
          if (!again || tries >= TRIES || this.#pieces > 0) throw e;
          await this.#wait(e);
          if (signal.aborted) throw e;
        }
      }
      this.#end(this.#reason);
    } catch (e) {
      if (signal.aborted) return this.#end(this.#left ? "lost" : "stopped");
      const failure = e instanceof Failure ? e : new Failure({ kind: "page", message: e instanceof Error ? e.message : String(e) });
      if (failure.problem.kind === "unreachable" || failure.problem.kind === "key") server.met(failure);
      this.node.problem = failure.problem;
      this.#end(failure.problem.kind === "lost" ? "lost" : "error");
    }
  }

  #wait(failure: Failure): Promise<void> {
    const seconds = failure.retryAfter ?? 1;
    this.phase = "waiting";
    this.said = failure.problem.message;
    this.retryAt = Date.now() + seconds * 1000;
    void server.refresh();
    return new Promise((resolve) => {
      const timer = setTimeout(() => this.#wake?.(), seconds * 1000);
      this.#wake = () => {
        clearTimeout(timer);
        this.#wake = null;
        this.phase = "sending";
        resolve();
      };
    });
  }

  #take(piece: Piece): void {
    const { node } = this;
    switch (piece.kind) {
      case "usage":
        node.usage = { ...(node.usage ?? { prompt: 0, completion: 0 }), ...piece.usage } as Usage;
        return;
      case "finish":
        // Not yet the message's: words may still wait for their frame.
        this.#reason = ({ length: "length", tool_calls: "tool_calls" } as Record<string, Ending>)[piece.reason] ?? "stop";
        return;
      case "progress":
        this.read = piece.done / piece.total;
        return;
      case "warning":
        node.warnings = [...(node.warnings ?? []), piece.text];
        return;
    }
    if (!this.#first) this.#first = performance.now();
    this.#pieces++;
    this.phase = "streaming";
    if (piece.kind === "text") this.#text += piece.text;
    else if (piece.kind === "thinking") this.#thinking += piece.text;
    else {
      node.calls ??= [];
      const call = (node.calls[piece.index] ??= { id: "", name: "", arguments: "" });
      if (piece.id) call.id = piece.id;
      if (piece.name) call.name += piece.name;
      if (piece.arguments) call.arguments += piece.arguments;
    }
    // Many tokens may come between two frames; the page is touched once for all of them. A hidden page
    // has no frames, and nobody who looks.
    this.#frame ||= document.hidden
      ? (setTimeout(() => this.#flush(), 200) as unknown as number)
      : requestAnimationFrame(() => this.#flush());
  }

  #flush(): void {
    this.#frame = 0;
    if (this.#text) this.node.text += this.#text;
    if (this.#thinking) this.node.thinking = (this.node.thinking ?? "") + this.#thinking;
    this.#text = this.#thinking = "";
  }

  #end(ending: Ending): void {
    this.#flush();
    const { node } = this;
    node.ending = ending;
    if (node.calls) node.calls = node.calls.filter((call) => call && call.name);
    if (!this.#first) return;
    const usage: Usage = node.usage ?? { prompt: 0, completion: this.#pieces };
    usage.ttft = this.#first - this.#asked;
    const ms = performance.now() - this.#first;
    usage.rate ??= usage.completion > 1 && ms > 0 ? ((usage.completion - 1) * 1000) / ms : undefined;
    node.usage = usage;
  }
}
