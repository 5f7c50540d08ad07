import { act, GREEDY, STAR, STAR_PATH, hook, ready, refusal, until, type Hook } from './help';
import { LapidaryError, type Message, type Tool } from '../src';

/** One engine for all: hooks with the same model share it while one is mounted. */
let first: Hook;

beforeAll(async () => {
  first = await hook();
  await ready(first);
});

afterAll(async () => {
  await first.unmount();
});

async function chat(): Promise<Hook> {
  const mounted = await hook();
  await ready(mounted);
  await act(async () => mounted.result.current.configure({ generationConfig: GREEDY }));
  return mounted;
}

async function send(
  mounted: Hook,
  ...args: Parameters<Hook['result']['current']['sendMessage']>
): Promise<string> {
  let text = '';
  await act(async () => {
    text = await mounted.result.current.sendMessage(...args);
  });
  return text;
}

describe('an answer', () => {
  it('comes in pieces, and is in the history', async () => {
    const mounted = await chat();
    const seen: string[] = [];
    let done = false;
    let answered = '';
    await act(async () => {
      const { sendMessage } = mounted.result.current;
      void sendMessage('Tell me a story about a fox.').then((text) => {
        answered = text;
        done = true;
      });
    });
    await until(mounted, (state) => {
      if (state.response && seen.at(-1) !== state.response) seen.push(state.response);
      return done;
    });
    expect(answered.length).toBeGreaterThan(40);
    expect(seen.length).toBeGreaterThan(2);
    for (const piece of seen) expect(answered.startsWith(piece)).toBe(true);
    const { current } = mounted.result;
    expect(current.response).toBe(answered);
    expect(current.isGenerating).toBe(false);
    expect(current.messageHistory).toEqual([
      { role: 'user', content: 'Tell me a story about a fox.' },
      { role: 'assistant', content: answered },
    ]);
    expect(current.getGeneratedTokenCount()).toBe(current.stats!.newTokens);
    expect(current.getTotalTokenCount()).toBe(
      current.getPromptTokenCount() + current.getGeneratedTokenCount(),
    );
    expect(current.getGeneratedTokenCount()).toBeGreaterThan(10);
    await mounted.unmount();
  });

  it('stops in the middle, keeps what was said, and the next one comes', async () => {
    const mounted = await chat();
    let answered: string | null = null;
    await act(async () => {
      const { sendMessage } = mounted.result.current;
      void sendMessage('Tell me a story about a fox.').then((text) => (answered = text));
    });
    await until(mounted, (state) => state.response.length > 0);
    const busy = await refusal(mounted.result.current.sendMessage('And now?'));
    expect(busy).toMatchObject({ name: 'LapidaryError', code: 'busy' });
    await act(async () => mounted.result.current.interrupt());
    await until(mounted, (state) => !state.isGenerating && answered !== null);
    expect(mounted.result.current.stats!.finishReason).toBe('cancelled');
    expect(mounted.result.current.messageHistory.at(-1)).toEqual({ role: 'assistant', content: answered });
    expect(mounted.result.current.error).toBeNull();
    // How the answer goes on depends on where it was stopped.
    expect(await send(mounted, 'What is 4 + 7?')).not.toBe('');
    expect(mounted.result.current.stats!.finishReason).not.toBe('cancelled');
    await mounted.unmount();
  });

  it('is the same when eight are given at once', async () => {
    const mounted: Hook[] = [];
    // React mounts one after another.
    for (let one = 0; one < 8; one++) mounted.push(await chat());
    const [first, ...others] = mounted as [Hook, ...Hook[]];
    const expected = await send(first, 'Tell me a story about a fox.');
    const asked = others.map(({ result }) => result.current.sendMessage('Tell me a story about a fox.'));
    expect(await Promise.all(asked)).toEqual(Array(7).fill(expected));
    for (const one of mounted) await one.unmount();
  });

  it('computes of a second question only what is new', async () => {
    const mounted = await chat();
    await send(mounted, 'What is 12 + 7?');
    await send(mounted, 'What is 30 + 4?');
    const { stats } = mounted.result.current;
    expect(stats!.reusedTokens).toBeGreaterThan(0);
    expect(stats!.reusedTokens).toBeLessThan(stats!.promptTokens);
    await mounted.unmount();
  });

  it('keeps to limits, stop strings and seeds', async () => {
    const mounted = await chat();
    const { configure, generate } = mounted.result.current;
    const ask: Message[] = [{ role: 'user', content: 'Tell me a story about a fox.' }];
    const told = async (config: object) => {
      let text = '';
      await act(async () => {
        text = await generate(ask, [], config);
      });
      return text;
    };
    await act(async () => configure({ generationConfig: { temperature: 1 } }));
    await told({ maxTokens: 5 });
    expect(mounted.result.current.getGeneratedTokenCount()).toBe(5);
    expect(mounted.result.current.stats!.finishReason).toBe('length');
    const one = await told({ seed: 7, maxTokens: 24 });
    expect(await told({ seed: 7, maxTokens: 24 })).toBe(one);
    expect(mounted.result.current.stats!.seed).toBe('7');
    expect(await told({ seed: 2n ** 63n, maxTokens: 24 })).not.toBe(one);
    const whole = await told({ temperature: 0 });
    const short = await told({ temperature: 0, stop: ['.'] });
    expect(whole).toContain('.');
    expect(short).toBe(whole.slice(0, whole.indexOf('.')));
    // Nothing of this was said in the conversation.
    expect(mounted.result.current.messageHistory).toEqual([]);
    await mounted.unmount();
  });

  it('is forgotten with all that came after it', async () => {
    const mounted = await chat();
    await send(mounted, 'What is 1 + 2?');
    await send(mounted, 'What is 2 + 2?');
    await act(async () => mounted.result.current.deleteMessage(2));
    expect(mounted.result.current.messageHistory.map((m) => m.role)).toEqual(['user', 'assistant']);
    expect(() => mounted.result.current.deleteMessage(2)).toThrow(LapidaryError);
    await mounted.unmount();
  });
});

