import { expect, gate, test } from "./page.ts";

test("a reload without the server shows the conversations and says what is missing", async ({ chat, mock, page }) => {
  chat.allowed.push(/Failed to load resource|ERR_/);
  mock.respond = async (stream) => {
    await stream.text("Kept *here*, with $x^2$ and\n\n```rust\nfn main() {}\n```\n");
    stream.end();
  };
  await chat.open();
  await page.evaluate(() => navigator.serviceWorker.ready.then(() => {}));
  await chat.ask("Stay");
  const port = mock.port;
  await mock.stop();
  await page.reload();
  await expect(chat.users.first()).toContainText("Stay");
  await expect(chat.last.locator(".md em")).toHaveText("here");
  // Also what is loaded on first use.
  await expect(chat.last.locator("math")).toHaveCount(1);
  await expect(chat.last.locator(".hljs-keyword")).toHaveText("fn");
  await expect(page.locator(".bar")).toContainText("The server can't be reached.");
  await page.getByRole("button", { name: "New conversation" }).click();
  await expect(page.getByRole("heading", { name: "The server can't be reached" })).toBeVisible();
  // Send is off without a model; the Enter key still says why.
  await chat.message.fill("Too early");
  await chat.message.press("Enter");
  await expect(page.getByRole("alert")).toContainText("The server can't be reached; the message is kept here.");
  await expect(chat.message).toHaveValue("Too early");
  // The page finds the server by itself, too: not before the button is pressed.
  const list = gate();
  mock.hold = list.opened;
  await mock.start(port);
  await page.getByRole("button", { name: "Try again" }).click();
  list.open();
  await chat.known();
  await chat.ask("Back?");
  await expect(chat.last).toContainText("Kept here");
});

test("a newer page is offered and taken over", async ({ chat, mock, page }) => {
  await chat.open();
  await page.evaluate(() => navigator.serviceWorker.ready.then(() => {}));
  await expect.poll(() => page.evaluate(() => navigator.serviceWorker.controller !== null)).toBe(true);
  const files = (mock as unknown as { files: Map<string, { type: string; bytes: Buffer; plain?: boolean }> }).files;
  const { brotliCompressSync, brotliDecompressSync } = await import("node:zlib");
  const worker = files.get("/sw.js")!;
  const text = brotliDecompressSync(worker.bytes).toString("utf8");
  const changed = text.replace(/lapidary-[0-9a-f]{16}|[0-9a-f]{16}/, (old) => old.replace(/[0-9a-f]{4}$/, "ffff"));
  expect(changed).not.toBe(text);
  files.set("/sw.js", { ...worker, bytes: brotliCompressSync(Buffer.from(changed)) });
  await page.reload();
  await expect(page.getByText("A newer page is ready.")).toBeVisible();
  await page.getByRole("button", { name: "Reload" }).click();
  await expect(page.getByText("A newer page is ready.")).toBeHidden();
  await expect.poll(() => page.evaluate(() => caches.keys())).toEqual([expect.stringMatching(/ffff$/)]);
});
