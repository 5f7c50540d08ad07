// The page as `lapidary serve` serves it, with the model that is built in.
//
// LAPIDARY_BIN names the program; `cargo xtask web --test --served` builds it and sets this.

import { spawn, type ChildProcess } from "node:child_process";
import { readFileSync } from "node:fs";
import { join } from "node:path";

import AxeBuilder from "@axe-core/playwright";
import { expect, test as base, type Page } from "@playwright/test";

const web = join(import.meta.dirname, "../..");

interface Served {
  url: string;
  process: ChildProcess;
  ended: Promise<void>;
}

async function serve(options: string[]): Promise<Served> {
  const process_ = spawn(process.env["LAPIDARY_BIN"]!, ["serve", "pebble", "--port", "0", ...options], {
    stdio: ["ignore", "pipe", "pipe"],
  });
  const ended = new Promise<void>((resolve) => process_.on("exit", () => resolve()));
  const url = await new Promise<string>((resolve, reject) => {
    let said = "";
    const read = (bytes: Buffer) => {
      said += bytes.toString();
      const found = /serving at (http:\/\/\S+:\d+)\s/.exec(said)?.[1];
      if (found) resolve(found);
    };
    process_.stdout.on("data", read);
    process_.stderr.on("data", read);
    process_.on("exit", () => reject(new Error(said)));
  });
  return { url, process: process_, ended };
}

const test = base.extend<{ options: string[]; served: Served; problems: string[] }>({
  options: [[], { option: true }],
  served: async ({ options }, use) => {
    const served = await serve(options);
    await use(served);
    served.process.kill();
    await served.ended;
  },
  problems: async ({ page }, use) => {
    const problems: string[] = [];
    page.on("pageerror", (error) => problems.push(String(error)));
    page.on("console", (message) => {
      if (message.type() === "error") problems.push(message.text());
    });
    await use(problems);
  },
});

const message = (page: Page) => page.getByRole("textbox", { name: "Message", exact: true });
const answers = (page: Page) => page.locator("article.assistant");

async function ask(page: Page, text: string): Promise<void> {
  const before = await answers(page).count();
  await message(page).fill(text);
  // Until the page knows a model, the message stays where it is.
  await expect(page.getByRole("button", { name: "Send", exact: true })).toBeEnabled();
  await message(page).press("Enter");
  await expect(answers(page)).toHaveCount(before + 1);
  await expect(answers(page).last()).toHaveAttribute("aria-busy", "false", { timeout: 60_000 });
}

test("every file comes as it was built, under the policy", async ({ served, request }) => {
  const policy = readFileSync(join(web, "csp.txt"), "utf8").trim();
  const rows = readFileSync(join(web, "dist/files.rs"), "utf8").matchAll(/path: "([^"]+)",\s*content_type: "([^"]+)"/g);
  for (const [, path, type] of rows) {
    const response = await request.get(served.url + path);
    expect(response.status(), path).toBe(200);
    expect(response.headers()["content-type"]).toBe(type);
    expect(response.headers()["content-security-policy"]).toBe(policy);
    expect((await response.body()).equals(readFileSync(join(web, "dist", path!))), path).toBe(true);
  }
});

test("chat, speed, branch and reload", async ({ served, page, problems }) => {
  await page.goto(served.url);
  await expect(page.getByRole("heading", { name: "pebble" })).toBeVisible();
  await expect(page.locator(".facts")).toContainText("2,048 tokens");
  await ask(page, "What is the capital of France?");
  await expect(answers(page).last()).toContainText("Paris");
  await expect(answers(page).last().locator(".stats")).toContainText(/TTFT\s*[\d.]+ m?s/);
  await expect(answers(page).last().locator(".stats")).toContainText("tok/s");
  await answers(page).last().getByRole("button", { name: "Regenerate" }).click();
  await expect(answers(page).last().locator(".versions")).toContainText("2 / 2");
  await expect(answers(page).last()).toHaveAttribute("aria-busy", "false");
  await page.reload();
  await expect(answers(page).last()).toContainText("Paris");
  expect((await new AxeBuilder({ page }).analyze()).violations).toEqual([]);
  expect(problems).toEqual([]);
});

