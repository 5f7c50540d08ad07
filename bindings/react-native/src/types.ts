import type { ContextStrategy } from './context';

export type MessageRole = 'system' | 'user' | 'assistant' | 'tool';

/** An image, a sound or a video: a file's path or URI, its bytes, or samples of a microphone. */
export type Media =
  | { type: 'image' | 'audio' | 'video'; path: string }
  | { type: 'image' | 'audio' | 'video'; bytes: Uint8Array }
  | { type: 'pcm'; samples: Float32Array | Int16Array; rate: number };

export interface ToolCall {
  id: string;
  toolName: string;
  arguments: Record<string, unknown>;
}

export interface Message {
  role: MessageRole;
  content: string;
  /** A path or URI of an image. */
  mediaPath?: string;
  /** Samples of one channel, 16,000 in a second, from -1 to 1. */
  audioWaveform?: Float32Array;
  /** Any other media; they come before the text. */
  media?: Media[];
  /** What the model thought before it answered. */
  thinking?: string;
  /** Tools that the model calls. */
  toolCalls?: ToolCall[];
  /** Which call a tool's message answers. */
  toolCallId?: string;
  toolName?: string;
}

/** What goes with `sendMessage`. */
export interface MessageMedia {
  imagePath?: string;
  /** Samples of one channel, 16,000 in a second, from -1 to 1. */
  audioBuffer?: Float32Array;
  media?: Media[];
}

/** A function that the model may call. */
export interface Tool {
  name: string;
  description?: string;
  /** A JSON schema. */
  parameters?: Record<string, unknown>;
  /** Whether arguments must follow the schema: the model can then write nothing else. */
  strict?: boolean;
  /** Answers a call. Without it, `executeToolCallback` does. */
  execute?: (args: Record<string, unknown>) => unknown | Promise<unknown>;
}

/** A tool of ours, or one as OpenAI's API writes it. */
export type LLMTool = Tool | { type: 'function'; function: Tool };

export type ToolChoice = 'auto' | 'none' | 'required' | { name: string };

/** What an answer must look like. The model can write nothing else. */
export type ResponseFormat =
  | { type: 'text' }
  | { type: 'json_object' }
  | { type: 'json_schema'; schema: Record<string, unknown> }
  | { type: 'regex'; pattern: string }
  | { type: 'lark'; grammar: string };

export interface ChatConfig {
  systemPrompt: string;
  initialMessageHistory: Message[];
  contextStrategy: ContextStrategy;
}

export interface ToolsConfig {
  tools: LLMTool[];
  /** Answers the calls of tools without `execute`; `null` for no answer, which ends the turn. */
  executeToolCallback?: (call: ToolCall) => Promise<string | null>;
  /** Whether calls and their results stand in `messageHistory`. */
  displayToolCalls?: boolean;
  toolChoice?: ToolChoice;
  /** How often in one turn the model may call tools; then it must answer. */
  maxToolRounds?: number;
}

/** How answers are to be. What is not given is as the model's makers recommend. */
export interface GenerationConfig {
  temperature?: number;
  topK?: number;
  topP?: number;
  /** The old name of `topP`. */
  topp?: number;
  minP?: number;
  repetitionPenalty?: number;
  presencePenalty?: number;
  frequencyPenalty?: number;
  /** The same seed, messages and model give the same answer. */
  seed?: number | bigint;
  maxTokens?: number;
  stop?: string[];
  thinking?: boolean;
  thinkingBudget?: number;
  responseFormat?: ResponseFormat;
  /** How many tokens an image may take. */
  imageTokens?: number;
  /** Tells of new text after so many pieces, or after `batchTimeInterval` milliseconds. */
  outputTokenBatchSize?: number;
  batchTimeInterval?: number;
}

export interface LLMConfig {
  chatConfig?: Partial<ChatConfig>;
  toolsConfig?: ToolsConfig;
  generationConfig?: GenerationConfig;
}

