import { readFileSync } from "node:fs";
import { join } from "node:path";

import type { Page } from "@playwright/test";

import { wav } from "../../src/lib/wav.ts";
import { expect, test } from "./page.ts";

/** A real PNG: the page's own icon is none, so a canvas draws one. */
async function png(page: Page, width: number, height: number): Promise<Buffer> {
  const data = await page.evaluate(
    ([w, h]) => {
      const canvas = document.createElement("canvas");
      [canvas.width, canvas.height] = [w!, h!];
      const context = canvas.getContext("2d")!;
      context.fillStyle = "teal";
      context.fillRect(0, 0, w! / 2, h!);
      return canvas.toDataURL("image/png").split(",")[1]!;
    },
    [width, height],
  );
  return Buffer.from(data, "base64");
}

/** Drops files as a person would: enter, over, drop. */
async function drop(page: Page, files: { name: string; type: string; data: string }[]): Promise<void> {
  const transfer = await page.evaluateHandle((given) => {
    const made = new DataTransfer();
    for (const { name, type, data } of given) {
      const bytes = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));
      made.items.add(new File([bytes], name, { type }));
    }
    return made;
  }, files);
  const target = page.locator(".scroller");
  await target.dispatchEvent("dragenter", { dataTransfer: transfer });
  await expect(page.getByText("Drop images, audio or text files")).toBeVisible();
  await target.dispatchEvent("dragover", { dataTransfer: transfer });
  await target.dispatchEvent("drop", { dataTransfer: transfer });
  await expect(page.getByText("Drop images, audio or text files")).toBeHidden();
}

type Part = { type: string; text?: string; image_url?: { url: string }; input_audio?: { data: string; format: string } };

test("an image that is dropped is shown, sent and kept", async ({ chat, mock, page }) => {
  await chat.open();
  const image = await png(page, 40, 30);
  await drop(page, [{ name: "teal.png", type: "image/png", data: image.toString("base64") }]);
  await expect(page.getByRole("img", { name: "teal.png" })).toBeVisible();
  await chat.ask("What is this?");
  const parts = mock.asked[0]!.messages[0]!.content as Part[];
  expect(parts.map((part) => part.type)).toEqual(["image_url", "text"]);
  expect(parts[0]!.image_url!.url).toBe(`data:image/png;base64,${image.toString("base64")}`);
  await page.reload();
  const shown = chat.users.first().getByRole("img", { name: "teal.png" });
  await expect(shown).toBeVisible();
  await expect.poll(() => shown.evaluate((node: HTMLImageElement) => node.naturalWidth)).toBe(40);
  await chat.ask("And now?");
  expect(mock.asked[1]!.messages[0]).toEqual(mock.asked[0]!.messages[0]);
});

test("a large image is made smaller, a pasted one is taken, and both can be removed", async ({ chat, mock, page }) => {
  await chat.open();
  const image = await png(page, 5000, 2500);
  const choosing = page.waitForEvent("filechooser");
  await page.getByRole("button", { name: "Add files" }).click();
  await (await choosing).setFiles({ name: "large.png", mimeType: "image/png", buffer: image });
  await expect(page.getByRole("img", { name: "large.png" })).toBeVisible();
  await chat.message.focus();
  await page.evaluate((data) => {
    const transfer = new DataTransfer();
    transfer.items.add(new File([Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0))], "pasted.png", { type: "image/png" }));
    document.getElementById("message")!.dispatchEvent(new ClipboardEvent("paste", { clipboardData: transfer, bubbles: true, cancelable: true }));
  }, (await png(page, 8, 8)).toString("base64"));
  await expect(page.getByRole("img", { name: "pasted.png" })).toBeVisible();
  await page.getByRole("button", { name: "Remove pasted.png" }).click();
  await chat.ask("Look");
  const parts = mock.asked[0]!.messages[0]!.content as Part[];
  expect(parts).toHaveLength(2);
  const sent = Buffer.from(parts[0]!.image_url!.url.split(",")[1]!, "base64");
  // Width and height stand in the first chunk of a PNG.
  expect([sent.readUInt32BE(16), sent.readUInt32BE(20)]).toEqual([2048, 1024]);
});

