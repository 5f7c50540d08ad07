// Hermes is React Native's engine for JavaScript. It is not to be had alone, but its compiler is: what it
// does not know would stop an app at its start.

import { execFileSync } from 'node:child_process';
import { mkdtempSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join, relative } from 'node:path';

import { transformFileSync } from '@babel/core';

const HERE = join(__dirname, '..');
const COMPILER = join(HERE, 'node_modules/hermes-compiler/hermesc/linux64-bin/hermesc');

function sources(folder: string): string[] {
  return readdirSync(folder, { withFileTypes: true }).flatMap((entry) => {
    const path = join(folder, entry.name);
    return entry.isDirectory() ? sources(path) : [path];
  });
}

it('Hermes compiles what the package is made of', () => {
  const out = mkdtempSync(join(tmpdir(), 'lapidary-hermes-'));
  const files = sources(join(HERE, 'src'));
  expect(files.length).toBeGreaterThan(15);
  try {
    const modules = files.map((file) => {
      const options = { cwd: HERE, caller: { name: 'metro', platform: 'ios' } as never };
      const { code } = transformFileSync(file, options)!;
      return `define(${JSON.stringify(relative(HERE, file))}, (require, module, exports) => {${code}\n});`;
    });
    const bundle = join(out, 'bundle.js');
    writeFileSync(bundle, modules.join('\n'));
    execFileSync(COMPILER, ['-O', '-w', '-emit-binary', '-out', `${bundle}.hbc`, bundle], { stdio: 'pipe' });
  } finally {
    rmSync(out, { recursive: true });
  }
});
