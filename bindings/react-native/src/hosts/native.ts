// Engines in this process, through the generated bindings.

import type * as Generated from '../generated/lapidary';
import { ERROR_CODES, LapidaryError, isErrorCode } from '../errors';
import type {
  Host,
  HostAnswer,
  HostAnswerOptions,
  HostEngine,
  HostEvent,
  HostMessage,
  HostModel,
  HostPart,
} from '../host';
import type { AnswerStats, LoadOptions, MemoryPlan, ModelInfo, ToolChoice } from '../types';

/** The generated module: React Native's, or Node's with the same names. */
export type Bindings = Omit<typeof Generated, 'default'>;

export interface NativeSettings {
  platform: string;
  /** Where downloaded models are; else Hugging Face's own cache. */
  cache?: string;
  /** Another hub than Hugging Face's. */
  endpoint?: string;
  /** The hub's token, for models with terms. */
  token?: string;
  offline?: boolean;
}

const MODALITIES = ['image', 'audio', 'video'] as const;
const KV_TYPES = ['f32', 'bf16', 'int8'] as const;
const DRAFTS = ['auto', 'off', 'lookup', 'model'] as const;
const FINISHES = ['stop', 'length', 'cancelled', 'deadline'] as const;
const ROLES = ['system', 'user', 'assistant', 'tool'] as const;

/** A word's place in a list is its number in the generated enumeration. */
function ordinal<T extends string>(words: readonly T[], word: T, what: string): number {
  const index = words.indexOf(word);
  if (index >= 0) return index;
  throw new LapidaryError('invalid_argument', `${what}: \`${word}\` is none of ${words.join(', ')}`);
}

export class NativeHost implements Host {
  private hub: Generated.HubLike | null = null;

  constructor(
    private readonly bindings: Bindings,
    private readonly settings: NativeSettings,
  ) {}

  get platform(): string {
    return this.settings.platform;
  }

  async choose(backends: readonly string[]): Promise<string | undefined> {
    const here = await this.say(() => this.bindings.backends());
    return backends.find((name) => here.some((b) => b.name === name && b.devices.length > 0));
  }

  async isDownloaded(source: string): Promise<boolean> {
    if (isPath(source)) return true;
    return this.say(async () => this.theHub().isDownloaded(source));
  }

  async download(
    source: string,
    signal: AbortSignal,
    progress: (fraction: number) => void,
  ): Promise<void> {
    await this.say(async () => {
      const download = this.theHub().download(source);
      const cancel = () => download.cancel();
      signal.addEventListener('abort', cancel);
      if (signal.aborted) cancel();
      try {
        for (;;) {
          const step = await download.next();
          if (!step) break;
          if (!step.isChecking) progress(step.fraction);
        }
        await download.finish();
      } finally {
        signal.removeEventListener('abort', cancel);
        destroy(download);
      }
    });
  }

  async open(source: string): Promise<HostModel> {
    const { bindings } = this;
    const hub = isPath(source) ? undefined : this.hubOptions();
    const options = bindings.OpenOptions.create({ draftBeside: true, hub });
    const model = await this.say(() => bindings.Model.open(source, options));
    return new NativeModel(bindings, model, this.say);
  }

  private hubOptions(): Generated.HubOptions {
    const { cache, endpoint, token, offline } = this.settings;
    return this.bindings.HubOptions.create({ cache, endpoint, token, offline: offline ?? false });
  }

  private theHub(): Generated.HubLike {
    const { platform, cache } = this.settings;
    if (!cache && (platform === 'ios' || platform === 'android')) {
      throw new LapidaryError(
        'invalid_argument',
        'call `setUp({ cache })` with a folder of the app before models are downloaded',
      );
    }
    this.hub ??= new this.bindings.Hub(this.hubOptions());
    return this.hub;
  }

  private readonly say = async <T>(work: () => Promise<T>): Promise<T> => {
    try {
      return await work();
    } catch (thrown) {
      throw translated(this.bindings, thrown);
    }
  };
}

type Say = <T>(work: () => Promise<T>) => Promise<T>;

class NativeModel implements HostModel {
  readonly info: ModelInfo;
  /** Whether an engine needs the model: it counts tokens. */
  private isTaken = false;

  constructor(
    private readonly bindings: Bindings,
    private readonly model: Generated.ModelLike,
    private readonly say: Say,
  ) {
    this.info = modelInfo(model.info());
  }

  async plan(options: LoadOptions): Promise<MemoryPlan> {
    const given = loadOptions(this.bindings, options);
    return memoryPlan(await this.say(() => this.model.plan(given)));
  }

