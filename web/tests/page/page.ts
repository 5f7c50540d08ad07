// A page with a server of its own. A test fails when the page logs an error or its policy is broken.

import { test as base, expect, type Locator, type Page } from "@playwright/test";

import { Mock } from "../mock/server.mjs";

export { expect };

export class Chat {
  readonly page: Page;
  readonly mock: Mock;
  /** Errors of the console that a test expects. */
  allowed: RegExp[] = [];
  problems: string[] = [];

  constructor(page: Page, mock: Mock) {
    this.page = page;
    this.mock = mock;
  }

  get message(): Locator {
    return this.page.getByRole("textbox", { name: "Message", exact: true });
  }

  get answers(): Locator {
    return this.page.locator("article.assistant");
  }

  get users(): Locator {
    return this.page.locator("article.user");
  }

  get last(): Locator {
    return this.answers.last();
  }

  async open(): Promise<void> {
    await this.page.goto(this.mock.url);
    await expect(this.message).toBeVisible();
  }

  /** Until the page knows a model. */
  async known(): Promise<void> {
    await expect(this.page.getByRole("button", { name: /^Model: gemma/ })).toBeVisible();
  }

  async send(text: string): Promise<void> {
    await this.message.fill(text);
    await expect(this.page.getByRole("button", { name: "Send", exact: true })).toBeEnabled();
    await this.message.press("Enter");
  }

  /** Sends, and waits for the whole answer. */
  async ask(text: string): Promise<void> {
    const before = await this.answers.count();
    await this.send(text);
    await expect(this.answers).toHaveCount(before + 1);
    await this.settled();
  }

  async settled(): Promise<void> {
    await expect(this.last).toHaveAttribute("aria-busy", "false");
  }

  async settings(): Promise<Locator> {
    await this.page.getByRole("button", { name: /^Settings/ }).click();
    return this.page.getByRole("dialog", { name: "Settings" });
  }
}

export const test = base.extend<{ mock: Mock; chat: Chat }>({
  mock: async ({}, use) => {
    const mock = await new Mock().start();
    await use(mock);
    await mock.stop();
  },
  chat: async ({ page, mock }, use) => {
    const chat = new Chat(page, mock);
    page.on("pageerror", (error) => chat.problems.push(String(error)));
    page.on("console", (message) => {
      if (message.type() === "error" || message.type() === "warning") chat.problems.push(message.text());
    });
    await page.addInitScript(() => {
      document.addEventListener("securitypolicyviolation", (event) => {
        console.error(`policy: ${event.violatedDirective} ${event.blockedURI} ${event.sample}`);
      });
    });
    await use(chat);
    const unexpected = chat.problems.filter((text) => !chat.allowed.some((pattern) => pattern.test(text)));
    expect(unexpected).toEqual([]);
    expect(mock.missing).toEqual([]);
  },
});

/** A promise that a test opens. */
export function gate(): { opened: Promise<void>; open: () => void } {
  let open = () => {};
  const opened = new Promise<void>((resolve) => (open = resolve));
  return { opened, open };
}
