// The hook over the package's real path: the generated TypeScript and C++, and React Native's JSI. Run by
// `cargo xtask bindings --all`.

import './globals';

import { createElement } from 'react';
import { createRoot } from 'test-renderer';

import * as bindings from '../../src/generated/lapidary';
import { NativeHost, codesThatDiffer, type Bindings } from '../../src/hosts/native';
import { useLLM, type LLMProps, type LLMType } from '../../src';

const CPU = { backend: 'cpu', context: 1024 } as const;

function check(ok: boolean, what: string): asserts ok {
  if (!ok) throw new Error(`it is not so: ${what}`);
}

const moment = () => new Promise<void>((done) => setTimeout(done, 5));

async function until(is: () => boolean, what: string): Promise<void> {
  const end = Date.now() + 200_000;
  while (!is()) {
    check(Date.now() < end, what);
    await moment();
  }
}

async function refusal(work: () => Promise<unknown>): Promise<{ name: string; code: string }> {
  try {
    await work();
  } catch (thrown) {
    return thrown as { name: string; code: string };
  }
  throw new Error('it was not refused');
}

async function scenario(image: string): Promise<void> {
  bindings.default.initialize();
  check(codesThatDiffer(bindings as Bindings).length === 0, 'codes are those of the engine');
  const host = new NativeHost(bindings as Bindings, { platform: 'linux', offline: true });
  let llm!: LLMType;
  const pieces = new Set<string>();
  let onPiece: () => void = () => undefined;
  const Show = (props: LLMProps) => {
    llm = useLLM(props);
    pieces.add(llm.response);
    if (llm.isGenerating && llm.response) onPiece();
    return null;
  };
  const root = createRoot();
  const show = (model: string) => root.render(createElement(Show, { model, host, loadOptions: CPU }));

  show('/no/such/model.gguf');
  await until(() => llm?.phase === 'failed', 'what is not there fails');
  check(llm.error?.code === 'not_found', `the code is ${llm.error?.code}`);

  show('pebble');
  await until(() => llm.isReady, 'pebble loads');
  check(llm.plan!.totalBytes > 1e7 && llm.loadProgress === 1, 'there is a plan');
  print('loaded');

  llm.configure({ generationConfig: { temperature: 0, outputTokenBatchSize: 1 } });
  const sum = await llm.sendMessage('What is 4 + 7?');
  check(sum.includes('11'), sum);
  pieces.clear();
  const story = await llm.sendMessage('Tell me a story about a fox.');
  check(story.length > 40 && pieces.size > 3, `${pieces.size} states of ${story}`);
  check(llm.stats!.reusedTokens > 0, 'the second turn computes only what is new');
  check(llm.messageHistory.length === 4, 'the history has both turns');
  print(`streamed ${pieces.size} states`);

  const shown = await llm.sendMessage('Describe this image.', { imagePath: image });
  check(/star/i.test(shown), shown);
  print('saw an image');

  const before = llm.messageHistory.length;
  onPiece = () => llm.interrupt();
  const ended = llm.sendMessage('Tell me a story about a fox.');
  const busy = await refusal(() => llm.sendMessage('And now?'));
  check(busy.name === 'LapidaryError' && busy.code === 'busy', `the code is ${busy.code}`);
  const half = await ended;
  check(half.length > 0 && half.length < story.length, `${half.length} of ${story.length}`);
  await until(() => !llm.isGenerating && llm.messageHistory.length === before + 2, 'it ends');
  check(llm.stats!.finishReason === 'cancelled', `it ended by ${llm.stats!.finishReason}`);
  print('stopped');

  const long = await refusal(() => llm.sendMessage('a fox '.repeat(2000)));
  check(long.code === 'context_length_exceeded', `the code is ${long.code}: ${String(long)}`);
  const last = llm;
  root.unmount();
  await moment();
  const gone = await refusal(() => last.sendMessage('Hello?'));
  check(gone.code === 'model_unloaded', `the code is ${gone.code}`);
  print('refused what it should');
}

declare function print(text: string): void;
declare function exit(code: number): void;
declare const IMAGE: string;

scenario(IMAGE).then(
  () => {
    print('all is well');
    exit(0);
  },
  (thrown: Error) => {
    print(`${thrown.message}\n${thrown.stack}`);
    exit(1);
  },
);
