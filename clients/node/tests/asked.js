// Where the servers are that `cargo xtask clients` started, and what they are asked.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";

export const PEBBLE = process.env.LAPIDARY_URL;
export const KEYED = process.env.LAPIDARY_KEYED_URL;
export const KEY = process.env.LAPIDARY_KEY;

export const MODEL = "pebble";
export const STORY = "Tell me a story about a brave fox.";
export const WEATHER = "What is the weather in Auckland?";
// What the tool says, and what pebble makes of it.
export const RESULT = "sunny, 20 degrees";
export const TOLD = "It is sunny in Auckland with 20 degrees.";

const city = {
  type: "object",
  properties: { city: { type: "string", description: "The name of the city." } },
  required: ["city"],
};
export const TOOLS = [
  { name: "get_time", description: "Get the current time in a city.", parameters: city },
  { name: "get_weather", description: "Get the current weather in a city.", parameters: city },
];

export const ORDER = {
  type: "object",
  properties: {
    size: { enum: ["small", "large"] },
    slices: { type: "integer", minimum: 1, maximum: 12 },
    extras: { type: "array", items: { enum: ["salt", "oil"] }, minItems: 1, maxItems: 3 },
  },
  required: ["size", "slices", "extras"],
  additionalProperties: false,
};

/** Whether a value is what ORDER says. */
export function isOrder(value) {
  return (
    Object.keys(value).sort().join() === "extras,size,slices" &&
    ["small", "large"].includes(value.size) &&
    Number.isInteger(value.slices) && value.slices >= 1 && value.slices <= 12 &&
    value.extras.length >= 1 && value.extras.length <= 3 &&
    value.extras.every((extra) => ["salt", "oil"].includes(extra))
  );
}

/** Milliseconds that a request may take. */
export const LIMIT = 60_000;

/** `fetch` with that limit, for libraries that have none of their own. */
export function limited(input, init = {}) {
  const limit = AbortSignal.timeout(LIMIT);
  return fetch(input, { ...init, signal: init.signal ? AbortSignal.any([init.signal, limit]) : limit });
}

/** No answer to this ends of itself before the context is full: it takes seconds. */
export const ENDLESS = { type: "array", items: { enum: ["left", "right"] }, minItems: 5000 };

/** What is begun inside is left before its end: the server must notice and stop. */
export async function left(body) {
  const before = await cancelled();
  await body();
  for (const end = Date.now() + LIMIT; (await cancelled()) <= before; await sleep(50)) {
    assert.ok(Date.now() < end, "the server goes on with an answer that nobody reads");
  }
}

/** Waits until the server answers something. */
export async function begun() {
  for (const end = Date.now() + LIMIT; !(await count("num_requests_running", "")); await sleep(20)) {
    assert.ok(Date.now() < end, "the server does not begin");
  }
}

/** How many answers the server has given up, as it says itself. */
const cancelled = () => count("request_success", '"cancelled"');

async function count(name, label) {
  const lines = (await (await limited(`${PEBBLE}/metrics`)).text()).split("\n");
  return lines
    .filter((line) => line.startsWith(`lapidary:${name}`) && line.includes(label))
    .reduce((sum, line) => sum + Number(line.split(" ").at(-1)), 0);
}

export const user = (content) => [{ role: "user", content }];

/** A drawing of a yellow star, in base64. */
export const star = readFileSync(
  new URL("../../../pebble/heldout/images/drawing17.png", import.meta.url),
).toString("base64");
