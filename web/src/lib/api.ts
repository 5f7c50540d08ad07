// The server's OpenAI routes. Every failure becomes a `Failure` that says what can be done about it.

import { AnswerReader, type Piece } from "./answer.ts";
import { SseParser } from "./sse.ts";
import type { Problem } from "./tree.ts";
import type { Model, ModelState } from "./types.ts";

export class Failure extends Error {
  readonly problem: Problem;
  /** Seconds after which the server wants to be asked again. */
  readonly retryAfter: number | undefined;

  constructor(problem: Problem, retryAfter?: number) {
    super(problem.message);
    this.problem = problem;
    this.retryAfter = retryAfter;
  }
}

export const unreachable = () =>
  new Failure({ kind: "unreachable", message: "The server can't be reached." });

/** Requests beyond this are likely to meet a server's limit. */
const LARGE = 8 * 1024 * 1024;
const KEY = "lapidary-key";
let apiKey: string | null = null;

/** The key lives in memory, or with the tab, and nowhere else. */
export function setKey(value: string | null, keepWithTab: boolean): void {
  apiKey = value;
  try {
    if (value !== null && keepWithTab) sessionStorage.setItem(KEY, value);
    else sessionStorage.removeItem(KEY);
  } catch {
    // Storage may be forbidden; the key is then kept in memory only.
  }
}

export function recallKey(): boolean {
  try {
    apiKey ??= sessionStorage.getItem(KEY);
  } catch {
    // As above.
  }
  return apiKey !== null;
}

export const hasKey = (): boolean => apiKey !== null;

async function request(path: string, init: RequestInit = {}): Promise<Response> {
  const headers = new Headers(init.headers);
  if (apiKey !== null) headers.set("authorization", `Bearer ${apiKey}`);
  let response: Response;
  try {
    response = await fetch(path, { ...init, headers, cache: "no-store", redirect: "error" });
  } catch (e) {
    if (init.signal?.aborted) throw e;
    // A server that has a limit closes the connection in the middle of what is sent.
    const size = typeof init.body === "string" ? init.body.length : 0;
    if (size > LARGE) {
      const message = `The connection ended while ${Math.round(size / 1048576)} MiB were sent. The server may take less: send fewer or smaller files.`;
      throw new Failure({ kind: "refused", message });
    }
    throw unreachable();
  }
  if (!response.ok) throw await failureOf(response);
  return response;
}

/** Seconds of a `Retry-After`, which is a number or a date. */
export function retryAfterOf(value: string | null, now: number): number | undefined {
  if (value === null || value.trim() === "") return undefined;
  const seconds = Number(value);
  const wait = Number.isFinite(seconds) ? seconds : (Date.parse(value) - now) / 1000;
  return Number.isFinite(wait) ? Math.min(Math.max(Math.ceil(wait), 1), 600) : undefined;
}

interface ErrorBody {
  message?: unknown;
  code?: unknown;
  type?: unknown;
}

/** What an error body or event says, as a problem. */
export function problemOf(status: number, body: unknown, requestId?: string): Problem {
  const outer = (typeof body === "object" && body !== null ? body : {}) as { error?: unknown };
  const inner = (typeof outer.error === "object" && outer.error !== null ? outer.error : {}) as ErrorBody;
  const said = typeof inner.message === "string" ? inner.message : typeof outer.error === "string" ? outer.error : "";
  const code = typeof inner.code === "string" ? inner.code : typeof inner.type === "string" ? inner.type : undefined;
  const tooLong = code === "context_length_exceeded" || code === "exceed_context_size_error";
  let kind: Problem["kind"] = "server";
  if (status === 401) kind = "key";
  else if (status === 429 || status === 503) kind = "busy";
  else if (tooLong) kind = "context";
  else if (status >= 400 && status < 500) kind = "refused";
  const message = said || `The server answered ${status}.`;
  return { kind, message, status: status || undefined, code, requestId };
}

