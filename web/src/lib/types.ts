// What several modules speak of.

export interface Attachment {
  id: string;
  kind: "image" | "audio" | "text";
  name: string;
  /** Media type of what is kept. */
  type: string;
  size: number;
  /** Length of audio in seconds. */
  seconds?: number | undefined;
}

export interface ToolCall {
  id: string;
  name: string;
  /** JSON as the model wrote it; may be cut short while it comes. */
  arguments: string;
}

export interface Usage {
  prompt: number;
  completion: number;
  cached?: number | undefined;
  /** Milliseconds until the first piece of the answer came. */
  ttft?: number | undefined;
  /** Milliseconds of the server for the prompt and for the answer. */
  promptMs?: number | undefined;
  predictedMs?: number | undefined;
  /** Tokens a second, as the server measured or, without its word, as the page did. */
  rate?: number | undefined;
}

export type ModelState = "loaded" | "loading" | "unloaded" | "failed" | "unknown";

export interface Model {
  id: string;
  state: ModelState;
  /** Zero to one while it loads. */
  progress?: number | undefined;
  context?: number | undefined;
  memory?: number | undefined;
  image: boolean;
  audio: boolean;
  thinking: boolean;
  error?: string | undefined;
}

export type Format = "text" | "json_object" | "json_schema";
export type Effort = "" | "none" | "low" | "medium" | "high";

/** Settings of a conversation. Null leaves a value to the server. */
export interface Settings {
  system: string;
  temperature: number | null;
  top_p: number | null;
  top_k: number | null;
  min_p: number | null;
  max_tokens: number | null;
  seed: number | null;
  presence_penalty: number | null;
  frequency_penalty: number | null;
  repeat_penalty: number | null;
  stop: string[];
  effort: Effort;
  format: Format;
  schema: string;
  tools: string;
}

export interface Conversation {
  id: string;
  title: string;
  /** The user gave it a name: the first message no longer does. */
  named: boolean;
  created: number;
  updated: number;
  model: string;
  chosen: Record<string, string>;
  settings: Settings;
}
