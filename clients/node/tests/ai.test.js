// The AI SDK, through its provider for servers that speak OpenAI's API.

import assert from "node:assert/strict";
import { test } from "node:test";

import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { APICallError, embedMany, generateText, jsonSchema, Output, stepCountIs, streamText, tool } from "ai";

import {
  ENDLESS, KEYED, MODEL, ORDER, PEBBLE, RESULT, STORY, TOLD, TOOLS, WEATHER, isOrder, left, limited, star,
} from "./asked.js";

const connect = (url) =>
  createOpenAICompatible({
    name: "lapidary", baseURL: `${url}/v1`, includeUsage: true, supportsStructuredOutputs: true,
    fetch: limited,
  });
const provider = connect(PEBBLE);
const greedy = { model: provider(MODEL), temperature: 0, maxRetries: 0 };

test("text, and a stream that adds up", async () => {
  const whole = await generateText({ ...greedy, prompt: STORY, maxOutputTokens: 40 });
  assert.equal(whole.finishReason, "length");
  const stream = streamText({ ...greedy, prompt: STORY, maxOutputTokens: 40 });
  let text = "";
  for await (const part of stream.textStream) text += part;
  assert.equal(text, whole.text);
  assert.equal((await stream.usage).outputTokens, 40);
});

for (const streamed of [false, true]) {
  test(`the library runs tools${streamed ? ", streamed" : ""}`, async () => {
    const asked = [];
    const get_weather = tool({
      description: TOOLS[1].description,
      inputSchema: jsonSchema(TOOLS[1].parameters),
      execute: async (input) => {
        asked.push(input);
        return RESULT;
      },
    });
    const ask = { ...greedy, prompt: WEATHER, tools: { get_weather }, stopWhen: stepCountIs(3) };
    const text = streamed ? await streamText(ask).text : (await generateText(ask)).text;
    assert.deepEqual(asked, [{ city: "Auckland" }]);
    assert.equal(text, TOLD);
  });
}

test("required arguments and answers are true to a schema", async () => {
  const order = tool({ description: "Order.", inputSchema: jsonSchema(ORDER) });
  const called = await generateText({ ...greedy, prompt: STORY, tools: { order }, toolChoice: "required" });
  assert.ok(called.toolCalls.length > 0 && called.toolCalls.every((call) => isOrder(call.input)));
  const said = await generateText({
    ...greedy, prompt: STORY, output: Output.object({ schema: jsonSchema(ORDER) }),
  });
  assert.ok(isOrder(said.output));
});

test("an image, and embeddings", async () => {
  const content = [
    { type: "image", image: star, mediaType: "image/png" },
    { type: "text", text: "Describe this image." },
  ];
  const seen = await generateText({ ...greedy, messages: [{ role: "user", content }] });
  assert.match(seen.text, /star/);
  const { embeddings } = await embedMany({
    model: provider.textEmbeddingModel(MODEL), values: ["a red fox", "seven"],
  });
  assert.ok(embeddings.length === 2 && embeddings[0].length > 100);
});

test("errors say their status", async () => {
  const status = (code) => (e) => APICallError.isInstance(e) && e.statusCode === code;
  await assert.rejects(generateText({ ...greedy, prompt: "Hi", temperature: -1 }), status(400));
  await assert.rejects(generateText({ ...greedy, model: provider("nobody"), prompt: "Hi" }), status(404));
  await assert.rejects(generateText({ ...greedy, model: connect(KEYED)(MODEL), prompt: "Hi" }), status(401));
});

test("what is left is stopped", () =>
  left(async () => {
    const leaving = new AbortController();
    const stream = streamText({
      ...greedy, prompt: STORY, abortSignal: leaving.signal,
      output: Output.object({ schema: jsonSchema(ENDLESS) }),
    });
    const kinds = [];
    for await (const part of stream.fullStream) {
      kinds.push(part.type);
      if (part.type === "text-delta") leaving.abort();
    }
    assert.ok(kinds.includes("text-delta") && kinds.includes("abort"), kinds.join());
  }));
