import { NoopContextStrategy } from './context';
import { LapidaryError } from './errors';
import type { Host, HostEngine } from './host';
import { hostMessages } from './media';
import { modelEntry } from './entry';
import { answerOptions, plainTool } from './options';
import { Declined, share, withBackend, type Share, type Step } from './shelf';
import { Turn, type TurnResult } from './turn';
import type {
  ChatConfig,
  GenerationConfig,
  LLMConfig,
  LLMState,
  LLMTool,
  LoadOptions,
  MemoryPlan,
  Message,
  MessageMedia,
  ModelInput,
  Tool,
  ToolCall,
  ToolsConfig,
} from './types';

const DEFAULT_CHAT: ChatConfig = {
  systemPrompt: '',
  initialMessageHistory: [],
  contextStrategy: new NoopContextStrategy(),
};
const MAX_TOOL_ROUNDS = 8;
/** As often as a screen shows something new. */
const BATCH_MS = 16;

const EMPTY: LLMState = {
  phase: 'idle',
  isReady: false,
  isGenerating: false,
  downloadProgress: 0,
  loadProgress: 0,
  messageHistory: [],
  response: '',
  token: '',
  thinking: '',
  error: null,
  info: null,
  plan: null,
  stats: null,
  droppedMessages: 0,
};

export interface LoadRequest {
  model: ModelInput;
  host: Host;
  loadOptions?: LoadOptions;
  /** Is shown what the model takes before it is taken. */
  acceptPlan?: (plan: MemoryPlan) => boolean | Promise<boolean>;
}

/** A model with one conversation: what `useLLM` holds. It knows nothing of React. */
export class LLM {
  private state = EMPTY;
  private readonly listeners = new Set<() => void>();
  private share: Share | null = null;
  private engine: HostEngine | null = null;
  /** Everything that was said, calls of tools included. */
  private history: Message[] = [];
  private chat = DEFAULT_CHAT;
  private tools: ToolsConfig | null = null;
  private generation: GenerationConfig = {};
  private turn: Turn | null = null;

  readonly getState = (): LLMState => this.state;

  readonly subscribe = (listener: () => void): (() => void) => {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  };

  private set(change: Partial<LLMState>): void {
    this.state = { ...this.state, ...change };
    for (const listener of [...this.listeners]) listener();
  }

  /** Downloads if need be, and loads. What `state.error` says does not reject. */
  async load({ model, host, loadOptions = {}, acceptPlan }: LoadRequest): Promise<void> {
    this.unload();
    const wish = { host, model: modelEntry(model), options: loadOptions };
    const mine: Share = share(
      acceptPlan ? { ...wish, acceptPlan } : wish,
      (step) => this.share === mine && this.see(step),
    );
    this.share = mine;
    this.set({ phase: 'downloading' });
    if (mine.last) this.see(mine.last);
    try {
      const engine = await mine.engine;
      if (this.share !== mine) return;
      this.engine = engine;
      const { info, plan } = engine;
      this.set({ phase: 'ready', isReady: true, downloadProgress: 1, loadProgress: 1, info, plan });
    } catch (thrown) {
      if (this.share !== mine) return;
      this.share = null;
      mine.release();
      if (thrown instanceof Declined) this.set({ phase: 'declined' });
      else this.set({ phase: 'failed', error: LapidaryError.from(thrown) });
    }
  }

  /** Shows the plan of a model that is here already, and takes nothing. */
  async look({ model, host, loadOptions = {} }: LoadRequest): Promise<void> {
    const entry = modelEntry(model);
    const before = this.share;
    try {
      if (!(await host.isDownloaded(entry.source))) return;
      const opened = await host.open(entry.source);
      try {
        const plan = await opened.plan(await withBackend(host, entry, loadOptions));
        if (this.share !== before || this.state.phase !== 'idle') return;
        this.set({ info: opened.info, plan, downloadProgress: 1 });
      } finally {
        opened.close();
      }
    } catch (thrown) {
      if (this.share === before) this.set({ error: LapidaryError.from(thrown) });
    }
  }

  private see(step: Step): void {
    if (step.at === 'downloading') {
      this.set({ phase: 'downloading', downloadProgress: step.fraction });
    } else if (step.at === 'opening') {
      this.set({ phase: 'opening', downloadProgress: 1 });
    } else {
      const { info, plan, fraction } = step;
      this.set({ phase: 'loading', downloadProgress: 1, loadProgress: fraction, info, plan });
    }
  }

