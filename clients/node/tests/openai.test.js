// openai-node.

import assert from "node:assert/strict";
import { test } from "node:test";

import OpenAI from "openai";
import { zodResponseFormat } from "openai/helpers/zod";
import { z } from "zod";

import {
  ENDLESS, KEY, KEYED, LIMIT, MODEL, ORDER, PEBBLE, RESULT, STORY, TOLD, TOOLS, WEATHER, begun, isOrder, left, star,
  user,
} from "./asked.js";

const connect = (url, apiKey) =>
  new OpenAI({ baseURL: `${url}/v1`, apiKey, maxRetries: 0, timeout: LIMIT });
const client = connect(PEBBLE, "none");
const tools = TOOLS.map((tool) => ({ type: "function", function: tool }));
const greedy = { model: MODEL, temperature: 0 };

test("text", async () => {
  const answer = await client.chat.completions.create({ ...greedy, messages: user("What is 12 + 30?") });
  assert.match(answer.choices[0].message.content, /42/);
  assert.equal(answer.choices[0].finish_reason, "stop");
});

test("a stream adds up, with its usage", async () => {
  const ask = { ...greedy, messages: user(STORY), max_tokens: 40 };
  const whole = await client.chat.completions.create(ask);
  const stream = client.chat.completions.stream({ ...ask, stream_options: { include_usage: true } });
  let text = "";
  for await (const chunk of stream) text += chunk.choices[0]?.delta.content ?? "";
  assert.equal(text, whole.choices[0].message.content);
  const usage = await stream.totalUsage();
  assert.equal(usage.completion_tokens, 40);
});

for (const streamed of [false, true]) {
  test(`tools, there and back${streamed ? ", streamed" : ""}`, async () => {
    const messages = user(WEATHER);
    const ask = { ...greedy, messages, tools };
    const first = streamed
      ? await client.chat.completions.stream(ask).finalChatCompletion()
      : await client.chat.completions.create(ask);
    const { message, finish_reason } = first.choices[0];
    assert.equal(finish_reason, "tool_calls");
    const [call] = message.tool_calls;
    assert.equal(call.function.name, "get_weather");
    assert.deepEqual(JSON.parse(call.function.arguments), { city: "Auckland" });
    messages.push(message, { role: "tool", tool_call_id: call.id, content: RESULT });
    const last = await client.chat.completions.create(ask);
    assert.equal(last.choices[0].message.content, TOLD);
  });
}

test("the library runs tools", async () => {
  const get_weather = { ...TOOLS[1], parse: JSON.parse, function: () => RESULT };
  const runner = client.chat.completions.runTools({
    ...greedy, messages: user(WEATHER), tools: [{ type: "function", function: get_weather }],
  });
  assert.equal(await runner.finalContent(), TOLD);
});

test("required arguments are true to their schema", async () => {
  const order = { type: "function", function: { name: "order", parameters: ORDER } };
  for (let seed = 0; seed < 4; seed++) {
    const answer = await client.chat.completions.create({
      model: MODEL, messages: user(STORY), tools: [order], tool_choice: "required", temperature: 1, seed,
    });
    const calls = answer.choices[0].message.tool_calls;
    assert.ok(calls.length > 0);
    for (const call of calls) assert.ok(isOrder(JSON.parse(call.function.arguments)));
  }
});

test("schemas, and zod", async () => {
  const answer = await client.chat.completions.create({
    ...greedy, messages: user(STORY),
    response_format: { type: "json_schema", json_schema: { name: "order", schema: ORDER, strict: true } },
  });
  assert.ok(isOrder(JSON.parse(answer.choices[0].message.content)));
  const animal = z.object({ kind: z.enum(["fox", "bear"]), tame: z.boolean() });
  const parsed = await client.chat.completions.parse({
    ...greedy, messages: user(STORY), response_format: zodResponseFormat(animal, "animal"),
  });
  animal.parse(parsed.choices[0].message.parsed);
});

