interface Delta {
  role?: string;
  content?: string;
  reasoning_content?: string;
  tool_calls?: object[];
}

export interface Stream {
  readonly body: Body;
  readonly closed: Promise<void>;
  readonly gone: boolean;
  raw(text: string): void;
  chunk(rest: object): void;
  delta(delta: Delta, finish?: string | null): void;
  text(text: string, ms?: number, size?: number): Promise<void>;
  end(reason?: string, usage?: { prompt?: number; completion?: number; cached?: number }): void;
  fail(status: number, error: object, headers?: Record<string, string>): void;
  close(): void;
  cut(): void;
}

interface Part {
  type: string;
  text?: string;
  image_url?: { url: string };
  input_audio?: { data: string; format: string };
}

export interface Body {
  model: string;
  messages: { role: string; content: string | Part[]; tool_calls?: object[]; tool_call_id?: string }[];
  [field: string]: unknown;
}

export class Mock {
  models: object[];
  key: string | null;
  listed: number;
  hold: Promise<void> | null;
  asked: Body[];
  missing: string[];
  url: string;
  port: number;
  respond: (stream: Stream, body: Body, nth: number) => Promise<void> | void;
  start(port?: number): Promise<this>;
  stop(): Promise<void>;
}

export const MODELS: { id: string }[];
export const SAMPLE: string;
export function sleep(ms: number): Promise<void>;
