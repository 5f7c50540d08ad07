import { execFileSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';

import { bindings } from '../node/bindings';
import { NativeHost, codesThatDiffer } from '../src/hosts/native';
import { models } from '../src';
import type { ModelEntry } from '../src/types';

const HERE = join(__dirname, '..');

it('the models are those of the hub’s table', () => {
  execFileSync(process.execPath, ['scripts/models.mjs', '--check'], { cwd: HERE, stdio: 'pipe' });
});

it('every model has a name that the engine knows', () => {
  const known = new Map(new bindings.Hub(undefined).models().map((model) => [model.name, model]));
  const entries: ModelEntry[] = Object.values(models.llm);
  const listed = entries.filter(({ source }) => known.has(source));
  expect(listed).toHaveLength(known.size);
  for (const { source, parameters, gated } of listed) {
    const model = known.get(source)!;
    expect([source, parameters, gated]).toEqual([source, Number(model.parameters), model.gated]);
  }
});

it('the codes are those of the engine', () => {
  expect(codesThatDiffer(bindings)).toEqual([]);
});

/** Checks of functions and records, as a generated file holds them. */
function checksums(file: string): string[] {
  const text = readFileSync(join(HERE, file), 'utf8');
  return [...text.matchAll(/checksum_\w+\(\)\s*!==\s*\d+/g)].map(([all]) => all.replace(/\s+/g, ' ')).sort();
}

it('the bindings for React Native are made from the same engine as those for Node, which are checked', () => {
  const node = checksums('node/generated/lapidary.ts');
  expect(node.length).toBeGreaterThan(50);
  expect(checksums('src/generated/lapidary.ts')).toEqual(node);
});

it('C++ calls what TypeScript asks for', () => {
  const cpp = readFileSync(join(HERE, 'cpp/generated/lapidary.cpp'), 'utf8');
  const ts = readFileSync(join(HERE, 'src/generated/lapidary-ffi.ts'), 'utf8');
  const asked = new Set([...ts.matchAll(/ubrn_uniffi_lapidary_ffi_fn_\w+/g)].map(([name]) => name));
  expect(asked.size).toBeGreaterThan(50);
  expect([...asked].filter((name) => !cpp.includes(`"${name}"`))).toEqual([]);
});

it('a host without a hub asks for none', async () => {
  const host = new NativeHost(bindings, { platform: 'linux', offline: true });
  expect(await host.isDownloaded('/a/path')).toBe(true);
});
