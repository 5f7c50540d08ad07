import { expect, test } from "@playwright/test";

import { DEFAULTS } from "../../src/lib/settings.ts";
import { base64, readFile, unbase64, write, type Bundle } from "../../src/lib/transfer.ts";

const bundle: Bundle = {
  conversation: {
    id: "c", title: "Cats", named: true, created: 1, updated: 2, model: "m",
    chosen: { "": "q", q: "a" }, settings: { ...DEFAULTS, temperature: 0.5 },
  },
  nodes: [
    { id: "q", conversation: "c", parent: null, role: "user", text: "what?", created: 1,
      attachments: [{ id: "f", kind: "image", name: "cat.png", type: "image/png", size: 3 }] },
    { id: "a", conversation: "c", parent: "q", role: "assistant", text: "a cat", created: 2, ending: "stop", model: "m",
      thinking: "hm", calls: [{ id: "1", name: "f", arguments: "{}" }], usage: { prompt: 3, completion: 4, rate: 5 } },
  ],
  files: [{ id: "f", conversation: "c", blob: new Blob([Uint8Array.of(1, 2, 255)], { type: "image/png" }) }],
};

let n = 0;
const newId = () => `new${++n}`;
const parsed = async () => JSON.parse(await write([bundle], new Date(0))) as { conversations: Record<string, unknown>[] };
const reread = (file: unknown) => readFile(JSON.stringify(file), newId);

test("what is written comes back, under new ids", async () => {
  const [back] = readFile(await write([bundle], new Date(0)), newId);
  const { conversation, nodes, files } = back!;
  expect(conversation).toMatchObject({ title: "Cats", named: true, created: 1, updated: 2, model: "m", settings: bundle.conversation.settings });
  const [q, a] = nodes;
  expect(conversation.chosen).toEqual({ "": q!.id, [q!.id]: a!.id });
  expect(a).toMatchObject({ parent: q!.id, text: "a cat", thinking: "hm", ending: "stop", usage: { prompt: 3, completion: 4, rate: 5 } });
  expect(q!.attachments?.[0]).toMatchObject({ id: files[0]!.id, kind: "image", name: "cat.png", size: 3 });
  expect(new Uint8Array(await files[0]!.blob.arrayBuffer())).toEqual(Uint8Array.of(1, 2, 255));
  expect([conversation.id, q!.id, a!.id, files[0]!.id].every((id) => id.startsWith("new"))).toBe(true);
  expect(nodes.every((node) => node.conversation === conversation.id)).toBe(true);
});

test("base64 there and back, of any length", () => {
  for (const length of [0, 1, 2, 3, 0x8000, 0x8001]) {
    const bytes = Uint8Array.from({ length }, (_, i) => (i * 7) & 255);
    expect(unbase64(base64(bytes))).toEqual(bytes);
  }
});

test("files that are not ours are refused with a reason", async () => {
  expect(() => readFile("x", newId)).toThrow(/no JSON/);
  expect(() => reread([])).toThrow(/not an object/);
  expect(() => reread({ format: "other" })).toThrow(/no conversations/);
  expect(() => reread({ format: "lapidary-conversations", version: 9 })).toThrow(/version 9/);
  const missing = await parsed();
  missing.conversations[0]!["nodes"] = [{ id: "x", parent: "nobody", role: "user" }];
  expect(() => reread(missing)).toThrow(/conversation 1: .*not in the file/);
  const role = await parsed();
  role.conversations[0]!["nodes"] = [{ id: "x", parent: null, role: "system" }];
  expect(() => reread(role)).toThrow(/role system/);
});

test("a file of a type that a browser might run is refused", async () => {
  for (const type of ["text/html", "image/svg+xml", "application/javascript", ""]) {
    const file = await parsed();
    (file.conversations[0]!["files"] as Record<string, unknown>[])[0]!["type"] = type;
    expect(() => reread(file), type).toThrow(/type/);
  }
});

test("a file from which any field is taken is read or refused, never half read", async () => {
  const fields = (value: unknown, path: string[] = []): string[][] =>
    typeof value === "object" && value !== null
      ? Object.entries(value).flatMap(([key, inner]) => [[...path, key], ...fields(inner, [...path, key])])
      : [];
  for (const path of fields(await parsed())) {
    for (const put of [undefined, null, 7, "x", [], {}]) {
      const file = (await parsed()) as unknown as Record<string, unknown>;
      let at: Record<string, unknown> = file;
      for (const key of path.slice(0, -1)) at = at[key] as Record<string, unknown>;
      at[path.at(-1)!] = put;
      let back: Bundle[];
      try {
        back = reread(file);
      } catch (e) {
        expect((e as Error).message, path.join(".")).not.toMatch(/undefined|TypeError|is not a function/);
        continue;
      }
      for (const { nodes } of back) for (const node of nodes) expect(typeof node.text).toBe("string");
    }
  }
});