  /** Ends what is going on, and gives the engine back. The conversation begins anew. */
  unload(): void {
    this.turn?.stop();
    this.turn = null;
    const released = this.share;
    this.share = null;
    this.engine = null;
    released?.release();
    this.history = [...this.chat.initialMessageHistory];
    this.set({ ...EMPTY, messageHistory: this.visible() });
  }

  /** What is not given is as it was; a chat's configuration begins the conversation anew. */
  readonly configure = ({ chatConfig, toolsConfig, generationConfig }: LLMConfig): void => {
    if (toolsConfig) {
      toolsConfig.tools.forEach(plainTool);
      this.tools = toolsConfig;
    }
    if (generationConfig) this.generation = generationConfig;
    if (chatConfig) {
      this.turn?.stop();
      this.chat = { ...DEFAULT_CHAT, ...chatConfig };
      this.history = [...this.chat.initialMessageHistory];
    }
    this.set({ messageHistory: this.visible() });
  };

  /** Says something, and resolves with the answer. If that fails, nothing was said. */
  readonly sendMessage = async (
    message: string,
    media?: MessageMedia,
    config?: GenerationConfig,
  ): Promise<string> => {
    const said: Message = { role: 'user', content: message };
    if (media?.imagePath) said.mediaPath = media.imagePath;
    if (media?.audioBuffer) said.audioWaveform = media.audioBuffer;
    if (media?.media) said.media = media.media;
    return this.run(async (turn) => {
      const before = this.history;
      this.keep([...before, said]);
      try {
        const tools = this.tools?.tools.map(plainTool) ?? [];
        const all = { ...this.generation, ...config };
        return await this.rounds(turn, all, tools);
      } catch (thrown) {
        // Unless the conversation has become another one by now.
        if (this.turn === turn) this.keep(before);
        throw thrown;
      }
    });
  };

  /** Answers messages beside the conversation, which stays as it is. */
  readonly generate = async (
    messages: Message[],
    tools: LLMTool[] = [],
    config?: GenerationConfig,
  ): Promise<string> => {
    return this.run(async (turn) => {
      if (messages.length === 0) {
        throw new LapidaryError('invalid_argument', 'there are no messages to answer');
      }
      const plain = tools.map(plainTool);
      const result = await this.answer(turn, messages, { ...this.generation, ...config }, plain);
      return result.text || JSON.stringify(result.toolCalls);
    });
  };

  /** An answer that follows a JSON schema, parsed. */
  readonly generateObject = async <T = unknown>(
    messages: Message[] | string,
    schema: Record<string, unknown>,
    config?: GenerationConfig,
  ): Promise<T> => {
    const asked: Message[] =
      typeof messages === 'string' ? [{ role: 'user', content: messages }] : messages;
    const responseFormat = { type: 'json_schema' as const, schema };
    const text = await this.generate(asked, [], { ...config, responseFormat });
    try {
      return JSON.parse(text) as T;
    } catch {
      const reason = this.state.stats?.finishReason ?? 'stop';
      const message = `the answer ended before its JSON did (${reason}); allow more tokens`;
      throw new LapidaryError(reason === 'cancelled' ? 'cancelled' : 'invalid_argument', message);
    }
  };

  /** Ends the answer; what was said until now is the answer. */
  readonly interrupt = (): void => this.turn?.stop();

  /** Deletes a message and all that came after it. */
  readonly deleteMessage = (index: number): void => {
    if (this.turn) throw busy();
    const message = this.state.messageHistory[index];
    const at = message ? this.history.indexOf(message) : -1;
    if (at < 0) throw new LapidaryError('invalid_argument', `there is no message ${index}`);
    this.keep(this.history.slice(0, at));
  };

  readonly getGeneratedTokenCount = (): number => this.state.stats?.newTokens ?? 0;
  readonly getPromptTokenCount = (): number => this.state.stats?.promptTokens ?? 0;
  readonly getTotalTokenCount = (): number =>
    this.getGeneratedTokenCount() + this.getPromptTokenCount();

  private keep(history: Message[]): void {
    this.history = history;
    this.set({ messageHistory: this.visible() });
  }

  private visible(): Message[] {
    if (this.tools?.displayToolCalls !== false) return this.history;
    return this.history.filter((m) => m.role !== 'tool' && !(m.toolCalls?.length && !m.content));
  }

