// Chunks of a streamed answer, read leniently: what has another shape is skipped, not fatal.

import type { Usage } from "./types.ts";

export type Piece =
  | { kind: "text"; text: string }
  | { kind: "thinking"; text: string }
  | { kind: "call"; index: number; id?: string | undefined; name?: string | undefined; arguments?: string | undefined }
  | { kind: "finish"; reason: string }
  | { kind: "usage"; usage: Partial<Usage> }
  | { kind: "progress"; done: number; total: number }
  | { kind: "warning"; text: string };

type Json = Record<string, unknown>;
const object = (value: unknown): Json =>
  typeof value === "object" && value !== null && !Array.isArray(value) ? (value as Json) : {};
const list = (value: unknown): unknown[] => (Array.isArray(value) ? value : []);
const text = (value: unknown): string | undefined => (typeof value === "string" && value ? value : undefined);
const number = (value: unknown): number | undefined =>
  typeof value === "number" && Number.isFinite(value) ? value : undefined;

export class AnswerReader {
  finished = false;

  /** What one event holds; an error if it is one. */
  read(data: string): { pieces: Piece[]; error?: unknown } {
    let chunk: Json;
    try {
      chunk = object(JSON.parse(data));
    } catch {
      return { pieces: [] };
    }
    if (chunk["error"] !== undefined && chunk["error"] !== null) return { pieces: [], error: chunk };
    const pieces: Piece[] = [];
    const choice = object(list(chunk["choices"])[0]);
    const delta = object(choice["delta"]);
    const thinking = text(delta["reasoning_content"]) ?? text(delta["reasoning"]);
    if (thinking) pieces.push({ kind: "thinking", text: thinking });
    const content = text(delta["content"]) ?? text(delta["refusal"]);
    if (content) pieces.push({ kind: "text", text: content });
    for (const [at, raw] of list(delta["tool_calls"]).entries()) {
      const call = object(raw);
      const inner = object(call["function"]);
      const index = number(call["index"]) ?? at;
      pieces.push({
        kind: "call",
        index,
        id: text(call["id"]),
        name: text(inner["name"]),
        arguments: text(inner["arguments"]),
      });
    }
    const reason = text(choice["finish_reason"]);
    if (reason) {
      this.finished = true;
      pieces.push({ kind: "finish", reason });
    }
    const progress = object(chunk["prompt_progress"]);
    const [read, total] = [number(progress["processed"]), number(progress["total"])];
    if (read !== undefined && total) pieces.push({ kind: "progress", done: read, total });
    for (const warning of list(chunk["warnings"])) {
      const said = text(warning) ?? text(object(warning)["message"]);
      if (said) pieces.push({ kind: "warning", text: said });
    }
    const usage = usageOf(chunk);
    if (usage) pieces.push({ kind: "usage", usage });
    return { pieces };
  }
}

function usageOf(chunk: Json): Partial<Usage> | undefined {
  const usage = object(chunk["usage"]);
  const timings = object(chunk["timings"]);
  const out: Partial<Usage> = {};
  const put = (name: keyof Usage, value: number | undefined) => {
    if (value !== undefined) out[name] = value;
  };
  const cached = number(object(usage["prompt_tokens_details"])["cached_tokens"]) ?? number(timings["cache_n"]);
  put("cached", cached);
  const read = number(timings["prompt_n"]);
  put("prompt", number(usage["prompt_tokens"]) ?? (read === undefined ? undefined : read + (cached ?? 0)));
  put("completion", number(usage["completion_tokens"]) ?? number(timings["predicted_n"]));
  put("promptMs", number(timings["prompt_ms"]));
  put("predictedMs", number(timings["predicted_ms"]));
  const { predicted_per_second: rate, predicted_n: n, predicted_ms: ms } = timings;
  put("rate", number(rate) ?? (number(n) && number(ms) ? (number(n)! * 1000) / number(ms)! : undefined));
  return Object.keys(out).length ? out : undefined;
}