  async load(
    options: LoadOptions,
    signal: AbortSignal,
    progress: (fraction: number) => void,
  ): Promise<HostEngine> {
    const given = loadOptions(this.bindings, options);
    return this.say(async () => {
      const loading = this.model.load(given);
      const cancel = () => loading.cancel();
      signal.addEventListener('abort', cancel);
      if (signal.aborted) cancel();
      try {
        for (;;) {
          const step = await loading.next();
          if (!step) break;
          progress(step.fraction);
        }
        const engine = await loading.engine();
        this.isTaken = true;
        return new NativeEngine(this.bindings, engine, this.model, this.say);
      } finally {
        signal.removeEventListener('abort', cancel);
        destroy(loading);
      }
    });
  }

  close(): void {
    if (!this.isTaken) destroy(this.model);
  }
}

class NativeEngine implements HostEngine {
  readonly info: ModelInfo;
  readonly plan: MemoryPlan;

  constructor(
    private readonly bindings: Bindings,
    private readonly engine: Generated.EngineLike,
    private readonly model: Generated.ModelLike,
    private readonly say: Say,
  ) {
    this.info = modelInfo(engine.modelInfo());
    this.plan = memoryPlan(engine.plan());
  }

  async answer(messages: HostMessage[], options: HostAnswerOptions): Promise<HostAnswer> {
    const { bindings } = this;
    return this.say(async () => {
      const said = messages.map((m) => message(bindings, m));
      const stream = await this.engine.answer(said, answerOptions(bindings, options));
      return new NativeAnswer(bindings, stream, this.say);
    });
  }

  async countTokens(messages: HostMessage[], options: HostAnswerOptions): Promise<number> {
    const { bindings } = this;
    return this.say(async () => {
      const said = messages.map((m) => message(bindings, m));
      return this.model.countTokens(said, answerOptions(bindings, options));
    });
  }

  async unload(): Promise<void> {
    await this.say(() => this.engine.unload());
  }
}

class NativeAnswer implements HostAnswer {
  constructor(
    private readonly bindings: Bindings,
    private readonly stream: Generated.AnswerStreamLike,
    private readonly say: Say,
  ) {}

  async next(): Promise<HostEvent | null> {
    for (;;) {
      const event = await this.say(() => this.stream.next());
      if (!event) return null;
      const known = hostEvent(this.bindings, event);
      if (known) return known;
    }
  }

  cancel(): void {
    this.stream.cancel();
  }

  close(): void {
    destroy(this.stream);
  }
}

/** Frees what Rust holds now, not when the collector comes. */
function destroy(object: object): void {
  (object as { uniffiDestroy?: () => void }).uniffiDestroy?.();
}

function isPath(source: string): boolean {
  return source === 'pebble' || source.startsWith('/') || source.startsWith('.');
}

function translated(bindings: Bindings, thrown: unknown): LapidaryError {
  if (thrown instanceof LapidaryError) return thrown;
  if (thrown instanceof Error && bindings.LapidaryError.instanceOf(thrown)) {
    const { code, reason } = (thrown as Generated.LapidaryError).inner;
    const name = bindings.errorCodeName(code);
    return new LapidaryError(isErrorCode(name) ? name : 'internal_error', reason);
  }
  return LapidaryError.from(thrown);
}

/** Codes that the engine has and this package does not, and the other way round. */
export function codesThatDiffer(bindings: Bindings): string[] {
  const there = Object.values(bindings.ErrorCode).filter((code) => typeof code === 'number');
  const names = there.map((code) => bindings.errorCodeName(code as Generated.ErrorCode));
  const missing = names.filter((name) => !isErrorCode(name));
  return [...missing, ...ERROR_CODES.filter((code) => !names.includes(code))];
}

function modelInfo(info: Generated.ModelInfo): ModelInfo {
  const { name, context, modalities, parameters, canThink, canCallTools } = info;
  const input = ['text' as const, ...modalities.map((m) => MODALITIES[m]!)];
  return { name, context, input, parameters: Number(parameters), canThink, canCallTools };
}

function memoryPlan(plan: Generated.Plan): MemoryPlan {
  return {
    model: plan.model,
    backend: plan.backend,
    device: plan.device.name,
    passedOver: plan.passedOver,
    context: plan.context,
    modelContext: plan.modelContext,
    sequences: plan.sequences,
    kvType: KV_TYPES[plan.kvType]!,
    weightBytes: Number(plan.weightBytes),
    kvBytes: Number(plan.kvBytes),
    activationBytes: Number(plan.activationBytes),
    totalBytes: Number(plan.totalBytes),
    availableBytes:
      plan.device.availableBytes === undefined ? null : Number(plan.device.availableBytes),
    fits: plan.fits,
    shortage: plan.shortage ?? null,
    text: plan.text,
  };
}

