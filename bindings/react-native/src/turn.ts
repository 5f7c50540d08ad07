import { LapidaryError } from './errors';
import type { HostAnswer, HostAnswerOptions, HostEngine, HostEvent } from './host';
import { hostMessages } from './media';
import { answerOptions } from './options';
import type { AnswerStats, GenerationConfig, LLMState, Message, ToolCall } from './types';

export interface TurnResult {
  text: string;
  thinking: string;
  toolCalls: ToolCall[];
}

/** From a question to its answer, with the calls of tools between. */
export class Turn {
  stopped = false;
  private current: HostAnswer | null = null;
  private pending: Partial<LLMState> | null = null;
  private pieces = 0;
  private timer: ReturnType<typeof setTimeout> | null = null;

  constructor(
    readonly engine: HostEngine,
    private readonly batchSize: number,
    private readonly batchMs: number,
    private readonly tell: (change: Partial<LLMState>) => void,
  ) {}

  /** Ends it, now or as soon as an answer has begun. */
  stop(): void {
    this.stopped = true;
    this.current?.cancel();
  }

  end(): void {
    this.flush();
  }

  /** One answer, told of while it comes. */
  async answer(messages: Message[], options: HostAnswerOptions): Promise<TurnResult> {
    const result: TurnResult = { text: '', thinking: '', toolCalls: [] };
    let fresh = '';
    await this.read(messages, options, result, (event) => {
      if (event.type === 'text') {
        fresh = this.pending ? fresh + event.text : event.text;
        this.soon({ response: result.text, token: fresh });
      } else if (event.type === 'thinking') {
        this.soon({ thinking: result.thinking });
      } else if (event.type === 'finished') {
        this.flush();
        this.tell({ stats: event.stats });
      }
    });
    return result;
  }

  /** One answer that nobody sees. */
  async aside(messages: Message[], config: GenerationConfig): Promise<TurnResult> {
    const result: TurnResult = { text: '', thinking: '', toolCalls: [] };
    const { responseFormat, ...rest } = config;
    await this.read(messages, answerOptions(rest, []), result, () => undefined);
    return result;
  }

  private async read(
    messages: Message[],
    options: HostAnswerOptions,
    result: TurnResult,
    see: (event: HostEvent) => void,
  ): Promise<AnswerStats | null> {
    const prompt = await hostMessages(messages);
    if (this.stopped) return null;
    const answer = await this.engine.answer(prompt, options);
    this.current = answer;
    if (this.stopped) answer.cancel();
    let stats: AnswerStats | null = null;
    try {
      for (;;) {
        const event = await answer.next();
        if (!event) return stats;
        if (event.type === 'text') result.text += event.text;
        else if (event.type === 'thinking') result.thinking += event.text;
        else if (event.type === 'toolCall') result.toolCalls.push(toolCall(event.call));
        else stats = event.stats;
        see(event);
      }
    } catch (thrown) {
      // Whoever stopped it does not care whether the model went, too.
      const { code } = LapidaryError.from(thrown);
      if (this.stopped && (code === 'model_unloaded' || code === 'cancelled')) return stats;
      throw thrown;
    } finally {
      this.current = null;
      answer.close();
    }
  }

  /** Together with what comes within a moment: a screen is not drawn for each piece. */
  private soon(change: Partial<LLMState>): void {
    this.pending = { ...this.pending, ...change };
    this.pieces += 1;
    if (this.pieces >= this.batchSize || this.batchMs <= 0) this.flush();
    else this.timer ??= setTimeout(() => this.flush(), this.batchMs);
  }

  private flush(): void {
    if (this.timer) clearTimeout(this.timer);
    this.timer = null;
    const { pending } = this;
    this.pending = null;
    this.pieces = 0;
    if (pending) this.tell(pending);
  }
}

function toolCall(call: { id: string; name: string; arguments: string }): ToolCall {
  try {
    const parsed: unknown = JSON.parse(call.arguments || '{}');
    return { id: call.id, toolName: call.name, arguments: parsed as Record<string, unknown> };
  } catch {
    throw new LapidaryError('internal_error', `the arguments of the call of \`${call.name}\` are no JSON`);
  }
}
