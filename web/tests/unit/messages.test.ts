import { expect, test } from "@playwright/test";

import { fenced, leftOut, messagesOf } from "../../src/lib/messages.ts";
import type { Node } from "../../src/lib/tree.ts";
import { mono, wav } from "../../src/lib/wav.ts";

let n = 0;
const node = (role: Node["role"], rest: Partial<Node>): Node => ({
  id: String(++n), conversation: "c", parent: null, role, text: "", created: n, ...rest,
});
const load = async () => "DATA";
const all = { image: true, audio: true };
const image = { id: "i", kind: "image" as const, name: "a.png", type: "image/png", size: 3 };
const audio = { id: "s", kind: "audio" as const, name: "a.wav", type: "audio/wav", size: 3 };

test("text alone is a string, media are parts before it", async () => {
  const line = [node("user", { text: "what?", attachments: [image, audio] }), node("assistant", { text: "a cat" }), node("user", { text: "sure?" })];
  expect(await messagesOf(line, "Be brief.", all, load)).toEqual([
    { role: "system", content: "Be brief." },
    {
      role: "user",
      content: [
        { type: "image_url", image_url: { url: "data:image/png;base64,DATA" } },
        { type: "input_audio", input_audio: { data: "DATA", format: "wav" } },
        { type: "text", text: "what?" },
      ],
    },
    { role: "assistant", content: "a cat" },
    { role: "user", content: "sure?" },
  ]);
});

test("what a model can't take is left out, and counted", async () => {
  const line = [node("user", { text: "what?", attachments: [image, audio] })];
  const takes = { image: false, audio: false };
  expect(await messagesOf(line, "", takes, load)).toEqual([{ role: "user", content: "what?" }]);
  expect(leftOut(line, takes)).toEqual({ images: 1, audio: 1 });
  expect(leftOut(line, all)).toEqual({ images: 0, audio: 0 });
});

test("answers that hold nothing leave no two user messages in a row", async () => {
  const line = [node("user", { text: "one" }), node("assistant", { ending: "error" }), node("user", { text: "two" })];
  expect(await messagesOf(line, "", all, load)).toEqual([{ role: "user", content: "one\n\ntwo" }]);
});

test("calls and results go back with their ids", async () => {
  const calls = [{ id: "c1", name: "f", arguments: "{}" }, { id: "c2", name: "g", arguments: "{}" }];
  const results = calls.map(({ id, name }) => ({ id, name, content: `of ${name}` }));
  const line = [node("user", { text: "go" }), node("assistant", { calls }), node("tool", { results })];
  const [, answer, first, second] = await messagesOf(line, "", all, load);
  expect(answer?.tool_calls?.map((call) => call.function.name)).toEqual(["f", "g"]);
  expect(first).toEqual({ role: "tool", tool_call_id: "c1", content: "of f" });
  expect(second).toEqual({ role: "tool", tool_call_id: "c2", content: "of g" });
});

test("a text file can't end its own fence", () => {
  expect(fenced("a.md", "x\n```\ny")).toBe("a.md:\n````md\nx\n```\ny\n````");
});

test("a WAV file says what it holds", () => {
  const bytes = wav(mono([Float32Array.of(1, -1, 0), Float32Array.of(1, -1, 2)]), 16000);
  const view = new DataView(bytes.buffer);
  expect(new TextDecoder().decode(bytes.slice(0, 4))).toBe("RIFF");
  expect(view.getUint32(4, true)).toBe(bytes.length - 8);
  expect(view.getUint32(24, true)).toBe(16000);
  expect(view.getUint32(40, true)).toBe(6);
  expect([44, 46, 48].map((at) => view.getInt16(at, true))).toEqual([32767, -32767, 32767]);
});
