// Screens to be looked at, in shots/; what can be measured of them is.

import { mkdirSync } from "node:fs";
import { join } from "node:path";

import { SAMPLE } from "../mock/server.mjs";
import { expect, test, type Chat } from "./page.ts";

const folder = join(import.meta.dirname, "../../shots");
const SIZES = { desk: { width: 1200, height: 860 }, phone: { width: 375, height: 780 } };

async function shot(chat: Chat, name: string): Promise<void> {
  mkdirSync(folder, { recursive: true });
  const { page } = chat;
  const wide = await page.evaluate(() =>
    [...document.querySelectorAll("body *")]
      .filter((node) => {
        const { left, right } = node.getBoundingClientRect();
        return (right > innerWidth + 1 || left < -1) && !node.closest("pre, .table, .maths, .hidden, svg");
      })
      .map((node) => node.outerHTML.slice(0, 120)),
  );
  expect(wide, `${name}: nothing sticks out`).toEqual([]);
  await page.screenshot({ path: join(folder, `${name}.png`), animations: "disabled" });
}

for (const colorScheme of ["light", "dark"] as const) {
  for (const [size, viewport] of Object.entries(SIZES)) {
    test.describe(`${colorScheme} ${size}`, () => {
      test.use({ colorScheme, viewport });

      test("screens", async ({ chat, mock, page }) => {
        const name = (what: string) => `${size}-${colorScheme}-${what}`;
        chat.allowed.push(/Failed to load resource|ERR_/);
        mock.respond = async (stream, body, nth) => {
          if (nth === 2) {
            stream.delta({ reasoning_content: "The user wants the weather, so a tool is needed." });
            stream.delta({ tool_calls: [{ index: 0, id: "c", type: "function", function: { name: "get_weather", arguments: '{"city": "Oslo", "days": 3}' } }] });
            return stream.end("tool_calls");
          }
          if (nth === 3) return stream.fail(400, { message: "the prompt has 9,214 tokens and the context 8,192", code: "context_length_exceeded" });
          stream.delta({ reasoning_content: "Pages first, then a formula." });
          await stream.text(SAMPLE);
          stream.end("stop", { prompt: 5210, completion: 1422, cached: 4096 });
        };
        await chat.open();
        await expect(page.getByRole("heading", { name: "gemma-4-e2b" })).toBeVisible();
        await shot(chat, name("1-empty"));
        await chat.ask("How does prefix reuse work, and what does it cost?");
        await expect(chat.last.locator("math")).toHaveCount(3);
        await expect(chat.last.locator(".hljs-keyword").first()).toBeVisible();
        await page.locator(".scroller").evaluate((node) => (node.scrollTop = 0));
        await shot(chat, name("2-answer"));
        await page.getByRole("button", { name: "Go to the end" }).click();
        await shot(chat, name("3-end"));
        await chat.last.getByRole("button", { name: "Regenerate" }).click();
        await expect(chat.last.locator(".results")).toBeVisible();
        await chat.last.locator("details").last().locator("summary").click();
        await shot(chat, name("4-tool"));
        await chat.ask("A message that is too long for the context.");
        await shot(chat, name("5-error"));
        await page.getByRole("button", { name: /^Model:/ }).click();
        await expect(page.getByRole("listbox")).toBeVisible();
        await shot(chat, name("6-models"));
        await page.keyboard.press("Escape");
        const settings = await chat.settings();
        await expect(settings).toBeVisible();
        await shot(chat, name("7-settings"));
        await page.keyboard.press("Escape");
        if (size === "phone") {
          await page.getByRole("button", { name: "Show conversations" }).click();
          await shot(chat, name("8-drawer"));
          await page.getByRole("navigation").getByRole("button", { name: "Close conversations" }).click();
        }
        mock.key = "secret";
        await page.reload();
        await expect(page.getByLabel("API key")).toBeVisible();
        await shot(chat, name("9-key"));
      });
    });
  }
}
