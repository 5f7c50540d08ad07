// Bundles tests/jsi for an engine that is nothing but JavaScript: `node scripts/jsi.mjs OUT IMAGE`.

import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

import { build } from 'esbuild';

const here = dirname(dirname(fileURLToPath(import.meta.url)));
const [outfile, image] = process.argv.slice(2);
await build({
  entryPoints: [join(here, 'tests', 'jsi', 'scenario.tsx')],
  outfile,
  bundle: true,
  format: 'iife',
  target: 'es2022',
  jsx: 'automatic',
  mainFields: ['module', 'main'],
  define: { 'process.env.NODE_ENV': '"production"', __DEV__: 'false', IMAGE: JSON.stringify(image) },
  logLevel: 'warning',
});