  /** One thing at a time. */
  private async run(work: (turn: Turn) => Promise<string>): Promise<string> {
    if (this.turn) throw busy();
    const { engine } = this;
    if (!engine) {
      throw new LapidaryError('model_unloaded', 'no model is loaded; wait until `isReady`');
    }
    const { outputTokenBatchSize = Infinity, batchTimeInterval = BATCH_MS } = this.generation;
    const turn: Turn = new Turn(engine, outputTokenBatchSize, batchTimeInterval, (change) => {
      if (this.turn === turn) this.set(change);
    });
    this.turn = turn;
    this.set({ isGenerating: true, response: '', token: '', thinking: '', error: null });
    try {
      return await work(turn);
    } catch (thrown) {
      const error = LapidaryError.from(thrown);
      if (this.turn === turn) this.set({ error });
      throw error;
    } finally {
      turn.end();
      if (this.turn === turn) {
        this.turn = null;
        this.set({ isGenerating: false });
      }
    }
  }

  /** Answers, calls tools and answers again, until nothing is called. */
  private async rounds(turn: Turn, config: GenerationConfig, tools: Tool[]): Promise<string> {
    const limit = this.tools?.maxToolRounds ?? MAX_TOOL_ROUNDS;
    for (let round = 0; ; round++) {
      const prompt = await this.prompt(turn, config, tools);
      const choice = round < limit ? this.tools?.toolChoice : 'none';
      // A call that is required every time would never come to an answer.
      const again = round > 0 && round < limit ? 'auto' : choice;
      const result = await this.answer(turn, prompt, config, tools, again);
      if (this.turn !== turn) return result.text;
      const { text, thinking } = result;
      // Each answer counts its calls from the beginning.
      const nth = this.history.length;
      const toolCalls = result.toolCalls.map((call) => ({ ...call, id: `${call.id}_${nth}` }));
      const said: Message = { role: 'assistant', content: text };
      if (thinking) said.thinking = thinking;
      if (toolCalls.length > 0) said.toolCalls = toolCalls;
      if (text || toolCalls.length > 0) this.keep([...this.history, said]);
      if (toolCalls.length === 0 || turn.stopped) return text;
      for (const call of toolCalls) {
        const content = await this.call(call, tools);
        if (this.turn !== turn) return text;
        if (content === null) return text;
        const { id: toolCallId, toolName } = call;
        this.keep([...this.history, { role: 'tool', content, toolCallId, toolName }]);
      }
      if (turn.stopped) return text;
    }
  }

  /** What a tool says; `null` if nobody answers. */
  private async call(call: ToolCall, tools: Tool[]): Promise<string | null> {
    const tool = tools.find(({ name }) => name === call.toolName);
    try {
      if (!tool?.execute) return (await this.tools?.executeToolCallback?.(call)) ?? null;
      const value = await tool.execute(call.arguments);
      return typeof value === 'string' ? value : (JSON.stringify(value) ?? 'null');
    } catch (thrown) {
      // The model may say so, or try again.
      return JSON.stringify({ error: thrown instanceof Error ? thrown.message : String(thrown) });
    }
  }

  private async prompt(turn: Turn, config: GenerationConfig, tools: Tool[]): Promise<Message[]> {
    const { systemPrompt, contextStrategy } = this.chat;
    const { history } = this;
    const options = answerOptions(config, tools);
    const count = async (messages: Message[]) =>
      turn.engine.countTokens(await hostMessages(messages), options);
    const ask = async (messages: Message[]) => (await turn.aside(messages, config)).text;
    const prompt = await contextStrategy.buildContext(
      systemPrompt,
      history,
      turn.engine.plan.context,
      count,
      ask,
    );
    const kept = new Set(prompt);
    const droppedMessages = history.filter((message) => !kept.has(message)).length;
    if (this.turn === turn) this.set({ droppedMessages });
    return prompt;
  }

  private answer(
    turn: Turn,
    messages: Message[],
    config: GenerationConfig,
    tools: Tool[],
    choice = this.tools?.toolChoice,
  ): Promise<TurnResult> {
    return turn.answer(messages, answerOptions(config, tools, choice));
  }
}

function busy(): LapidaryError {
  return new LapidaryError('busy', 'an answer is under way; wait for it, or interrupt it');
}