describe('media', () => {
  it('are seen, from bytes, a path and an address of a file', async () => {
    const mounted = await chat();
    const asked = 'Describe this image.';
    const media = [{ type: 'image' as const, bytes: new Uint8Array(STAR) }];
    const seen = await send(mounted, asked, { media });
    expect(seen).toMatch(/yellow/);
    expect(seen).toMatch(/star/);
    const address = encodeURI(`file://${STAR_PATH}`);
    const { generate } = mounted.result.current;
    for (const mediaPath of [STAR_PATH, address]) {
      let text = '';
      await act(async () => {
        text = await generate([{ role: 'user', content: asked, mediaPath }]);
      });
      expect(text).toBe(seen);
    }
    // The picture is still there in the next turn.
    await send(mounted, 'What colour is it?');
    expect(mounted.result.current.stats!.reusedTokens).toBeGreaterThan(60);
    await mounted.unmount();
  });

  it('that are none, or that the model does not take, are refused and were not said', async () => {
    const mounted = await chat();
    const refused = async (media: object) => {
      let error!: Error & { code: string };
      await act(async () => {
        error = await refusal(mounted.result.current.sendMessage('What is this?', media));
      });
      return error;
    };
    const broken = { type: 'image', bytes: new Uint8Array([1, 2, 3]) };
    expect(await refused({ media: [broken] })).toMatchObject({ code: 'invalid_argument' });
    expect(await refused({ imagePath: '/no/such.png' })).toMatchObject({ code: 'not_found' });
    const web = await refused({ imagePath: 'https://example.com/cat.png' });
    expect(web).toMatchObject({ code: 'invalid_argument' });
    expect(web.message).toContain('https:');
    // Pebble hears nothing.
    const heard = await refused({ audioBuffer: new Float32Array(16_000) });
    expect(heard).toMatchObject({ code: 'invalid_argument' });
    expect(mounted.result.current.error).toBe(heard);
    expect(mounted.result.current.messageHistory).toEqual([]);
    expect(await send(mounted, 'What is 4 + 7?')).toContain('11');
    expect(mounted.result.current.error).toBeNull();
    await mounted.unmount();
  });
});

const TIME: Tool = {
  name: 'get_time',
  description: 'Get the current time in a city.',
  parameters: {
    type: 'object',
    properties: { city: { type: 'string', description: 'The name of the city.' } },
    required: ['city'],
  },
};
const WEATHER: Tool = {
  ...TIME,
  name: 'get_weather',
  description: 'Get the current weather in a city.',
};

