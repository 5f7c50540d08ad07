import { SAMPLE } from "../mock/server.mjs";
import { expect, test } from "./page.ts";

/** Counts what is added to the page from now on, and marks the first block that is whole. */
async function watch(page: import("@playwright/test").Page): Promise<void> {
  await page.evaluate(() => {
    const seen = { added: 0, first: null as Element | null };
    (window as unknown as { seen: typeof seen }).seen = seen;
    new MutationObserver((records) => {
      for (const { addedNodes } of records) {
        for (const node of addedNodes) seen.added += 1 + (node instanceof Element ? node.querySelectorAll("*").length : 0);
      }
      const blocks = document.querySelectorAll(".md .block");
      if (!seen.first && blocks.length > 1) seen.first = blocks[0]!;
    }).observe(document.querySelector(".content")!, { childList: true, subtree: true });
  });
}

const seen = (page: import("@playwright/test").Page) =>
  page.evaluate(() => {
    const { added, first } = (window as unknown as { seen: { added: number; first: Element | null } }).seen;
    const here = document.querySelector(".md .block");
    return { added, kept: first !== null && first === here, nodes: document.querySelectorAll(".content *").length };
  });

test("blocks that are whole are never drawn again", async ({ chat, mock, page }) => {
  mock.respond = async (stream) => {
    for (let i = 0; i < 60; i++) await stream.text(SAMPLE.replace("##", `## ${i}`), i % 5 ? 0 : 1, 40);
    stream.end();
  };
  await chat.open();
  await watch(page);
  await chat.ask("A long answer");
  await expect(chat.last.locator("figure.code")).toHaveCount(60);
  await expect(chat.last.locator("math")).toHaveCount(180);
  await expect(chat.last.locator("figure.code").last().locator(".hljs-keyword").first()).toBeVisible();
  const { added, kept, nodes } = await seen(page);
  expect(kept).toBe(true);
  expect(nodes).toBeGreaterThan(4000);
  // Each block may be drawn some times while it grows; a page drawn anew for each piece adds millions.
  expect(added / nodes).toBeLessThan(25);
});

test("a long block of code grows by its new text alone", async ({ chat, mock, page }) => {
  const line = "let value = compute(&input, 17); // a line of code that says little\n";
  mock.respond = async (stream) => {
    await stream.text("Here it is:\n\n```rust\n");
    for (let i = 0; i < 300; i++) await stream.text(line.repeat(5), i % 3 ? 0 : 1, 120);
    await stream.text("```\n\nThat was all.");
    stream.end();
  };
  await chat.open();
  await watch(page);
  await chat.ask("Much code");
  await expect(chat.last.locator("figure.code")).toHaveCount(1);
  await expect(chat.last).toContainText("That was all.");
  expect((await chat.last.locator("figure.code code").textContent())!.trimEnd()).toBe(line.repeat(1500).trimEnd());
  const { added } = await seen(page);
  expect(added).toBeLessThan(2000);
});

test("a long conversation opens fast: what is far from the screen is drawn when it comes near", async ({ chat, page }) => {
  const nodes = Array.from({ length: 300 }, (_, i) => ({
    id: `n${i}`,
    parent: i ? `n${i - 1}` : null,
    role: i % 2 ? "assistant" : "user",
    text: i % 2 ? SAMPLE : `question ${i}`,
    created: i + 1,
    ending: "stop",
  }));
  const file = { format: "lapidary-conversations", version: 1, conversations: [{ title: "Long", nodes }] };
  await chat.open();
  const settings = await chat.settings();
  const choosing = page.waitForEvent("filechooser");
  await settings.getByRole("button", { name: "Import" }).click();
  await (await choosing).setFiles({ name: "long.json", mimeType: "application/json", buffer: Buffer.from(JSON.stringify(file)) });
  await expect(settings.getByText("1 conversation imported.")).toBeVisible();
  await page.keyboard.press("Escape");
  await page.getByRole("navigation").getByRole("button", { name: /^Long/ }).click();
  await expect(chat.answers).toHaveCount(150);
  await expect(chat.last.locator("math")).toHaveCount(3);
  await expect(chat.answers.first().locator(".block")).toHaveCount(0);
  await expect(chat.answers.first()).toContainText("## Prefix reuse");
  await page.locator(".scroller").evaluate((node) => (node.scrollTop = 0));
  await expect(chat.answers.first().locator("math")).toHaveCount(3);
});
