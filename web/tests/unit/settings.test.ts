import { expect, test } from "@playwright/test";

import { changed, DEFAULTS, fields, readNumber, readTools, restore, schemaProblem } from "../../src/lib/settings.ts";

test("only what was set is sent", () => {
  expect(fields(DEFAULTS)).toEqual({});
  expect(changed(DEFAULTS)).toBe(0);
  const set = { ...DEFAULTS, temperature: 0, max_tokens: 5, stop: ["END"], effort: "low" as const };
  expect(fields(set)).toEqual({ temperature: 0, max_completion_tokens: 5, stop: ["END"], reasoning_effort: "low" });
});

test("numbers are held to their bounds", () => {
  expect(readNumber("temperature", "0.7")).toBe(0.7);
  expect(readNumber("temperature", "0,7")).toBe(0.7);
  expect(readNumber("temperature", " ")).toBeNull();
  expect(readNumber("temperature", "3")).toMatch(/from 0 to 2/);
  expect(readNumber("top_k", "1.5")).toMatch(/whole/);
  expect(readNumber("seed", "x")).toMatch(/number/);
});

test("a schema is an object, and goes along strictly", () => {
  expect(schemaProblem("")).toMatch(/missing/);
  expect(schemaProblem("[1]")).toMatch(/object/);
  expect(schemaProblem("{")).not.toBeNull();
  const set = { ...DEFAULTS, format: "json_schema" as const, schema: '{"type":"object"}' };
  expect(fields(set)["response_format"]).toEqual({
    type: "json_schema",
    json_schema: { name: "answer", strict: true, schema: { type: "object" } },
  });
});

test("tools may be functions alone", () => {
  const wrapped = { type: "function", function: { name: "f" } };
  expect(readTools('[{"name":"f"}]')).toEqual([wrapped]);
  expect(readTools(JSON.stringify([wrapped]))).toEqual([wrapped]);
  expect(readTools("")).toEqual([]);
  expect(readTools('[{"parameters":{}}]')).toMatch(/no name/);
  expect(readTools("[")).toEqual(expect.any(String));
});

test("settings of another page fall back where they are wrong", () => {
  expect(restore(null)).toEqual(DEFAULTS);
  expect(restore({ temperature: 9, top_k: 40, stop: ["a", 1, ""], effort: "huge", format: "json_object", system: 5 })).toEqual({
    ...DEFAULTS,
    top_k: 40,
    stop: ["a"],
    format: "json_object",
  });
});
