// What one event of an answer costs on its way from Rust. LAPIDARY_FFI names the library.

import { createRequire } from 'node:module';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

import { build } from 'esbuild';

const here = dirname(dirname(fileURLToPath(import.meta.url)));
const outfile = join(here, 'example', 'dist', 'events.cjs');
await build({
  entryPoints: [join(here, 'node', 'events.ts')],
  outfile,
  bundle: true,
  platform: 'node',
  format: 'cjs',
  target: 'node20',
  external: ['@ubjs/*'],
  logLevel: 'warning',
});
const { measure } = createRequire(import.meta.url)(outfile);
await measure();
process.exit(0);