export type Platform = 'ios' | 'android' | (string & {});

/** A model as `models.llm` lists it. Only `source` is needed. */
export interface ModelEntry {
  /** A name (`gemma4:e2b`), a repository (`org/repo[:quant][@revision]`), a path, or `pebble`. */
  source: string;
  modelName?: string;
  title?: string;
  parameters?: number;
  input?: readonly ('text' | 'image' | 'audio' | 'video')[];
  licence?: string;
  /** Whether its terms must be accepted on the hub first. */
  gated?: boolean;
  /** Backends to try, best first, where none is asked for; elsewhere the engine chooses. */
  backends?: Readonly<Record<string, readonly string[]>>;
}

/** As react-native-executorch writes it: the other sources are not needed here. */
export interface ModelSource {
  modelSource: string;
  modelName?: string;
  tokenizerSource?: unknown;
  tokenizerConfigSource?: unknown;
}

export type ModelInput = string | ModelEntry | ModelSource;

export interface LoadOptions {
  /** This backend and no other. */
  backend?: string;
  device?: string;
  /** Positions of one conversation, prompt and answer together. */
  context?: number;
  /** Conversations that are answered at once. */
  sequences?: number;
  /** The most bytes for keys and values of past tokens. */
  kvMemory?: number;
  kvType?: 'f32' | 'bf16' | 'int8';
  threads?: number;
  textOnly?: boolean;
  draft?: 'auto' | 'off' | 'lookup' | 'model';
  /** A folder for packed weights, so that a second start is quick; `off` for none. */
  packCache?: string;
}

/** What loading takes, and what was decided. Nothing is taken yet. */
export interface MemoryPlan {
  model: string;
  backend: string;
  device: string;
  /** Why each better backend was passed over. */
  passedOver: string[];
  context: number;
  modelContext: number;
  sequences: number;
  kvType: 'f32' | 'bf16' | 'int8';
  weightBytes: number;
  kvBytes: number;
  activationBytes: number;
  totalBytes: number;
  /** What the device has to give, if it says so. */
  availableBytes: number | null;
  fits: boolean;
  shortage: string | null;
  /** For people. */
  text: string;
}

export interface ModelInfo {
  name: string;
  input: ('text' | 'image' | 'audio' | 'video')[];
  context: number;
  parameters: number;
  canThink: boolean;
  canCallTools: boolean;
}

/** How an answer went. */
export interface AnswerStats {
  promptTokens: number;
  /** Tokens of the prompt that were computed for an earlier answer. */
  reusedTokens: number;
  newTokens: number;
  firstTokenSeconds: number | null;
  encodeSeconds: number;
  prefillSeconds: number;
  decodeSeconds: number;
  tokensPerSecond: number | null;
  seed: string;
  finishReason: FinishReason;
}

export type FinishReason = 'stop' | 'length' | 'cancelled' | 'deadline';

export type Phase =
  /** Nothing is loaded, and nothing is on its way. */
  | 'idle'
  | 'downloading'
  | 'opening'
  | 'loading'
  | 'ready'
  /** `acceptPlan` said no. */
  | 'declined'
  | 'failed';

/** What the hook shows. It is replaced, never changed. */
export interface LLMState {
  phase: Phase;
  isReady: boolean;
  isGenerating: boolean;
  /** From 0 to 1; 1 for what was downloaded before. */
  downloadProgress: number;
  /** From 0 to 1: weights on their way to the device. */
  loadProgress: number;
  messageHistory: Message[];
  /** The answer until now. */
  response: string;
  /** What came last of it. */
  token: string;
  /** What the model thinks before it answers. */
  thinking: string;
  error: import('./errors').LapidaryError | null;
  info: ModelInfo | null;
  plan: MemoryPlan | null;
  stats: AnswerStats | null;
  /** How many messages the context strategy left out of the last prompt. */
  droppedMessages: number;
}
