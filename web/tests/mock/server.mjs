// A server with the routes that the page uses, which answers as a test tells it to.
//
//   node tests/mock/server.mjs [PORT]    serves dist/ with a few canned answers, to look at the page

import { readFileSync } from "node:fs";
import { createServer } from "node:http";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const web = join(dirname(fileURLToPath(import.meta.url)), "../..");
const csp = readFileSync(join(web, "csp.txt"), "utf8").trim();

/** The list that the server embeds, read as the server would. */
function files() {
  const rows = readFileSync(join(web, "dist/files.rs"), "utf8").matchAll(
    /path: "([^"]+)",\s*content_type: "([^"]+)",\s*plain: include_bytes!\("[^"]+"\),\s*brotli: Some\(include_bytes!\("([^"]+)"\)\)/g,
  );
  const found = new Map([...rows].map(([, path, type, small]) => [path, { type, bytes: readFileSync(join(web, "dist", small)) }]));
  found.set("/", found.get("/index.html"));
  return found;
}

export const MODELS = [
  {
    id: "gemma-4-e2b",
    object: "model",
    created: 1_780_000_000,
    owned_by: "lapidary",
    lapidary: { state: "loaded", context_length: 8192, memory_bytes: 3_435_973_837, modalities: ["text", "image", "audio"] },
  },
  {
    id: "gemma-3-270m",
    object: "model",
    created: 1_780_000_000,
    owned_by: "lapidary",
    lapidary: { state: "unloaded", context_length: 32768, memory_bytes: 343_932_928, modalities: ["text"] },
  },
  {
    id: "gemma-4-31b",
    object: "model",
    created: 1_780_000_000,
    owned_by: "lapidary",
    lapidary: { state: "loading", context_length: 131072, memory_bytes: 18_790_481_920, modalities: ["text", "image"] },
  },
];

/** One answer, as its handler writes it. */
class Stream {
  constructor(response, body) {
    this.response = response;
    this.body = body;
    this.closed = new Promise((resolve) => response.on("close", resolve));
    this.gone = false;
    void this.closed.then(() => (this.gone = true));
    this.begun = false;
  }

  raw(text) {
    if (!this.begun) {
      this.begun = true;
      this.response.writeHead(200, { "content-type": "text/event-stream", "cache-control": "no-store", "x-request-id": "req-mock" });
    }
    if (!this.gone) this.response.write(text);
  }

  chunk(rest) {
    this.raw(`data: ${JSON.stringify({ id: "chatcmpl-1", object: "chat.completion.chunk", created: 1, model: this.body.model, ...rest })}\n\n`);
  }

  delta(delta, finish_reason = null) {
    this.chunk({ choices: [{ index: 0, delta, finish_reason }] });
  }

  async text(text, ms = 0, size = 6) {
    for (let at = 0; at < text.length && !this.gone; at += size) {
      this.delta({ content: text.slice(at, at + size) });
      if (ms) await sleep(ms);
    }
  }

  end(reason = "stop", usage = {}) {
    this.delta({}, reason);
    const { prompt = 21, completion = 42, cached = 16 } = usage;
    this.chunk({
      choices: [],
      usage: { prompt_tokens: prompt, completion_tokens: completion, total_tokens: prompt + completion, prompt_tokens_details: { cached_tokens: cached } },
      timings: { cache_n: cached, prompt_n: prompt - cached, prompt_ms: 38.5, predicted_n: completion, predicted_ms: completion * 22.5, predicted_per_second: 44.4 },
    });
    this.raw("data: [DONE]\n\n");
    this.response.end();
  }

  fail(status, error, headers = {}) {
    this.response.writeHead(status, { "content-type": "application/json", "x-request-id": "req-mock", ...headers });
    this.response.end(JSON.stringify({ type: "error", error: { type: "server_error", code: "mock", param: null, ...error } }));
  }

  /** The answer ends here, whole or not. */
  close() {
    this.response.end();
  }

  /** The connection breaks, after what was written has gone out. */
  cut() {
    this.response.write(":\n\n", () => this.response.destroy());
  }
}

export const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

