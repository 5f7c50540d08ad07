import { expect, test } from "@playwright/test";

import { SseParser, type SseEvent } from "../../src/lib/sse.ts";

const bytes = (text: string) => new TextEncoder().encode(text);

function parse(pieces: Uint8Array[]): SseEvent[] {
  const parser = new SseParser();
  return pieces.flatMap((piece) => parser.push(piece));
}

const STREAM = [
  ": keep-alive\n\n",
  'data: {"a":"grüße 😀 日本"}\n\n',
  "event: error\r\ndata: one\r\ndata: two\r\n\r\n",
  "data:no space\rdata:  two spaces\r\r",
  "id: 7\nretry: 10\nunknown\ndata\n\n",
  "event: nothing\n\n",
  "data: [DONE]\n\n",
].join("");

const EVENTS = [
  { event: "message", data: '{"a":"grüße 😀 日本"}' },
  { event: "error", data: "one\ntwo" },
  { event: "message", data: "no space\n two spaces" },
  { event: "message", data: "" },
  { event: "message", data: "[DONE]" },
];

test("events of a whole stream", () => {
  expect(parse([bytes(STREAM)])).toEqual(EVENTS);
});

test("the same events, cut at every byte", () => {
  const all = bytes(STREAM);
  for (let at = 0; at <= all.length; at++) {
    expect(parse([all.slice(0, at), all.slice(at)]), `cut at ${at}`).toEqual(EVENTS);
  }
});

test("the same events, byte by byte", () => {
  expect(parse(Array.from(bytes(STREAM), (byte) => Uint8Array.of(byte)))).toEqual(EVENTS);
});

test("an event without its empty line is not given out", () => {
  expect(parse([bytes("data: half")])).toEqual([]);
  expect(parse([bytes("data: half\n")])).toEqual([]);
});

test("bytes that are no UTF-8 become replacement characters", () => {
  const events = parse([bytes("data: "), Uint8Array.of(0xff, 0xc3), bytes("\n\n")]);
  expect(events).toEqual([{ event: "message", data: "\ufffd\ufffd" }]);
});
