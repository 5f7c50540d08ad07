// The example app, as a browser shows it: React Native's components by react-native-web, the engine in the
// process that serves the page, and a hub on this machine that is slow and breaks off twice.

import { mkdtempSync, rmSync } from 'node:fs';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { expect, test, type Page } from '@playwright/test';

const SERVER = join(__dirname, '..', '..', 'example', 'dist', 'server.cjs');
const IMAGE = join(__dirname, '..', '..', '..', '..', 'pebble/heldout/images/drawing17.png');

interface Served {
  url: string;
  close: () => void;
}

let served: Served;
let cache: string;
const demo = { rate: 12_000_000, cuts: 2 };

test.beforeAll(async () => {
  cache = mkdtempSync(join(tmpdir(), 'lapidary-page-'));
  const { start } = createRequire(__filename)(SERVER) as {
    start: (options: object) => Promise<Served>;
  };
  served = await start({ port: 0, demo, cache });
});

test.afterAll(() => {
  served.close();
  rmSync(cache, { recursive: true });
});

/** For people, when they are asked for. */
async function shot(page: Page, name: string): Promise<void> {
  const folder = process.env.LAPIDARY_SHOTS;
  if (folder) await page.screenshot({ path: join(folder, `${name}.png`) });
}

const send = async (page: Page, text: string) => {
  await page.getByLabel('message').fill(text);
  await page.getByRole('button', { name: 'Send' }).click();
};

test('a model is picked, downloaded, asked, shown an image, and interrupted', async ({ page }) => {
  const wrong: string[] = [];
  page.on('pageerror', (error) => wrong.push(String(error)));
  page.on('console', (message) => message.type() === 'error' && wrong.push(message.text()));
  await page.goto(`${served.url}/?model=demo/pebble`);

  // What is built in has a plan at once; what is not here has none.
  await expect(page.getByText(/MB on cpu/)).toBeVisible();
  await shot(page, '1-plan');
  await page.getByRole('radio', { name: 'demo/pebble' }).click();
  await expect(page.getByText('The model is not on this device yet.')).toBeVisible();
  await page.getByRole('button', { name: 'Download and load' }).click();

  // The download is watched: more than one number between none and all.
  const bar = page.getByRole('progressbar');
  await expect(bar).toBeVisible();
  const seen = new Set<number>();
  await expect
    .poll(async () => {
      const now = await bar.getAttribute('aria-valuenow', { timeout: 500 }).catch(() => null);
      if (now !== null) seen.add(Number(now));
      if (seen.size === 3) await shot(page, '2-download');
      return page.getByLabel('message').isVisible();
    }, { intervals: [50] })
    .toBe(true);
  expect([...seen].filter((percent) => percent > 0 && percent < 100).length).toBeGreaterThan(1);
  // It broke off as often as it was told to.
  expect(demo.cuts).toBe(0);

  await send(page, 'What is 4 + 7?');
  await expect(page.getByText('11', { exact: false }).last()).toBeVisible();
  await expect(page.getByTestId('stats')).toContainText('tokens/s');
  await shot(page, '3-chat');

  // Pebble sees, and does not hear.
  await expect(page.getByRole('button', { name: 'Voice' })).toBeDisabled();
  const chooser = page.waitForEvent('filechooser');
  await page.getByRole('button', { name: 'Image' }).click();
  await (await chooser).setFiles(IMAGE);
  await expect(page.getByLabel('the image to send')).toBeVisible();
  await send(page, 'Describe this image.');
  await expect(page.getByText(/yellow.*star/i)).toBeVisible();
  await expect(page.getByTestId('stats')).toContainText('reused');
  await shot(page, '4-image');

  await send(page, 'Tell me a story about a fox.');
  const stop = page.getByRole('button', { name: 'Stop' });
  await expect(stop).toBeVisible();
  await stop.click();
  await expect(page.getByRole('button', { name: 'Send' })).toBeVisible();
  await shot(page, '5-interrupted');

  // Another model in the same place.
  await page.getByRole('radio', { name: 'pebble', exact: true }).click();
  await page.getByRole('button', { name: 'Load' }).click();
  await send(page, 'What is 4 + 7?');
  await expect(page.getByText('11', { exact: false }).last()).toBeVisible();
  expect(wrong).toEqual([]);
});

test('another page’s script gets nothing', async ({ request }) => {
  const ask = (headers: Record<string, string>) =>
    request.post(`${served.url}/engine/downloaded`, { headers, data: { source: 'pebble' } });
  expect((await ask({})).status()).toBe(200);
  expect((await ask({ origin: 'http://example.com' })).status()).toBe(403);
  expect((await ask({ host: 'example.com' })).status()).toBe(403);
});
