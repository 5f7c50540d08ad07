// Writes src/models.ts from the hub's table. `--check` only compares.

import { readFileSync, writeFileSync } from 'node:fs';
import { parse } from 'smol-toml';

const table = new URL('../../../crates/hub/models.toml', import.meta.url);
const target = new URL('../src/models.ts', import.meta.url);

const quoted = (text) => `'${text.replaceAll("'", "\\'")}'`;
const list = (words) => `[${words.map(quoted).join(', ')}]`;

/** The module's text. */
function write(toml) {
  const { platforms, model: models } = parse(toml);
  const lines = [
    '// Made from crates/hub/models.toml by `npm run models`. Do not change it here.',
    '',
    "import type { ModelEntry } from './types';",
    '',
    '/** Backends to try, best first; elsewhere the engine chooses. */',
    'const backends = {',
    ...Object.entries(platforms).map(([name, order]) => `  ${name}: ${list(order)},`),
    '} as const;',
    '',
    '/** Every released model that has a name. `pebble` is built in. */',
    'export const models = {',
    '  llm: {',
    "    pebble: { source: 'pebble', modelName: 'pebble', title: 'pebble', input: ['text', 'image'], backends },",
  ];
  for (const { family, size, title, params, input, licence, gated, variant, ...model } of models) {
    const entry = (key, source) => [
      `    ${key}: {`,
      `      source: ${quoted(source)},`,
      `      modelName: ${quoted(source.replace(':', '-'))},`,
      `      title: ${quoted(title)},`,
      `      parameters: ${String(params).replace(/\B(?=(\d{3})+$)/g, '_')},`,
      `      input: ${list(input)},`,
      `      licence: ${quoted(licence)},`,
      `      gated: ${Boolean(gated)},`,
      '      backends,',
      '    },',
    ];
    const plain = (text) => text.replace(/[^a-z0-9]+/gi, '_');
    lines.push(...entry(plain(`${family}_${size}`), `${family}:${size}`));
    for (const { name } of variant) {
      // A drafter is no model that one talks to.
      if (name === model.default || name.includes('assistant')) continue;
      lines.push(...entry(plain(`${family}_${size}_${name}`), `${family}:${size}-${name}`));
    }
  }
  lines.push('  },', '} as const satisfies { llm: Record<string, ModelEntry> };', '');
  return lines.join('\n');
}

const made = write(readFileSync(table, 'utf8'));
if (!process.argv.includes('--check')) writeFileSync(target, made);
else if (readFileSync(target, 'utf8') !== made) {
  console.error('src/models.ts is not what the table says: run `npm run models`');
  process.exit(1);
}
