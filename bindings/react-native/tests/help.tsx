import { readFileSync } from 'node:fs';
import { join } from 'node:path';

import { renderHook, type RenderHookResult } from '@testing-library/react-native';
import { StrictMode, type ReactNode } from 'react';

import { bindings } from '../node/bindings';
import { NativeHost, type NativeSettings } from '../src/hosts/native';
import { useLLM, type LLMProps, type LLMType } from '../src';
import type { LLMState } from '../src/types';

export const ROOT = join(__dirname, '..', '..', '..');

/** An image that pebble knows: it says what it shows. */
export const STAR = readFileSync(join(ROOT, 'pebble/heldout/images/drawing17.png'));
export const STAR_PATH = join(ROOT, 'pebble/heldout/images/drawing17.png');

/** Engines of this process, on the CPU everywhere, so that a machine with a GPU says the same. */
export function native(settings: Partial<NativeSettings> = {}): NativeHost {
  return new NativeHost(bindings, { platform: 'linux', offline: true, ...settings });
}

export const CPU = { backend: 'cpu', context: 1024 } as const;

/** The same answer every time. */
export const GREEDY = { temperature: 0 } as const;

export type Hook = RenderHookResult<LLMType, LLMProps>;

export const Strict = ({ children }: { children: ReactNode }) => <StrictMode>{children}</StrictMode>;

export async function hook(props: Partial<LLMProps> = {}, strict = false): Promise<Hook> {
  const initialProps: LLMProps = { model: 'pebble', loadOptions: CPU, ...props };
  const wrapper = strict ? { wrapper: Strict } : {};
  return renderHook(useLLM, { initialProps, ...wrapper });
}

const aMoment = () => new Promise<void>((done) => setTimeout(done, 10));

/**
 * Does something, and lets React show it. Not React's own `act`: what engines do goes on in their threads,
 * and all that it changes would have to happen inside.
 */
export async function act(work: () => unknown): Promise<void> {
  await work();
  await aMoment();
}

/** Waits until the state is so. */
export async function until(
  hook: { result: { current: LLMState } },
  is: (state: LLMState) => boolean,
  seconds = 100,
): Promise<void> {
  const end = Date.now() + seconds * 1000;
  while (!is(hook.result.current)) {
    if (Date.now() > end) throw new Error(`it did not happen: ${JSON.stringify(hook.result.current, null, 1)}`);
    await aMoment();
  }
}

export async function ready(hook: Hook): Promise<LLMType> {
  await until(hook, (state) => state.isReady || state.phase === 'failed');
  const { error } = hook.result.current;
  if (error) throw error;
  return hook.result.current;
}

/** The error that a promise rejects with. */
export async function refusal(promise: Promise<unknown>): Promise<Error & { code: string }> {
  try {
    await promise;
  } catch (thrown) {
    return thrown as Error & { code: string };
  }
  throw new Error('it was not refused');
}

/** Engines answer when they do, not inside React's `act`. Testing Library says otherwise at its import. */
const notActing = () => {
  (globalThis as { IS_REACT_ACT_ENVIRONMENT?: boolean }).IS_REACT_ACT_ENVIRONMENT = false;
};
beforeAll(notActing);
beforeEach(notActing);