describe('tools', () => {
  it('are called, answered, and spoken of', async () => {
    const mounted = await chat();
    const asked: unknown[] = [];
    const execute = (args: Record<string, unknown>) => {
      asked.push(args);
      return { weather: 'sunny', temperature: 21 };
    };
    const toolsConfig = { tools: [TIME, { ...WEATHER, execute }] };
    await act(async () => mounted.result.current.configure({ toolsConfig }));
    const text = await send(mounted, 'What is the weather in Auckland?');
    expect(asked).toEqual([{ city: 'Auckland' }]);
    const { messageHistory } = mounted.result.current;
    expect(messageHistory.map((m) => m.role)).toEqual(['user', 'assistant', 'tool', 'assistant']);
    const [, call, result] = messageHistory;
    expect(call!.toolCalls![0]).toMatchObject({ toolName: 'get_weather', arguments: { city: 'Auckland' } });
    expect(result).toMatchObject({
      content: '{"weather":"sunny","temperature":21}',
      toolCallId: call!.toolCalls![0]!.id,
    });
    expect(text.length).toBeGreaterThan(0);
    expect(mounted.result.current.stats!.reusedTokens).toBeGreaterThan(0);
    await mounted.unmount();
  });

  it('of react-native-executorch’s kind are answered by the callback, and hidden', async () => {
    const mounted = await chat();
    const called: string[] = [];
    const toolsConfig = {
      tools: [{ type: 'function' as const, function: WEATHER }],
      executeToolCallback: async ({ toolName }: { toolName: string }) => {
        called.push(toolName);
        throw new Error('no network');
      },
      displayToolCalls: false,
    };
    await act(async () => mounted.result.current.configure({ toolsConfig }));
    await send(mounted, 'What is the weather in Auckland?');
    expect(called).toContain('get_weather');
    expect(mounted.result.current.messageHistory.every((m) => m.role !== 'tool')).toBe(true);
    await act(async () => mounted.result.current.deleteMessage(0));
    expect(mounted.result.current.messageHistory).toEqual([]);
    await mounted.unmount();
  });

  it('that nobody answers stand in the history', async () => {
    const mounted = await chat();
    const toolsConfig = { tools: [WEATHER] };
    await act(async () => mounted.result.current.configure({ toolsConfig }));
    await send(mounted, 'What is the weather in Auckland?');
    const last = mounted.result.current.messageHistory.at(-1)!;
    expect(last.toolCalls![0]!.toolName).toBe('get_weather');
    expect(() =>
      mounted.result.current.configure({ toolsConfig: { tools: [{ name: '' }] } }),
    ).toThrow('a tool needs a name');
    await mounted.unmount();
  });
});

describe('structure', () => {
  const schema = {
    type: 'object',
    properties: { animal: { enum: ['fox', 'bear'] }, legs: { type: 'integer', minimum: 0, maximum: 9 } },
    required: ['animal', 'legs'],
    additionalProperties: false,
  };

  it('is what a schema says', async () => {
    const mounted = await chat();
    const { generateObject, generate } = mounted.result.current;
    let value: unknown;
    await act(async () => {
      value = await generateObject('Tell me about a fox.', schema, { maxTokens: 100 });
    });
    expect(value).toEqual({
      animal: expect.stringMatching(/^(fox|bear)$/),
      legs: expect.any(Number),
    });
    let digits = '';
    await act(async () => {
      const responseFormat = { type: 'regex' as const, pattern: '[0-9]{4}' };
      digits = await generate([{ role: 'user', content: 'Hello!' }], [], { responseFormat });
    });
    expect(digits).toMatch(/^[0-9]{4}$/);
    await mounted.unmount();
  });

  it('that is none, and an answer that is too short for it, are refused', async () => {
    const mounted = await chat();
    const { generateObject } = mounted.result.current;
    await act(async () => {
      const wrong = await refusal(generateObject('Hi', { type: 'no such type' }));
      expect(wrong).toMatchObject({ code: 'invalid_argument' });
      const short = await refusal(generateObject('Hi', schema, { maxTokens: 2 }));
      expect(short).toMatchObject({ code: 'invalid_argument' });
      expect(short.message).toContain('allow more tokens');
    });
    await mounted.unmount();
  });
});

it('what is out of range is refused with a code', async () => {
  const mounted = await chat();
  const { generate } = mounted.result.current;
  const ask: Message[] = [{ role: 'user', content: 'Hi' }];
  await act(async () => {
    for (const config of [{ temperature: -1 }, { topP: 3 }, { seed: 1.5 }, { maxTokens: -4 }]) {
      const { code } = await refusal(generate(ask, [], config));
      expect([config, code]).toEqual([config, 'invalid_argument']);
    }
    expect(await refusal(generate([]))).toMatchObject({ code: 'invalid_argument' });
  });
  await mounted.unmount();
});