async function failureOf(response: Response): Promise<Failure> {
  let body: unknown = null;
  try {
    body = await response.json();
  } catch {
    // An error of a proxy may be a page; its status says enough.
  }
  const requestId = response.headers.get("x-request-id") ?? undefined;
  const retry = retryAfterOf(response.headers.get("retry-after"), Date.now());
  return new Failure(problemOf(response.status, body, requestId), retry);
}

type Json = Record<string, unknown>;
const object = (value: unknown): Json =>
  typeof value === "object" && value !== null && !Array.isArray(value) ? (value as Json) : {};
const count = (...values: unknown[]): number | undefined =>
  values.find((v): v is number => typeof v === "number" && Number.isFinite(v) && v >= 0);

const STATES: Record<string, ModelState> = {
  loaded: "loaded",
  ready: "loaded",
  loading: "loading",
  unloaded: "unloaded",
  available: "unloaded",
  idle: "unloaded",
  failed: "failed",
  error: "failed",
};

/** A model as the list names it. Servers without our fields give a model that may take anything. */
export function modelOf(raw: unknown): Model | null {
  const item = object(raw);
  if (typeof item["id"] !== "string") return null;
  const own = { ...object(item["meta"]), ...object(item["lapidary"]) };
  const listed = own["modalities"] ?? object(item["architecture"])["input_modalities"];
  const known = Array.isArray(listed);
  const has = (word: string) => !known || (listed as unknown[]).includes(word);
  const said = object(own["state"])["value"] ?? own["state"] ?? object(item["status"])["value"] ?? item["status"];
  return {
    id: item["id"],
    state: STATES[String(said)] ?? "unknown",
    progress: count(own["progress"]),
    context: count(own["context_length"], item["context_length"], own["n_ctx"]),
    memory: count(own["memory_bytes"]),
    image: has("image"),
    audio: has("audio"),
    thinking: own["thinking"] !== false,
    error: typeof own["error"] === "string" ? own["error"] : undefined,
  };
}

export async function models(signal?: AbortSignal): Promise<Model[]> {
  const response = await request("/v1/models", signal ? { signal } : {});
  let body: Json;
  try {
    body = object(await response.json());
  } catch {
    throw new Failure({ kind: "server", message: "The list of models can't be read." });
  }
  const data = Array.isArray(body["data"]) ? body["data"] : [];
  return data.map(modelOf).filter((model): model is Model => model !== null);
}

/** Streams an answer. Ends without error when it is whole; else throws a `Failure` or the abort. */
export async function chat(
  body: Json,
  signal: AbortSignal,
  onPiece: (piece: Piece) => void,
): Promise<void> {
  const response = await request("/v1/chat/completions", {
    method: "POST",
    headers: { "content-type": "application/json", accept: "text/event-stream" },
    body: JSON.stringify({ ...body, stream: true, stream_options: { include_usage: true } }),
    signal,
  });
  const requestId = response.headers.get("x-request-id") ?? undefined;
  const lost = () =>
    new Failure({ kind: "lost", message: "The connection was lost before the answer was whole.", requestId });
  if (!response.body) throw lost();
  const parser = new SseParser();
  const reader = new AnswerReader();
  const bytes = response.body.getReader();
  try {
    for (;;) {
      let next: ReadableStreamReadResult<Uint8Array>;
      try {
        next = await bytes.read();
      } catch (e) {
        if (signal.aborted) throw e;
        throw lost();
      }
      if (next.done) break;
      for (const { data } of parser.push(next.value)) {
        if (data === "[DONE]") return;
        const { pieces, error } = reader.read(data);
        for (const piece of pieces) onPiece(piece);
        if (error !== undefined) throw new Failure(problemOf(0, error, requestId));
      }
    }
  } finally {
    // Tells the server that nobody listens any more.
    void bytes.cancel().catch(() => {});
  }
  if (!reader.finished) throw lost();
}
