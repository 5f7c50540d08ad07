// What it costs to be told of one event: an answer is computed first and read then, so that nothing but
// the way from Rust to the script is measured. Run by `cargo xtask bindings --events`.

import { bindings } from './bindings';

const TOKENS = 400;
const ROUNDS = 8;

export async function measure(): Promise<void> {
  const { Model, LoadOptions, AnswerOptions, Message, Part, Role } = bindings;
  const model = await Model.open('pebble', undefined);
  const loading = model.load(LoadOptions.create({ backend: 'cpu', context: 1024 }));
  while ((await loading.next()) !== undefined);
  const engine = await loading.engine();
  const said = Message.create({ role: Role.User, parts: [new Part.Text({ text: 'Tell me a story.' })] });
  const options = AnswerOptions.create({ temperature: 1, maxTokens: TOKENS, logprobs: 0 });
  let [events, seconds, best] = [0, 0, Infinity];
  for (let round = 0; round < ROUNDS; round++) {
    const before = engine.metrics().finished;
    const stream = await engine.answer([said], options);
    while (engine.metrics().finished === before) await new Promise((done) => setTimeout(done, 20));
    let count = 0;
    const start = performance.now();
    while ((await stream.next()) !== undefined) count += 1;
    const taken = (performance.now() - start) / 1000;
    events += count;
    seconds += taken;
    best = Math.min(best, taken / count);
  }
  const microseconds = (value: number) => `${(value * 1e6).toFixed(1)} µs`;
  console.log(`Node: ${events} events, ${microseconds(seconds / events)} each, ${microseconds(best)} at best`);
}
