import type {
  AnswerStats,
  LoadOptions,
  MemoryPlan,
  MessageRole,
  ModelInfo,
  ResponseFormat,
  ToolChoice,
} from './types';

/** What a message holds, in order. */
export type HostPart =
  | { type: 'text'; text: string }
  | { type: 'image' | 'audio' | 'video'; bytes: Uint8Array }
  | { type: 'image' | 'audio' | 'video'; path: string }
  /** One channel, 16 bits, signed, little-endian. */
  | { type: 'pcm'; bytes: Uint8Array; rate: number };

/** Arguments are the text of a JSON object. */
export interface HostToolCall {
  id: string;
  name: string;
  arguments: string;
}

export interface HostMessage {
  role: MessageRole;
  parts: HostPart[];
  thinking?: string;
  toolCalls: HostToolCall[];
  toolCallId?: string;
  name?: string;
}

/** How one answer is to be. */
export interface HostAnswerOptions {
  temperature?: number;
  topK?: number;
  topP?: number;
  minP?: number;
  repetitionPenalty?: number;
  presencePenalty?: number;
  frequencyPenalty?: number;
  /** Decimal digits: it may be larger than a number holds. */
  seed?: string;
  maxTokens?: number;
  stop?: string[];
  thinking?: boolean;
  thinkingBudget?: number;
  imageTokens?: number;
  format?: ResponseFormat;
  tools?: { name: string; description: string; parameters: string; strict: boolean }[];
  toolChoice?: ToolChoice;
}

export type HostEvent =
  | { type: 'text'; text: string }
  | { type: 'thinking'; text: string }
  | { type: 'toolCall'; call: HostToolCall }
  | { type: 'finished'; stats: AnswerStats };

/** An answer while it comes. Whoever has one closes it. */
export interface HostAnswer {
  /** `null` after the end. */
  next(): Promise<HostEvent | null>;
  /** Ends it early: `finished` comes next. */
  cancel(): void;
  close(): void;
}

export interface HostEngine {
  readonly info: ModelInfo;
  readonly plan: MemoryPlan;
  answer(messages: HostMessage[], options: HostAnswerOptions): Promise<HostAnswer>;
  countTokens(messages: HostMessage[], options: HostAnswerOptions): Promise<number>;
  unload(): Promise<void>;
}

export interface HostModel {
  readonly info: ModelInfo;
  plan(options: LoadOptions): Promise<MemoryPlan>;
  /** If the signal comes, it rejects with `cancelled` and nothing stays loaded. */
  load(
    options: LoadOptions,
    signal: AbortSignal,
    progress: (fraction: number) => void,
  ): Promise<HostEngine>;
  close(): void;
}

/** Where engines are: in this process, or in another one. */
export interface Host {
  /** The first of these backends that has a device here, if any has. */
  choose(backends: readonly string[]): Promise<string | undefined>;
  /** The system whose defaults count. */
  readonly platform: string;
  isDownloaded(source: string): Promise<boolean>;
  /** What came stays when the signal comes; the next download goes on from there. */
  download(
    source: string,
    signal: AbortSignal,
    progress: (fraction: number) => void,
  ): Promise<void>;
  open(source: string): Promise<HostModel>;
}
