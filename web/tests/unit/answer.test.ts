import { expect, test } from "@playwright/test";

import { AnswerReader } from "../../src/lib/answer.ts";
import { modelOf, problemOf, retryAfterOf } from "../../src/lib/api.ts";

const chunk = (delta: object, finish: string | null = null) =>
  JSON.stringify({ choices: [{ index: 0, delta, finish_reason: finish }] });

test("text, thinking and calls", () => {
  const reader = new AnswerReader();
  expect(reader.read(chunk({ role: "assistant", content: "" })).pieces).toEqual([]);
  expect(reader.read(chunk({ content: "Hi" })).pieces).toEqual([{ kind: "text", text: "Hi" }]);
  expect(reader.read(chunk({ reasoning_content: "hm" })).pieces).toEqual([{ kind: "thinking", text: "hm" }]);
  const call = { index: 1, id: "c1", type: "function", function: { name: "f", arguments: '{"a"' } };
  expect(reader.read(chunk({ tool_calls: [call] })).pieces).toEqual([
    { kind: "call", index: 1, id: "c1", name: "f", arguments: '{"a"' },
  ]);
  expect(reader.finished).toBe(false);
  expect(reader.read(chunk({}, "tool_calls")).pieces).toEqual([{ kind: "finish", reason: "tool_calls" }]);
  expect(reader.finished).toBe(true);
});

test("usage and timings of the last chunk", () => {
  const { pieces } = new AnswerReader().read(
    JSON.stringify({
      choices: [],
      usage: { prompt_tokens: 30, completion_tokens: 10, prompt_tokens_details: { cached_tokens: 20 } },
      timings: { cache_n: 20, prompt_n: 10, prompt_ms: 5, predicted_n: 10, predicted_ms: 200 },
    }),
  );
  expect(pieces).toEqual([
    { kind: "usage", usage: { cached: 20, prompt: 30, completion: 10, promptMs: 5, predictedMs: 200, rate: 50 } },
  ]);
});

test("progress of the prompt, and warnings", () => {
  const data = JSON.stringify({ choices: [], prompt_progress: { processed: 5, total: 20 }, warnings: ["skipped", { message: "too" }] });
  expect(new AnswerReader().read(data).pieces).toEqual([
    { kind: "progress", done: 5, total: 20 },
    { kind: "warning", text: "skipped" },
    { kind: "warning", text: "too" },
  ]);
});

test("what has another shape is skipped", () => {
  const reader = new AnswerReader();
  for (const data of ["", "null", "[]", "{", '{"choices":null}', '{"choices":[null]}', '{"choices":[{"delta":{"content":7,"tool_calls":[null]}}]}']) {
    const { pieces, error } = reader.read(data);
    expect(error).toBeUndefined();
    expect(pieces.filter((piece) => piece.kind !== "call")).toEqual([]);
  }
});

test("an error in the stream is one", () => {
  const { error } = new AnswerReader().read('{"error":{"message":"the engine stopped","code":"internal"}}');
  expect(problemOf(0, error)).toMatchObject({ kind: "server", message: "the engine stopped", code: "internal" });
});

test("errors become what can be done about them", () => {
  const kind = (status: number, code = "x") => problemOf(status, { error: { message: "m", code } }).kind;
  expect(kind(401)).toBe("key");
  expect(kind(429)).toBe("busy");
  expect(kind(503)).toBe("busy");
  expect(kind(400)).toBe("refused");
  expect(kind(400, "context_length_exceeded")).toBe("context");
  expect(kind(500)).toBe("server");
  expect(problemOf(502, "<html>").message).toBe("The server answered 502.");
  expect(problemOf(500, { error: "in words" }).message).toBe("in words");
});

test("Retry-After is seconds or a date, and never beyond reason", () => {
  const now = Date.parse("2026-11-18T04:00:00Z");
  expect(retryAfterOf("3", now)).toBe(3);
  expect(retryAfterOf("0", now)).toBe(1);
  expect(retryAfterOf("Wed, 18 Nov 2026 04:00:09 GMT", now)).toBe(9);
  expect(retryAfterOf("1e9", now)).toBe(600);
  expect(retryAfterOf("soon", now)).toBeUndefined();
  expect(retryAfterOf(null, now)).toBeUndefined();
});

test("models with our fields and without", () => {
  const own = { state: "unloaded", context_length: 8192, memory_bytes: 5, modalities: ["text", "image"] };
  expect(modelOf({ id: "m", lapidary: own })).toMatchObject({
    id: "m", state: "unloaded", context: 8192, memory: 5, image: true, audio: false,
  });
  expect(modelOf({ id: "m" })).toMatchObject({ state: "unknown", image: true, audio: true });
  expect(modelOf({})).toBeNull();
  expect(modelOf(null)).toBeNull();
});
