// The example in a browser: bundles it, and serves it with an engine.
//
//   npm run example                       http://127.0.0.1:8765, models from Hugging Face's cache
//   npm run example -- --demo-hub [RATE]  another hub, on this machine, that gives out `demo/pebble`
//   npm run example -- --bundle           bundles only

import { existsSync, mkdtempSync } from 'node:fs';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

import { build } from 'esbuild';

const here = dirname(dirname(fileURLToPath(import.meta.url)));
const out = join(here, 'example', 'dist');

/** `x.web.ts` and `x.ts`, never `x.native.ts`; and React Native is its web version. */
const page = {
  entryPoints: [join(here, 'example', 'index.web.tsx')],
  outfile: join(out, 'app.js'),
  bundle: true,
  minify: true,
  format: 'iife',
  target: 'es2022',
  jsx: 'automatic',
  alias: { 'react-native': 'react-native-web', 'react-native-lapidary': join(here, 'src', 'index.ts') },
  define: { 'process.env.NODE_ENV': '"production"', __DEV__: 'false', global: 'globalThis' },
  mainFields: ['browser', 'module', 'main'],
  logLevel: 'warning',
};

const server = {
  entryPoints: [join(here, 'example', 'server.ts')],
  outfile: join(out, 'server.cjs'),
  bundle: true,
  platform: 'node',
  format: 'cjs',
  target: 'node20',
  external: ['@ubjs/*'],
  logLevel: 'warning',
};

await Promise.all([build(page), build(server)]);
if (!process.argv.includes('--bundle')) {
  if (!existsSync(process.env.LAPIDARY_FFI ?? '')) {
    console.error('LAPIDARY_FFI must name liblapidary_ffi.so: cargo build -p lapidary-ffi');
    process.exit(1);
  }
  const { start } = createRequire(import.meta.url)(join(out, 'server.cjs'));
  const at = process.argv.indexOf('--demo-hub');
  const demo = at < 0 ? undefined : { rate: Number(process.argv[at + 1] ?? 0) || undefined };
  const cache = demo ? mkdtempSync(join(tmpdir(), 'lapidary-example-')) : undefined;
  const { url } = await start({ port: Number(process.env.PORT ?? 8765), demo, cache });
  console.log(demo ? `${url}/?model=demo/pebble` : url);
}
