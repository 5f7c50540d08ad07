// @anthropic-ai/sdk.

import assert from "node:assert/strict";
import { test } from "node:test";

import Anthropic from "@anthropic-ai/sdk";

import {
  ENDLESS, KEY, KEYED, LIMIT, MODEL, ORDER, PEBBLE, RESULT, STORY, TOLD, TOOLS, WEATHER, isOrder, left, star, user,
} from "./asked.js";

const connect = (baseURL, apiKey) => new Anthropic({ baseURL, apiKey, maxRetries: 0, timeout: LIMIT });
const client = connect(PEBBLE, "none");
const tools = TOOLS.map(({ parameters, ...tool }) => ({ ...tool, input_schema: parameters }));
const greedy = { model: MODEL, temperature: 0, max_tokens: 200 };

test("text, and a stream that adds up", async () => {
  const whole = await client.messages.create({ ...greedy, messages: user(STORY), max_tokens: 40 });
  assert.equal(whole.stop_reason, "max_tokens");
  const stream = client.messages.stream({ ...greedy, messages: user(STORY), max_tokens: 40 });
  let text = "";
  stream.on("text", (part) => (text += part));
  const final = await stream.finalMessage();
  assert.equal(text, whole.content[0].text);
  assert.equal(final.usage.output_tokens, 40);
});

for (const streamed of [false, true]) {
  test(`tools, there and back${streamed ? ", streamed" : ""}`, async () => {
    const ask = { ...greedy, tools, messages: user(WEATHER) };
    const first = streamed
      ? await client.messages.stream(ask).finalMessage()
      : await client.messages.create(ask);
    assert.equal(first.stop_reason, "tool_use");
    const call = first.content.find((block) => block.type === "tool_use");
    assert.deepEqual([call.name, call.input], ["get_weather", { city: "Auckland" }]);
    const result = { type: "tool_result", tool_use_id: call.id, content: RESULT };
    const messages = [
      ...user(WEATHER), { role: "assistant", content: first.content }, { role: "user", content: [result] },
    ];
    const last = await client.messages.create({ ...ask, messages });
    assert.equal(last.content[0].text, TOLD);
  });
}

test("required arguments and answers are true to a schema", async () => {
  const called = await client.messages.create({
    ...greedy, messages: user(STORY), tool_choice: { type: "any" },
    tools: [{ name: "order", input_schema: ORDER }],
  });
  const calls = called.content.filter((block) => block.type === "tool_use");
  assert.ok(calls.length > 0 && calls.every((call) => isOrder(call.input)));
  const said = await client.messages.create({
    ...greedy, messages: user(STORY), output_config: { format: { type: "json_schema", schema: ORDER } },
  });
  assert.ok(isOrder(JSON.parse(said.content[0].text)));
});

test("an image, and a count", async () => {
  const source = { type: "base64", media_type: "image/png", data: star };
  const messages = user([{ type: "image", source }, { type: "text", text: "Describe this image." }]);
  const said = await client.messages.create({ ...greedy, messages });
  assert.match(said.content[0].text, /yellow.*star/);
  const counted = await client.messages.countTokens({ model: MODEL, messages });
  assert.equal(counted.input_tokens, said.usage.input_tokens + said.usage.cache_read_input_tokens);
});

test("models", async () => {
  const names = [];
  for await (const model of client.models.list()) names.push(model.id);
  assert.deepEqual(names, [MODEL]);
  assert.equal((await client.models.retrieve(MODEL)).type, "model");
});

test("errors have their types", async () => {
  const ask = { ...greedy, messages: user("Hi") };
  const wrong = client.messages.create({ ...ask, max_tokens: 0 });
  await assert.rejects(wrong, (e) => e instanceof Anthropic.BadRequestError && e.error.error.param === "max_tokens");
  await assert.rejects(client.messages.create({ ...ask, model: "claude" }), Anthropic.NotFoundError);
  await assert.rejects(connect(KEYED, "wrong").messages.create(ask), Anthropic.AuthenticationError);
  assert.ok(await connect(KEYED, KEY).messages.create(ask));
});

test("what is left is stopped", () =>
  left(async () => {
    const stream = await client.messages.create({
      model: MODEL, max_tokens: 1900, messages: user(STORY), stream: true,
      output_config: { format: { type: "json_schema", schema: ENDLESS } },
    });
    for await (const event of stream) if (event.type === "content_block_delta") break;
  }));
