// Server-sent events from a stream of bytes, cut anywhere: in a line end, in a character.
// https://html.spec.whatwg.org/multipage/server-sent-events.html

/** A line without an end is given up beyond this. */
const MAX_LINE = 64 * 1024 * 1024;

export interface SseEvent {
  event: string;
  data: string;
}

export class SseParser {
  #decoder = new TextDecoder("utf-8");
  #rest = "";
  #afterCr = false;
  #event = "";
  #data: string[] = [];

  /** Events that these bytes complete. */
  push(bytes: Uint8Array): SseEvent[] {
    return this.#lines(this.#decoder.decode(bytes, { stream: true }));
  }

  #lines(text: string): SseEvent[] {
    const events: SseEvent[] = [];
    let start = 0;
    for (let at = 0; at < text.length; at++) {
      const code = text.charCodeAt(at);
      if (code !== 10 && code !== 13) {
        this.#afterCr = false;
        continue;
      }
      // The second half of a CR LF ends nothing.
      if (code === 10 && this.#afterCr) {
        this.#afterCr = false;
        start = at + 1;
        continue;
      }
      this.#afterCr = code === 13;
      this.#line(this.#rest + text.slice(start, at), events);
      this.#rest = "";
      start = at + 1;
    }
    this.#rest += text.slice(start);
    if (this.#rest.length > MAX_LINE) throw new Error("the server sent a line without an end");
    return events;
  }

  #line(line: string, events: SseEvent[]): void {
    if (line === "") {
      if (this.#data.length) {
        events.push({ event: this.#event || "message", data: this.#data.join("\n") });
      }
      this.#event = "";
      this.#data = [];
      return;
    }
    const colon = line.indexOf(":");
    if (colon === 0) return;
    const field = colon < 0 ? line : line.slice(0, colon);
    let value = colon < 0 ? "" : line.slice(colon + 1);
    if (value.startsWith(" ")) value = value.slice(1);
    if (field === "data") this.#data.push(value);
    else if (field === "event") this.#event = value;
  }
}