test("an image", async () => {
  const image = { type: "image_url", image_url: { url: `data:image/png;base64,${star}` } };
  const content = [image, { type: "text", text: "Describe this image." }];
  const answer = await client.chat.completions.create({ ...greedy, messages: user(content) });
  assert.match(answer.choices[0].message.content, /yellow.*star/);
});

test("embeddings", async () => {
  const { data } = await client.embeddings.create({ model: MODEL, input: ["a red fox", "seven"] });
  const plain = await client.embeddings.create({
    model: MODEL, input: "a red fox", encoding_format: "float",
  });
  assert.equal(data.length, 2);
  const far = plain.data[0].embedding.map((x, i) => Math.abs(x - data[0].embedding[i]));
  assert.ok(far.length > 100 && Math.max(...far) < 1e-3);
});

test("models", async () => {
  const names = [];
  for await (const model of client.models.list()) names.push(model.id);
  assert.deepEqual(names, [MODEL]);
  assert.equal((await client.models.retrieve(MODEL)).id, MODEL);
  await assert.rejects(client.models.retrieve("nobody"), OpenAI.NotFoundError);
});

test("responses, and what was said before", async () => {
  const first = await client.responses.create({ ...greedy, input: "What is 12 + 30?" });
  assert.match(first.output_text, /42/);
  const stream = client.responses.stream({
    ...greedy, input: "What is 3 + 4?", previous_response_id: first.id,
  });
  let text = "";
  for await (const event of stream) if (event.type === "response.output_text.delta") text += event.delta;
  const second = await stream.finalResponse();
  assert.equal(second.output_text, text);
  assert.equal(second.previous_response_id, first.id);
  assert.ok(second.usage.input_tokens > first.usage.total_tokens);
});

test("responses with tools", async () => {
  const ask = { ...greedy, tools: TOOLS.map((tool) => ({ type: "function", strict: false, ...tool })) };
  const first = await client.responses.stream({ ...ask, input: WEATHER }).finalResponse();
  const call = first.output.find((item) => item.type === "function_call");
  assert.deepEqual(JSON.parse(call.arguments), { city: "Auckland" });
  const result = { type: "function_call_output", call_id: call.call_id, output: RESULT };
  const second = await client.responses.create({
    ...ask, input: [result], previous_response_id: first.id,
  });
  assert.equal(second.output_text, TOLD);
});

test("errors have their types", async () => {
  const ask = { model: MODEL, messages: user("Hi") };
  for (const stream of [false, true]) {
    const wrong = client.chat.completions.create({ ...ask, temperature: -1, stream });
    await assert.rejects(wrong, (e) => e instanceof OpenAI.BadRequestError && e.param === "temperature");
  }
  const lost = client.chat.completions.create({ ...ask, model: "nobody" });
  await assert.rejects(lost, (e) => e instanceof OpenAI.NotFoundError && e.code === "model_not_found");
  await assert.rejects(connect(KEYED, "wrong").models.list(), OpenAI.AuthenticationError);
  assert.ok(await connect(KEYED, KEY).models.list());
});

test("what is left is stopped", async () => {
  const ask = {
    model: MODEL, messages: user(STORY),
    response_format: { type: "json_schema", json_schema: { name: "x", schema: ENDLESS } },
  };
  await left(async () => {
    const stream = await client.chat.completions.create({ ...ask, stream: true });
    for await (const _ of stream) break;
  });
  await left(async () => {
    const gone = new AbortController();
    const whole = client.chat.completions.create(ask, { signal: gone.signal });
    const ended = assert.rejects(whole, OpenAI.APIUserAbortError);
    await begun();
    gone.abort();
    await ended;
  });
  const next = await client.chat.completions.create({ ...greedy, messages: user("What is 12 + 30?") });
  assert.match(next.choices[0].message.content, /42/);
});
