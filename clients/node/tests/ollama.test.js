// ollama-js.

import assert from "node:assert/strict";
import { test } from "node:test";

import { Ollama } from "ollama";

import {
  ENDLESS, KEY, KEYED, MODEL, ORDER, PEBBLE, RESULT, STORY, TOLD, TOOLS, WEATHER, isOrder, left, limited, star, user,
} from "./asked.js";

const client = new Ollama({ host: PEBBLE, fetch: limited });
const options = { temperature: 0, num_predict: 40 };
const tools = TOOLS.map((tool) => ({ type: "function", function: tool }));

test("text, and a stream that adds up", async () => {
  const ask = { model: MODEL, messages: user(STORY), options };
  const whole = await client.chat(ask);
  assert.equal(whole.eval_count, 40);
  let text = "";
  let last;
  for await (const part of await client.chat({ ...ask, stream: true })) {
    text += part.message.content;
    last = part;
  }
  assert.equal(text, whole.message.content);
  assert.deepEqual([last.done, last.done_reason, last.eval_count], [true, "length", 40]);
});

test("tools, there and back", async () => {
  const messages = user(WEATHER);
  const { message } = await client.chat({ model: MODEL, messages, tools, options });
  const [call] = message.tool_calls;
  assert.deepEqual([call.function.name, call.function.arguments], ["get_weather", { city: "Auckland" }]);
  messages.push(message, { role: "tool", tool_name: "get_weather", content: RESULT });
  const last = await client.chat({ model: MODEL, messages, tools, options });
  assert.equal(last.message.content, TOLD);
});

test("a schema, an image, embeddings", async () => {
  const held = await client.chat({ model: MODEL, messages: user(STORY), format: ORDER, options: { seed: 1 } });
  assert.ok(isOrder(JSON.parse(held.message.content)));
  const seen = await client.generate({ model: MODEL, prompt: "Describe this image.", images: [star], options });
  assert.match(seen.response, /star/);
  const { embeddings } = await client.embed({ model: MODEL, input: ["a red fox", "seven"] });
  assert.ok(embeddings.length === 2 && embeddings[0].length > 100);
});

test("models", async () => {
  const { models } = await client.list();
  assert.deepEqual(models.map((model) => model.model.replace(":latest", "")), [MODEL]);
  assert.ok((await client.show({ model: MODEL })).capabilities.includes("tools"));
  assert.ok((await client.version()).version);
});

test("errors say their status", async () => {
  const ask = { model: "nobody", messages: user("Hi") };
  await assert.rejects(client.chat(ask), (e) => e.status_code === 404);
  const wrong = { ...ask, model: MODEL, options: { temperature: -1 } };
  await assert.rejects(client.chat(wrong), (e) => e.status_code === 400);
  await assert.rejects(new Ollama({ host: KEYED, fetch: limited }).list(), (e) => e.status_code === 401);
  const known = new Ollama({ host: KEYED, fetch: limited, headers: { authorization: `Bearer ${KEY}` } });
  assert.ok(await known.list());
});

test("what is left is stopped", () =>
  left(async () => {
    const stream = await client.chat({ model: MODEL, messages: user(STORY), format: ENDLESS, stream: true });
    await assert.rejects(async () => {
      for await (const _ of stream) stream.abort();
    }, { name: "AbortError" });
  }));