test("stop ends the answer on the server, too", async ({ served, page, request }) => {
  await page.goto(served.url);
  await message(page).fill("Tell me a story about a fox.");
  await message(page).press("Enter");
  await expect(answers(page).last()).not.toHaveText(/Reading the prompt/);
  await page.keyboard.press("Escape");
  await expect(answers(page).last()).toHaveAttribute("aria-busy", "false");
  await expect
    .poll(async () => {
      const metrics = await (await request.get(`${served.url}/metrics`)).text();
      return /num_requests_running\S* (\d+)/.exec(metrics)?.[1];
    })
    .toBe("0");
});

test("an answer is held to a JSON schema", async ({ served, page, problems }) => {
  await page.goto(served.url);
  await page.getByRole("button", { name: /^Settings/ }).click();
  const settings = page.getByRole("dialog", { name: "Settings" });
  await settings.getByLabel("Temperature").fill("0");
  await settings.getByLabel("Max tokens").fill("200");
  await settings.getByLabel("Format").selectOption("json_schema");
  const schema = { type: "object", properties: { kind: { enum: ["cat", "dog"] } }, required: ["kind"], additionalProperties: false };
  await settings.getByLabel("JSON schema").fill(JSON.stringify(schema));
  await page.keyboard.press("Escape");
  await ask(page, "Which animal barks?");
  const value = JSON.parse((await answers(page).last().locator("figure.code code").textContent())!) as { kind: string };
  expect(["cat", "dog"]).toContain(value.kind);
  expect(problems).toEqual([]);
});

test("an image is sent and answered", async ({ served, page, problems }) => {
  await page.goto(served.url);
  const data = await page.evaluate(() => {
    const canvas = document.createElement("canvas");
    canvas.width = canvas.height = 64;
    const context = canvas.getContext("2d")!;
    context.fillStyle = "white";
    context.fillRect(0, 0, 64, 64);
    context.fillStyle = "red";
    context.fillRect(16, 16, 32, 32);
    return canvas.toDataURL("image/png").split(",")[1]!;
  });
  const choosing = page.waitForEvent("filechooser");
  await page.getByRole("button", { name: "Add files" }).click();
  await (await choosing).setFiles({ name: "red.png", mimeType: "image/png", buffer: Buffer.from(data, "base64") });
  await expect(page.getByRole("img", { name: "red.png" })).toBeVisible();
  await ask(page, "What do you see?");
  await expect(answers(page).last().locator(".problem")).toHaveCount(0);
  await expect(answers(page).last().locator(".md")).not.toBeEmpty();
  expect(problems).toEqual([]);
});

test("a declared tool is called, and its result answered", async ({ served, page, problems }) => {
  await page.goto(served.url);
  await page.getByRole("button", { name: /^Settings/ }).click();
  const tool = {
    name: "get_weather",
    description: "Gets the weather of a city",
    parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
  };
  await page.getByLabel(/^Tools/).fill(JSON.stringify([tool]));
  await page.getByLabel("Temperature").fill("0");
  await page.keyboard.press("Escape");
  await ask(page, "What is the weather in Oslo?");
  await expect(answers(page).last().locator("details.call summary")).toContainText("get_weather");
  await page.getByLabel("Result of get_weather").fill('{"weather": "sunny"}');
  await page.getByRole("button", { name: "Send result" }).click();
  await expect(answers(page)).toHaveCount(2);
  await expect(answers(page).last()).toHaveAttribute("aria-busy", "false");
  await expect(answers(page).last().locator(".problem")).toHaveCount(0);
  expect(problems).toEqual([]);
});

test.describe("with a key", () => {
  test.use({ options: ["--api-key", "a-key-of-a-test"] });

  test("the page asks for it", async ({ served, page }) => {
    await page.goto(served.url);
    await page.getByLabel("API key").fill("wrong");
    await page.getByRole("button", { name: "Continue" }).click();
    await expect(page.getByText("The server refused this key.")).toBeVisible();
    await page.getByLabel("API key").fill("a-key-of-a-test");
    await page.getByRole("button", { name: "Continue" }).click();
    await ask(page, "What is the capital of France?");
    await expect(answers(page).last()).toContainText("Paris");
  });
});

test("a reload after the server ended shows the conversation", async ({ served, page }) => {
  await page.goto(served.url);
  await page.evaluate(() => navigator.serviceWorker.ready.then(() => {}));
  await ask(page, "What is the capital of France?");
  served.process.kill();
  await served.ended;
  await page.reload();
  await expect(answers(page).last()).toContainText("Paris");
  await expect(page.locator(".bar")).toContainText("The server can't be reached.");
});
