// Settings of an answer: their bounds, and what of them goes into a request.

import type { Settings } from "./types.ts";

export const DEFAULTS: Settings = {
  system: "",
  temperature: null,
  top_p: null,
  top_k: null,
  min_p: null,
  max_tokens: null,
  seed: null,
  presence_penalty: null,
  frequency_penalty: null,
  repeat_penalty: null,
  stop: [],
  effort: "",
  format: "text",
  schema: "",
  tools: "",
};

export type NumberField = {
  [K in keyof Settings]: Settings[K] extends number | null ? K : never;
}[keyof Settings];

export interface Bound {
  label: string;
  min: number;
  max: number;
  step: number;
  help: string;
}

export const NUMBERS: Record<NumberField, Bound> = {
  temperature: { label: "Temperature", min: 0, max: 2, step: 0.05, help: "0 is always the likeliest token" },
  top_p: { label: "Top p", min: 0, max: 1, step: 0.01, help: "likeliest tokens up to this share" },
  top_k: { label: "Top k", min: 0, max: 1000, step: 1, help: "so many likeliest; 0 is all" },
  min_p: { label: "Min p", min: 0, max: 1, step: 0.01, help: "share of the likeliest token" },
  max_tokens: { label: "Max tokens", min: 1, max: 1_000_000, step: 1, help: "the answer ends after so many" },
  seed: { label: "Seed", min: 0, max: 4_294_967_295, step: 1, help: "same seed, same answer" },
  presence_penalty: { label: "Presence penalty", min: -2, max: 2, step: 0.1, help: "against words that came" },
  frequency_penalty: { label: "Frequency penalty", min: -2, max: 2, step: 0.1, help: "against words that came often" },
  repeat_penalty: { label: "Repeat penalty", min: 0.1, max: 2, step: 0.05, help: "1 is none" },
};

const COUNTS = new Set<NumberField>(["top_k", "max_tokens", "seed"]);

/** What a person typed for a number: the number, null for nothing, or why it can't be. */
export function readNumber(field: NumberField, text: string): number | null | string {
  const { min, max } = NUMBERS[field];
  const trimmed = text.trim().replace(",", ".");
  if (trimmed === "") return null;
  const value = Number(trimmed);
  if (!Number.isFinite(value)) return "not a number";
  if (COUNTS.has(field) && !Number.isInteger(value)) return "must be a whole number";
  if (value < min || value > max) return `must be from ${min} to ${max}`;
  return value;
}

function parse(text: string): { value: unknown } | { error: string } {
  try {
    return { value: JSON.parse(text) };
  } catch (e) {
    return { error: e instanceof Error ? e.message : "not JSON" };
  }
}

/** Why a schema can't be used; null if it can, as far as the page knows. */
export function schemaProblem(text: string): string | null {
  if (!text.trim()) return "a JSON schema is missing";
  const read = parse(text);
  if ("error" in read) return read.error;
  const { value } = read;
  if (typeof value !== "object" || value === null || Array.isArray(value)) return "a schema is a JSON object";
  return null;
}

/** Tools as OpenAI writes them: an array, or why it is none. Functions alone are wrapped. */
export function readTools(text: string): object[] | string {
  if (!text.trim()) return [];
  const read = parse(text);
  if ("error" in read) return read.error;
  const list = Array.isArray(read.value) ? read.value : [read.value];
  const tools: object[] = [];
  for (const [i, item] of list.entries()) {
    if (typeof item !== "object" || item === null) return `tool ${i + 1} is not an object`;
    const tool = "function" in item ? item : { type: "function", function: item };
    const inner = tool.function as { name?: unknown } | null;
    if (typeof inner?.name !== "string" || !inner.name) return `tool ${i + 1} has no name`;
    tools.push("type" in tool ? tool : { ...tool, type: "function" });
  }
  return tools;
}

/** Fields of a request. Only what was set is sent. */
export function fields(settings: Settings): Record<string, unknown> {
  const out: Record<string, unknown> = {};
  for (const name of Object.keys(NUMBERS) as NumberField[]) {
    const value = settings[name];
    if (value === null) continue;
    out[name === "max_tokens" ? "max_completion_tokens" : name] = value;
  }
  if (settings.stop.length) out["stop"] = settings.stop;
  if (settings.effort) out["reasoning_effort"] = settings.effort;
  if (settings.format === "json_object") out["response_format"] = { type: "json_object" };
  if (settings.format === "json_schema" && schemaProblem(settings.schema) === null) {
    const schema: unknown = JSON.parse(settings.schema);
    out["response_format"] = { type: "json_schema", json_schema: { name: "answer", strict: true, schema } };
  }
  const tools = readTools(settings.tools);
  if (typeof tools !== "string" && tools.length) out["tools"] = tools;
  return out;
}

/** Settings from a file or an older page: what is wrong falls back to the default. */
export function restore(raw: unknown): Settings {
  const from = (typeof raw === "object" && raw !== null ? raw : {}) as Record<string, unknown>;
  const out: Settings = { ...DEFAULTS, stop: [] };
  for (const name of Object.keys(NUMBERS) as NumberField[]) {
    const value = from[name];
    if (typeof value === "number" && typeof readNumber(name, String(value)) === "number") out[name] = value;
  }
  for (const name of ["system", "schema", "tools"] as const) {
    if (typeof from[name] === "string") out[name] = from[name];
  }
  if (Array.isArray(from["stop"])) {
    out.stop = from["stop"].filter((s): s is string => typeof s === "string" && s !== "").slice(0, 16);
  }
  const { effort, format } = from;
  if (effort === "none" || effort === "low" || effort === "medium" || effort === "high") out.effort = effort;
  if (format === "json_object" || format === "json_schema") out.format = format;
  return out;
}

/** How many settings differ from the server's defaults. */
export function changed(settings: Settings): number {
  return Object.keys(fields(settings)).length + (settings.system.trim() ? 1 : 0);
}
