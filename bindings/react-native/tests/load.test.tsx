import { readFileSync } from 'node:fs';

import { act, CPU, GREEDY, hook, native, ready, refusal, until } from './help';
import { LLM, planModel } from '../src';
import { NativeHost } from '../src/hosts/native';

/** Counts what a host is asked for. */
class Counted extends NativeHost {
  opened = 0;

  static make(): Counted {
    const host = native();
    return Object.assign(Object.create(Counted.prototype), host, { opened: 0 });
  }

  override open(source: string) {
    this.opened += 1;
    return super.open(source);
  }
}

const settled = () => act(() => new Promise<void>((done) => setTimeout(done, 20)));

describe('loading', () => {
  it('goes through its phases and shows the plan before it takes anything', async () => {
    const plans: number[] = [];
    const mounted = await hook({ acceptPlan: (plan) => plans.push(plan.totalBytes) > 0 });
    expect(mounted.result.current.isReady).toBe(false);
    const { plan, info, downloadProgress, loadProgress } = await ready(mounted);
    expect([downloadProgress, loadProgress]).toEqual([1, 1]);
    expect(plans).toEqual([plan!.totalBytes]);
    expect(plan).toMatchObject({ backend: 'cpu', context: 1024, fits: true, shortage: null });
    expect(plan!.totalBytes).toBe(plan!.weightBytes + plan!.kvBytes + plan!.activationBytes);
    expect(info).toMatchObject({ input: ['text', 'image', 'video'], canCallTools: true });
    await mounted.unmount();
  });

  it('is left when the plan is not accepted', async () => {
    // Else it would have its share of the engine of the test before.
    await settled();
    const mounted = await hook({ acceptPlan: async () => false });
    await until(mounted, (state) => state.phase === 'declined');
    expect(mounted.result.current).toMatchObject({ isReady: false, error: null });
    expect(mounted.result.current.plan!.totalBytes).toBeGreaterThan(10_000_000);
    await mounted.unmount();
  });

  it('waits where it is prevented, with the plan of what is here', async () => {
    const mounted = await hook({ preventLoad: true });
    await until(mounted, (state) => state.plan !== null);
    await settled();
    expect(mounted.result.current).toMatchObject({ isReady: false, phase: 'idle' });
    const refused = await refusal(mounted.result.current.sendMessage('Hi'));
    expect(refused).toMatchObject({ code: 'model_unloaded' });
    await mounted.rerender({ model: 'pebble', loadOptions: CPU, preventLoad: false });
    await ready(mounted);
    await mounted.unmount();
  });

  it('happens once under StrictMode, and once for two who want the same', async () => {
    const host = Counted.make();
    const one = await hook({ host }, true);
    const two = await hook({ host }, true);
    await ready(one);
    await ready(two);
    expect(host.opened).toBe(1);
    // Each has a conversation of its own, both answered at once.
    await act(async () => {
      for (const { result } of [one, two]) result.current.configure({ generationConfig: GREEDY });
      const asked = [one, two].map(({ result }, n) => result.current.sendMessage(`What is ${n} + 4?`));
      const [four, five] = await Promise.all(asked);
      expect(four).toContain('4');
      expect(five).toContain('5');
    });
    expect(one.result.current.messageHistory).toHaveLength(2);
    await one.unmount();
    await settled();
    // The other's engine is still there.
    await act(async () => void (await two.result.current.sendMessage('Hello!')));
    await two.unmount();
    await settled();
    await ready(await hook({ host }));
    expect(host.opened).toBe(2);
  });

  it('that fails says why, and another model loads', async () => {
    const mounted = await hook({ model: '/no/such/model.gguf' });
    await until(mounted, (state) => state.phase === 'failed');
    const { error } = mounted.result.current;
    expect(error).toMatchObject({ name: 'LapidaryError', code: 'not_found' });
    expect(error!.message).toContain('/no/such/model.gguf');
    await mounted.rerender({ model: 'pebble', loadOptions: CPU });
    await ready(mounted);
    expect(mounted.result.current.error).toBeNull();
    await mounted.unmount();
  });

  it('of a backend that is not there, or of what does not fit, is refused', async () => {
    const gone = await hook({ loadOptions: { backend: 'abacus' } });
    await until(gone, (state) => state.phase === 'failed');
    expect(['device_error', 'unsupported', 'invalid_argument', 'not_found']).toContain(gone.result.current.error!.code);
    expect(gone.result.current.error!.message).toContain('abacus');
    await gone.unmount();
    const large = await hook({ loadOptions: { ...CPU, sequences: 1, kvMemory: 1 } });
    await until(large, (state) => state.phase === 'failed');
    expect(large.result.current.error!.code).toMatch(/out_of_memory|invalid_argument/);
    await large.unmount();
  });

  it('is changed in the middle, and the last wish counts', async () => {
    const mounted = await hook();
    await mounted.rerender({ model: 'pebble', loadOptions: { ...CPU, context: 512 } });
    await mounted.rerender({ model: 'pebble', loadOptions: { ...CPU, context: 768 } });
    await ready(mounted);
    expect(mounted.result.current.plan!.context).toBe(768);
    await mounted.unmount();
  });
});

