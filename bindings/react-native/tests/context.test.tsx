import { act, CPU, GREEDY, hook, ready, refusal, type Hook } from './help';
import {
  MessageCountContextStrategy,
  NoopContextStrategy,
  SlidingWindowContextStrategy,
  SummarisingContextStrategy,
  type ContextStrategy,
  type Message,
} from '../src';

const SMALL = { ...CPU, context: 256 };

async function chat(contextStrategy?: ContextStrategy): Promise<Hook> {
  const mounted = await hook({ loadOptions: SMALL });
  await ready(mounted);
  const chatConfig = { systemPrompt: '', ...(contextStrategy ? { contextStrategy } : {}) };
  await act(async () => {
    mounted.result.current.configure({ chatConfig, generationConfig: { ...GREEDY, maxTokens: 16 } });
  });
  return mounted;
}

const LONG = 'Tell me about the fox, the bear, the owl, the hare and the old house in the wood.';

async function say(mounted: Hook, times: number): Promise<void> {
  for (let i = 0; i < times; i++) {
    await act(async () => void (await mounted.result.current.sendMessage(`${i}. ${LONG}`)));
  }
}

it('what does not fit is refused, and was not said', async () => {
  const mounted = await chat();
  let code = '';
  let said = 0;
  await act(async () => {
    for (; said < 20 && !code; said++) {
      const sent = mounted.result.current.sendMessage(`${said}. ${LONG}`);
      await sent.catch((thrown: { code: string }) => (code = thrown.code));
    }
  });
  expect(code).toBe('context_length_exceeded');
  // The last question is not there; every other has its answer.
  expect(mounted.result.current.messageHistory).toHaveLength(2 * (said - 1));
  await mounted.unmount();
});

it('the oldest turns are dropped, and it is said how many', async () => {
  const mounted = await chat(new SlidingWindowContextStrategy(32));
  await say(mounted, 6);
  const { messageHistory, droppedMessages, stats } = mounted.result.current;
  expect(messageHistory).toHaveLength(12);
  expect(droppedMessages).toBeGreaterThan(0);
  expect(droppedMessages % 2).toBe(0);
  expect(stats!.promptTokens).toBeLessThanOrEqual(256 - 32);
  await mounted.unmount();
});

it('the oldest turns become a summary, each once', async () => {
  const summarised: Message[][] = [];
  const summarise = async (old: Message[], before: string | null) => {
    summarised.push(old);
    return `${before ?? ''}${old.length} messages. `;
  };
  const mounted = await chat(new SummarisingContextStrategy({ bufferTokens: 32, summarise }));
  await say(mounted, 8);
  const all = summarised.flat();
  expect(summarised.length).toBeGreaterThan(1);
  expect(new Set(all).size).toBe(all.length);
  expect(all).toEqual(mounted.result.current.messageHistory.slice(0, all.length));
  expect(mounted.result.current.droppedMessages).toBe(all.length);
  await mounted.unmount();
});

it('the model itself summarises', async () => {
  const mounted = await chat(new SummarisingContextStrategy({ bufferTokens: 32 }));
  await say(mounted, 5);
  expect(mounted.result.current.droppedMessages).toBeGreaterThan(0);
  expect(mounted.result.current.error).toBeNull();
  await mounted.unmount();
});

describe('a strategy', () => {
  const history: Message[] = [1, 2, 3, 4].flatMap((n) => [
    { role: 'user' as const, content: `q${n}` },
    { role: 'assistant' as const, content: `a${n}` },
  ]);
  const count = async (messages: Message[]) => messages.length * 10;
  const words = (messages: Message[]) => messages.map((m) => m.content).join(' ');

  it('keeps everything', () => {
    expect(words(new NoopContextStrategy().buildContext('s', history))).toBe('s q1 a1 q2 a2 q3 a3 q4 a4');
    expect(new NoopContextStrategy().buildContext('', history)).toBe(history);
  });

  it('keeps the last messages, from a question on', () => {
    const last = (n: number) => words(new MessageCountContextStrategy(n).buildContext('', history));
    expect(last(3)).toBe('q4 a4');
    expect(last(4)).toBe('q3 a3 q4 a4');
    expect(last(1)).toBe('q4 a4');
    expect(last(99)).toBe('q1 a1 q2 a2 q3 a3 q4 a4');
  });

  it('keeps as many turns as fit', async () => {
    const window = new SlidingWindowContextStrategy(20);
    const kept = async (limit: number) => words(await window.buildContext('s', history, limit, count));
    expect(await kept(110)).toBe('s q1 a1 q2 a2 q3 a3 q4 a4');
    expect(await kept(109)).toBe('s q2 a2 q3 a3 q4 a4');
    expect(await kept(50)).toBe('s q4 a4');
    // Nothing fits: the engine says so.
    expect(await kept(0)).toBe('s q4 a4');
  });

  it('that returns no summary is refused', async () => {
    const wrong = new SummarisingContextStrategy({ bufferTokens: 0, summarise: async () => 3 as never });
    const built = wrong.buildContext('', history, 40, count, async () => '');
    expect(await refusal(built)).toMatchObject({ code: 'invalid_argument' });
  });
});