test("an audio file goes along as WAV of 16 kHz, whatever it was", async ({ chat, mock, page }) => {
  await chat.open();
  const samples = Float32Array.from({ length: 44_100 }, (_, i) => Math.sin(i / 20) / 2);
  const choosing = page.waitForEvent("filechooser");
  await page.getByRole("button", { name: "Add files" }).click();
  await (await choosing).setFiles({ name: "tone.wav", mimeType: "audio/wav", buffer: Buffer.from(wav(samples, 44_100)) });
  await expect(page.locator("form.composer").getByText("tone.wav")).toBeVisible();
  await chat.ask("What do you hear?");
  const part = (mock.asked[0]!.messages[0]!.content as Part[])[0]!;
  expect(part.type).toBe("input_audio");
  expect(part.input_audio!.format).toBe("wav");
  const sent = Buffer.from(part.input_audio!.data, "base64");
  expect(sent.readUInt32LE(24)).toBe(16_000);
  expect(sent.length).toBeGreaterThan(31_000);
  expect(sent.length).toBeLessThan(33_000);
  await expect(chat.users.first().locator("audio")).toBeVisible();
});

test("the microphone records", async ({ chat, mock, page }) => {
  await chat.open();
  await page.getByRole("button", { name: "Record audio" }).click();
  await expect(page.getByText(/Recording 0:01/)).toBeVisible();
  await page.getByRole("button", { name: "Finish the recording" }).click();
  await expect(page.locator("form.composer").getByText("recording.wav")).toBeVisible();
  await chat.ask("What did I say?");
  const part = (mock.asked[0]!.messages[0]!.content as Part[])[0]!;
  const sent = Buffer.from(part.input_audio!.data, "base64");
  expect(sent.subarray(0, 4).toString()).toBe("RIFF");
  expect(sent.length).toBeGreaterThan(16_000);
});

test("a text file goes along as text", async ({ chat, mock, page }) => {
  await chat.open();
  await drop(page, [{ name: "main.rs", type: "", data: Buffer.from("fn main() {}\n").toString("base64") }]);
  await expect(page.locator("form.composer").getByText("main.rs")).toBeVisible();
  await chat.ask("Review");
  expect(mock.asked[0]!.messages[0]!.content).toBe("main.rs:\n```rs\nfn main() {}\n```\n\nReview");
});

test("what a model can't take is said before it is sent", async ({ chat, mock, page }) => {
  await chat.open();
  const image = (await png(page, 8, 8)).toString("base64");
  await drop(page, [{ name: "a.png", type: "image/png", data: image }]);
  await expect(page.getByRole("img", { name: "a.png" })).toBeVisible();
  await chat.ask("Look");
  await page.getByRole("button", { name: /^Model:/ }).click();
  await page.getByRole("option", { name: /gemma-3-270m/ }).click();
  await expect(page.getByText("gemma-3-270m takes no images: 1 attachment of this conversation is not sent.")).toBeVisible();
  await expect(page.getByRole("button", { name: "Record audio" })).toBeDisabled();
  await drop(page, [{ name: "b.png", type: "image/png", data: image }]);
  await expect(page.getByRole("alert")).toContainText("gemma-3-270m takes no images");
  await chat.ask("Still there?");
  expect(mock.asked[1]!.messages[0]).toEqual({ role: "user", content: "Look" });
});

test("files that are none of these are refused with their name", async ({ chat, page }) => {
  await chat.open();
  await drop(page, [{ name: "a.zip", type: "application/zip", data: "UEsDBA==" }]);
  await expect(page.getByRole("alert")).toContainText("a.zip: images, audio and text files");
  await drop(page, [{ name: "broken.png", type: "image/png", data: "AAAA" }]);
  await expect(page.getByRole("alert")).toContainText("broken.png is no image");
  const icon = readFileSync(join(import.meta.dirname, "../../public/icon.svg")).toString("base64");
  await drop(page, [{ name: "icon.svg", type: "image/svg+xml", data: icon }]);
  await expect(page.getByRole("alert")).toContainText("icon.svg: images, audio and text files");
});
