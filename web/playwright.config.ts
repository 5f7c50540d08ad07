import { defineConfig } from "@playwright/test";

import { browser } from "./tests/browser.ts";

export default defineConfig({
  testDir: "tests",
  fullyParallel: true,
  workers: 2,
  // Long enough for a machine that does other things, too: who is not waiting loses nothing.
  timeout: 300_000,
  expect: { timeout: 60_000 },
  forbidOnly: true,
  reporter: [["list"]],
  outputDir: "test-results",
  use: {
    locale: "en-GB",
    timezoneId: "UTC",
    viewport: { width: 1200, height: 800 },
    launchOptions: {
      executablePath: browser(),
      args: [
        "--no-sandbox",
        "--use-fake-device-for-media-stream",
        "--use-fake-ui-for-media-stream",
        "--autoplay-policy=no-user-gesture-required",
      ],
    },
  },
  projects: [
    { name: "unit", testDir: "tests/unit" },
    { name: "page", testDir: "tests/page" },
    ...(process.env["LAPIDARY_BIN"] ? [{ name: "served", testDir: "tests/served" }] : []),
  ],
});
