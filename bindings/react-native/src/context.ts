import { LapidaryError } from './errors';
import type { Message } from './types';

/**
 * What of a long conversation the model gets to see.
 *
 * Whatever is left out is counted in `droppedMessages`, so that an app can say so.
 */
export interface ContextStrategy {
  /**
   * @param systemPrompt The instructions; empty for none.
   * @param history The whole conversation, the new message last.
   * @param maxContextLength Tokens that prompt and answer may have together.
   * @param getTokenCount Tokens of these messages as a prompt.
   * @param ask Has the loaded model answer these messages, beside the conversation.
   * @returns The messages of the prompt, the instructions included.
   */
  buildContext(
    systemPrompt: string,
    history: Message[],
    maxContextLength: number,
    getTokenCount: (messages: Message[]) => Promise<number>,
    ask: (messages: Message[]) => Promise<string>,
  ): Message[] | Promise<Message[]>;
}

function withSystem(systemPrompt: string, history: Message[]): Message[] {
  return systemPrompt ? [{ role: 'system', content: systemPrompt }, ...history] : history;
}

/** Where the turns of a conversation begin: a question with all that follows it. */
function turns(history: Message[]): number[] {
  return history.flatMap((message, index) => (message.role === 'user' ? [index] : []));
}

/**
 * The first turn from which on the prompt has no more than `budget` tokens; the last turn if none has.
 * Tokens grow with the number of turns, so halving finds it in few counts.
 */
async function firstFitting(
  starts: number[],
  fits: (start: number) => Promise<boolean>,
): Promise<number> {
  let [low, high] = [0, starts.length - 1];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (await fits(starts[middle]!)) high = middle;
    else low = middle + 1;
  }
  return starts[low] ?? 0;
}

/** Keeps everything. What does not fit is refused with `context_length_exceeded`. This is the default. */
export class NoopContextStrategy implements ContextStrategy {
  buildContext(systemPrompt: string, history: Message[]): Message[] {
    return withSystem(systemPrompt, history);
  }
}

/** Keeps the last `count` messages, from a question on. */
export class MessageCountContextStrategy implements ContextStrategy {
  constructor(private readonly count: number = 5) {}

  buildContext(systemPrompt: string, history: Message[]): Message[] {
    const first = history.length - Math.max(1, this.count);
    const starts = turns(history);
    // An answer without its question would confuse the model.
    const start = starts.find((index) => index >= first) ?? starts[starts.length - 1] ?? 0;
    return withSystem(systemPrompt, history.slice(start));
  }
}

/** Drops the oldest turns until `bufferTokens` are left for the answer. */
export class SlidingWindowContextStrategy implements ContextStrategy {
  constructor(private readonly bufferTokens: number = 512) {}

  async buildContext(
    systemPrompt: string,
    history: Message[],
    maxContextLength: number,
    getTokenCount: (messages: Message[]) => Promise<number>,
  ): Promise<Message[]> {
    const budget = maxContextLength - this.bufferTokens;
    const from = (start: number) => withSystem(systemPrompt, history.slice(start));
    const fits = async (start: number) => (await getTokenCount(from(start))) <= budget;
    if (await fits(0)) return from(0);
    return from(await firstFitting(turns(history), fits));
  }
}

export interface Summarising {
  /** Tokens that are left for the answer. */
  bufferTokens?: number;
  /** Makes one summary of messages that go and of the summary before. By default the model does. */
  summarise?: (old: Message[], before: string | null) => Promise<string>;
}

/** Replaces the oldest turns by a summary, which goes with the instructions. */
export class SummarisingContextStrategy implements ContextStrategy {
  private readonly bufferTokens: number;
  private readonly summarise: Summarising['summarise'];
  /** The messages that are in the summary. */
  private done: Message[] = [];
  private summary: string | null = null;

  constructor({ bufferTokens = 512, summarise }: Summarising = {}) {
    this.bufferTokens = bufferTokens;
    this.summarise = summarise;
  }

  async buildContext(
    systemPrompt: string,
    history: Message[],
    maxContextLength: number,
    getTokenCount: (messages: Message[]) => Promise<number>,
    ask: (messages: Message[]) => Promise<string>,
  ): Promise<Message[]> {
    // Another conversation, or one of which messages were deleted.
    if (this.done.some((message, index) => history[index] !== message)) {
      this.done = [];
      this.summary = null;
    }
    const budget = maxContextLength - this.bufferTokens;
    const from = (start: number) => {
      const told = this.summary && `What was said before, in short: ${this.summary}`;
      const system = [systemPrompt, told].filter(Boolean).join('\n\n');
      return withSystem(system, history.slice(start));
    };
    if ((await getTokenCount(from(this.done.length))) <= budget) return from(this.done.length);
    // Half of the room, so that the next turns need no new summary.
    const starts = turns(history).filter((index) => index > this.done.length);
    if (starts.length === 0) return from(this.done.length);
    const start = await firstFitting(
      starts,
      async (index) => (await getTokenCount(from(index))) <= budget / 2,
    );
    const old = history.slice(this.done.length, start);
    const summary = this.summarise
      ? await this.summarise(old, this.summary)
      : await ask(this.request(old));
    if (typeof summary !== 'string') {
      throw new LapidaryError('invalid_argument', '`summarise` must return a string');
    }
    this.summary = summary;
    this.done = history.slice(0, start);
    return from(start);
  }

  private request(old: Message[]): Message[] {
    const said = old
      .filter((message) => message.content && message.role !== 'tool')
      .map((message) => `${message.role}: ${message.content}`);
    const before = this.summary ? [`before: ${this.summary}`] : [];
    const content = `Summarise this conversation in a few sentences. Keep names, numbers and decisions.\n\n${[...before, ...said].join('\n')}`;
    return [{ role: 'user', content }];
  }
}
