// The AI SDK, through the providers that OpenAI's and Anthropic's own servers are asked with.

import assert from "node:assert/strict";
import { test } from "node:test";

import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { embedMany, generateText, jsonSchema, Output, stepCountIs, streamText, tool } from "ai";

import {
  MODEL, ORDER, PEBBLE, RESULT, STORY, TOLD, TOOLS, WEATHER, isOrder, limited, star,
} from "./asked.js";

const settings = { baseURL: `${PEBBLE}/v1`, apiKey: "none", fetch: limited };
const anthropic = createAnthropic(settings);
const openai = createOpenAI(settings);
const models = {
  messages: anthropic(MODEL), responses: openai.responses(MODEL), chat: openai.chat(MODEL),
};

for (const [name, model] of Object.entries(models)) {
  const greedy = { model, temperature: 0, maxRetries: 0 };

  test(`${name}: text, and a stream that adds up`, async () => {
    const whole = await generateText({ ...greedy, prompt: STORY, maxOutputTokens: 40 });
    assert.equal(whole.finishReason, "length");
    const stream = streamText({ ...greedy, prompt: STORY, maxOutputTokens: 40 });
    let text = "";
    for await (const part of stream.textStream) text += part;
    assert.equal(text, whole.text);
    assert.equal((await stream.usage).outputTokens, 40);
  });

  for (const streamed of [false, true]) {
    test(`${name}: the library runs tools${streamed ? ", streamed" : ""}`, async () => {
      const asked = [];
      const get_weather = tool({
        description: TOOLS[1].description,
        inputSchema: jsonSchema(TOOLS[1].parameters),
        execute: async (input) => {
          asked.push(input);
          return RESULT;
        },
      });
      const ask = {
        ...greedy, prompt: WEATHER, tools: { get_weather }, stopWhen: stepCountIs(3), maxOutputTokens: 200,
      };
      const text = streamed ? await streamText(ask).text : (await generateText(ask)).text;
      assert.deepEqual(asked, [{ city: "Auckland" }]);
      assert.equal(text, TOLD);
    });
  }

  test(`${name}: required arguments and answers are true to a schema`, async () => {
    const limit = { maxOutputTokens: 900 };
    const order = tool({ description: "Order.", inputSchema: jsonSchema(ORDER) });
    const called = await generateText({
      ...greedy, ...limit, prompt: STORY, tools: { order }, toolChoice: "required",
    });
    assert.ok(called.toolCalls.length > 0 && called.toolCalls.every((call) => isOrder(call.input)));
    const said = await generateText({
      ...greedy, ...limit, prompt: STORY, output: Output.object({ schema: jsonSchema(ORDER) }),
    });
    assert.ok(isOrder(said.output));
  });

  test(`${name}: an image`, async () => {
    const content = [
      { type: "image", image: star, mediaType: "image/png" },
      { type: "text", text: "Describe this image." },
    ];
    const seen = await generateText({
      ...greedy, messages: [{ role: "user", content }], maxOutputTokens: 60,
    });
    assert.match(seen.text, /star/);
  });
}

test("a thought is told apart", async () => {
  const thought = await generateText({
    model: models.messages, maxRetries: 0, prompt: "What is 12 + 30?", maxOutputTokens: 400,
    providerOptions: { anthropic: { thinking: { type: "enabled", budgetTokens: 100 } } },
  });
  assert.ok(!thought.text.includes("<|"), thought.text);
  assert.ok(thought.reasoningText === undefined || !thought.text.includes(thought.reasoningText));
});

test("embeddings", async () => {
  const { embeddings } = await embedMany({
    model: openai.embedding(MODEL), values: ["a red fox", "seven"], maxRetries: 0,
  });
  assert.ok(embeddings.length === 2 && embeddings[0].length > 100);
});