describe('unloading', () => {
  it('in the middle of an answer ends it, and nothing is told to who is gone', async () => {
    const complained = jest.spyOn(console, 'error').mockImplementation(() => undefined);
    const mounted = await hook({}, true);
    await ready(mounted);
    let answered: string | null = null;
    await act(async () => {
      const { sendMessage } = mounted.result.current;
      void sendMessage('Tell me a story about a fox.').then((text) => (answered = text));
    });
    await until(mounted, (state) => state.response.length > 0);
    const last = mounted.result.current;
    await mounted.unmount();
    for (let i = 0; i < 1000 && answered === null; i++) await settled();
    expect(answered).not.toBeNull();
    expect(mounted.result.current).toBe(last);
    expect(complained).not.toHaveBeenCalled();
    complained.mockRestore();
  });

  it('leaves a typed error to who goes on', async () => {
    const host = native();
    const opened = await host.open('pebble');
    const engine = await opened.load(CPU, new AbortController().signal, () => undefined);
    await engine.unload();
    await engine.unload();
    const said = [{ role: 'user' as const, parts: [{ type: 'text' as const, text: 'Hi' }], toolCalls: [] }];
    expect(await refusal(engine.answer(said, {}))).toMatchObject({
      name: 'LapidaryError',
      code: 'model_unloaded',
    });
    const llm = new LLM();
    expect(await refusal(llm.sendMessage('Hi'))).toMatchObject({ code: 'model_unloaded' });
  });

  it('gives the memory back, a hundred times', async () => {
    const host = native();
    const small = { ...CPU, context: 256, sequences: 1, textOnly: true };
    // What the process has taken for itself, in MiB.
    const taken = () => {
      const [, kilobytes] = /RssAnon:\s+(\d+)/.exec(readFileSync('/proc/self/status', 'utf8'))!;
      return Number(kilobytes) / 1024;
    };
    const sizes: number[] = [];
    for (let round = 0; round < 100; round++) {
      const llm = new LLM();
      await llm.load({ model: 'pebble', host, loadOptions: small });
      expect(llm.getState().error).toBeNull();
      llm.configure({ generationConfig: { ...GREEDY, maxTokens: 2 } });
      expect((await llm.sendMessage('Hello!')).length).toBeGreaterThan(0);
      llm.unload();
      await new Promise((done) => setTimeout(done, 20));
      sizes.push(taken());
    }
    // An engine that stayed would be 20 MiB each time; what the collector has not got to yet is less.
    const grown = sizes.at(-1)! - sizes[9]!;
    expect(grown).toBeLessThan(150);
  });
});

it('a plan is to be had without a hook', async () => {
  const plan = await planModel('pebble', CPU, native());
  expect(plan).toMatchObject({ backend: 'cpu', model: expect.stringMatching(/pebble/i), fits: true });
  expect(plan.text).toContain('cpu');
});

it('a backend of the platform goes first, if it has a device', async () => {
  const backends = { linux: ['cuda-of-tomorrow', 'cpu'], ios: ['mlx'] };
  const model = { source: 'pebble', backends };
  expect((await planModel(model, { context: 512 }, native())).backend).toBe('cpu');
  expect(await native().choose(['cuda-of-tomorrow'])).toBeUndefined();
});

it('a phone has to say where models go', async () => {
  const phone = native({ platform: 'android' });
  expect(await refusal(phone.isDownloaded('gemma4:e2b'))).toMatchObject({ code: 'invalid_argument' });
  expect(await phone.isDownloaded('pebble')).toBe(true);
});
