import { accessSync, constants } from 'node:fs';
import { delimiter, join } from 'node:path';

import { defineConfig } from '@playwright/test';

const NAMES = ['chromium-headless-shell', 'chromium', 'chromium-browser', 'google-chrome', 'chrome'];

/** Where a Chromium is. Playwright would fetch its own, from a host that need not be reachable. */
function browser(): string | undefined {
  const folders = (process.env.PATH ?? '').split(delimiter);
  const all = NAMES.flatMap((name) => folders.map((folder) => join(folder, name)));
  const is = (path: string) => {
    try {
      accessSync(path, constants.X_OK);
      return true;
    } catch {
      return false;
    }
  };
  return process.env.LAPIDARY_CHROMIUM || all.find(is);
}

export default defineConfig({
  testDir: 'tests/page',
  testMatch: '*.page.ts',
  workers: 1,
  // Long enough for a machine that does other things, too: who is not waiting loses nothing.
  timeout: 900_000,
  expect: { timeout: 300_000 },
  forbidOnly: true,
  reporter: [['list']],
  outputDir: 'test-results',
  use: {
    locale: 'en-GB',
    timezoneId: 'UTC',
    viewport: { width: 420, height: 800 },
    launchOptions: {
      executablePath: browser(),
      args: [
        '--no-sandbox',
        '--use-fake-device-for-media-stream',
        '--use-fake-ui-for-media-stream',
      ],
    },
  },
});