export class Mock {
  models = MODELS;
  key = null;
  /** How often the list of models was asked for, and what it waits for. */
  listed = 0;
  hold = null;
  /** Bodies of the requests for answers, in order. */
  asked = [];
  /** Paths that were asked for and are not there. */
  missing = [];
  respond = async (stream) => {
    await stream.text("Hello from the mock.");
    stream.end();
  };

  async start(port = 0) {
    this.files = files();
    this.server = createServer((request, response) => void this.handle(request, response));
    await new Promise((resolve) => this.server.listen(port, "127.0.0.1", resolve));
    this.port = this.server.address().port;
    this.url = `http://127.0.0.1:${this.port}`;
    return this;
  }

  async stop() {
    this.server.closeAllConnections();
    await new Promise((resolve) => this.server.close(resolve));
  }

  async handle(request, response) {
    const path = new URL(request.url, "http://x").pathname;
    const file = this.files.get(path);
    if (file && request.method === "GET") {
      response.writeHead(200, {
        "content-type": file.type,
        "content-encoding": "br",
        "content-security-policy": csp,
        "cache-control": "no-cache",
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
        "cross-origin-opener-policy": "same-origin",
      });
      return response.end(file.bytes);
    }
    if (this.key !== null && request.headers.authorization !== `Bearer ${this.key}`) {
      return new Stream(response, {}).fail(401, { type: "authentication_error", code: "invalid_api_key", message: "a valid API key is needed" });
    }
    if (path === "/v1/models") {
      this.listed++;
      await this.hold;
      response.writeHead(200, { "content-type": "application/json" });
      return response.end(JSON.stringify({ object: "list", data: this.models }));
    }
    if (path === "/v1/chat/completions" && request.method === "POST") {
      const parts = [];
      for await (const part of request) parts.push(part);
      const body = JSON.parse(Buffer.concat(parts).toString("utf8"));
      this.asked.push(body);
      const stream = new Stream(response, body);
      try {
        await this.respond(stream, body, this.asked.length);
      } catch (e) {
        console.error("mock:", e);
        stream.cut();
      }
      return undefined;
    }
    this.missing.push(path);
    return new Stream(response, {}).fail(404, { type: "invalid_request_error", code: "not_found", message: `nothing is at ${path}` });
  }
}

export const SAMPLE = `## Prefix reuse

A prompt may start at *n* if **all full pages** before it are there. The time to the first token is then

$$t = t_0 + \\frac{n_{\\text{new}}}{r_{\\text{prefill}}}$$

where $r_{\\text{prefill}}$ is the rate in tokens a second; 10 new tokens at $2{,}000$ tok/s cost 5 ms.

1. The page table is read.
2. Pages are compared by \`tokens\`, not by hash:
   - equal pages are shared,
   - the first that differs is copied.

\`\`\`rust
/// Finds the longest prefix whose pages are kept.
fn reuse(tree: &Tree, tokens: &[u32]) -> usize {
    let mut n = 0;
    for page in tokens.chunks_exact(PAGE) {
        match tree.find(page) {
            Some(found) if found.is_whole() => n += PAGE,
            _ => break, // the rest is prefilled
        }
    }
    n
}
\`\`\`

| device | pp512 | tg128 |
|---|---:|---:|
| CPU, 2 cores | 412.0 | 38.1 |
| H200 | 33,012 | 442.7 |

> Numbers of one machine say little about another.

See [the notes](https://example.com/notes) for more.
`;

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const mock = new Mock();
  mock.respond = async (stream, body) => {
    await sleep(400);
    if (body.tools && body.messages.at(-1).role !== "tool") {
      stream.delta({ tool_calls: [{ index: 0, id: "call_1", type: "function", function: { name: "get_weather", arguments: '{"city": "Oslo"}' } }] });
      return stream.end("tool_calls");
    }
    for (const word of "The user asks about prefixes. Pages first, then a formula.".split(" ")) {
      stream.delta({ reasoning_content: `${word} ` });
      await sleep(20);
    }
    await stream.text(SAMPLE, 15);
    stream.end();
  };
  await mock.start(Number(process.argv[2] ?? 8099));
  console.log(mock.url);
}