function loadOptions(bindings: Bindings, options: LoadOptions): Generated.LoadOptions {
  const { kvType, draft, kvMemory, ...rest } = options;
  return bindings.LoadOptions.create({
    ...rest,
    kvMemory: kvMemory === undefined ? undefined : BigInt(kvMemory),
    kvType: kvType === undefined ? undefined : ordinal(KV_TYPES, kvType, 'kvType'),
    draft: draft === undefined ? undefined : ordinal(DRAFTS, draft, 'draft'),
  });
}

function buffer(bytes: Uint8Array): ArrayBuffer {
  const { byteOffset, byteLength } = bytes;
  return bytes.buffer.slice(byteOffset, byteOffset + byteLength) as ArrayBuffer;
}

function part({ Part }: Bindings, part: HostPart): Generated.Part {
  if (part.type === 'text') return new Part.Text({ text: part.text });
  if (part.type === 'pcm') return new Part.Pcm({ bytes: buffer(part.bytes), rate: part.rate });
  if ('path' in part) {
    const file = { image: Part.ImageFile, audio: Part.AudioFile, video: Part.VideoFile };
    return new file[part.type]({ path: part.path });
  }
  const bytes = { image: Part.Image, audio: Part.Audio, video: Part.Video };
  return new bytes[part.type]({ bytes: buffer(part.bytes) });
}

function message(bindings: Bindings, message: HostMessage): Generated.Message {
  const { role, parts, thinking, toolCalls, toolCallId, name } = message;
  return bindings.Message.create({
    role: ordinal(ROLES, role, 'role'),
    parts: parts.map((one) => part(bindings, one)),
    thinking,
    toolCalls,
    toolCallId,
    name,
  });
}

function toolChoice({ ToolChoice }: Bindings, choice: ToolChoice): Generated.ToolChoice {
  if (typeof choice === 'object') return new ToolChoice.Function({ name: choice.name });
  if (choice === 'none') return new ToolChoice.Never();
  return choice === 'required' ? new ToolChoice.Required() : new ToolChoice.Auto();
}

function format(
  { Format }: Bindings,
  format: NonNullable<HostAnswerOptions['format']>,
): Generated.Format {
  switch (format.type) {
    case 'json_object':
      return new Format.JsonObject();
    case 'json_schema':
      return new Format.JsonSchema({ schema: JSON.stringify(format.schema) });
    case 'regex':
      return new Format.Regex({ pattern: format.pattern });
    case 'lark':
      return new Format.Lark({ grammar: format.grammar });
    default:
      return new Format.Text();
  }
}

function answerOptions(bindings: Bindings, options: HostAnswerOptions): Generated.AnswerOptions {
  const { seed, stop, tools, toolChoice: choice, format: wanted, ...rest } = options;
  return bindings.AnswerOptions.create({
    ...rest,
    seed: seed === undefined ? undefined : BigInt(seed),
    stop: stop ?? [],
    tools: tools ?? [],
    toolChoice: choice === undefined ? undefined : toolChoice(bindings, choice),
    format: wanted === undefined ? undefined : format(bindings, wanted),
  });
}

function stats(finish: Generated.Finish): AnswerStats {
  const { stats } = finish;
  return {
    promptTokens: stats.promptTokens,
    reusedTokens: stats.reusedTokens,
    newTokens: stats.newTokens,
    firstTokenSeconds: stats.firstTokenSeconds ?? null,
    encodeSeconds: stats.encodeSeconds,
    prefillSeconds: stats.prefillSeconds,
    decodeSeconds: stats.decodeSeconds,
    tokensPerSecond: stats.decodeTokensPerSecond ?? null,
    seed: stats.seed.toString(),
    finishReason: FINISHES[finish.reason]!,
  };
}

function hostEvent({ Event_Tags: Tags }: Bindings, event: Generated.Event): HostEvent | null {
  switch (event.tag) {
    case Tags.Text:
      return { type: 'text', text: event.inner.text };
    case Tags.Thinking:
      return { type: 'thinking', text: event.inner.text };
    case Tags.ToolCall: {
      const { id, name, arguments: json } = event.inner;
      return { type: 'toolCall', call: { id, name, arguments: json } };
    }
    case Tags.Finished:
      return { type: 'finished', stats: stats(event.inner.finish) };
    default:
      return null;
  }
}
