import AxeBuilder from "@axe-core/playwright";

import { SAMPLE } from "../mock/server.mjs";
import { expect, gate, test, type Chat } from "./page.ts";

async function clean(chat: Chat, what: string): Promise<void> {
  const { violations } = await new AxeBuilder({ page: chat.page }).analyze();
  const told = violations.map(({ id, nodes }) => `${id}: ${nodes.map((node) => `${node.html} (${node.failureSummary})`).join("; ")}`);
  expect(told, what).toEqual([]);
}

async function rich(chat: Chat): Promise<void> {
  chat.mock.respond = async (stream, _, nth) => {
    stream.delta({ reasoning_content: "Pages first." });
    await stream.text(nth === 1 ? SAMPLE : "# One\n\n#### Four\n\n- [x] done\n- [ ] not\n\n| a | b |\n|---|---|\n| 1 | 2 |");
    if (nth === 1) return stream.end();
    stream.delta({ tool_calls: [{ index: 0, id: "c", type: "function", function: { name: "get_weather", arguments: '{"city": "Oslo"}' } }] });
    stream.end("tool_calls");
  };
  await chat.open();
  await chat.ask("Explain prefix reuse");
  await chat.ask("And the weather?");
  await expect(chat.answers.first().locator("math")).toHaveCount(3);
  await expect(chat.answers.first().locator(".hljs-keyword").first()).toBeVisible();
  await chat.users.first().getByRole("button", { name: "Edit" }).click();
  await chat.page.keyboard.press("Escape");
}

for (const colorScheme of ["light", "dark"] as const) {
  test.describe(colorScheme, () => {
    test.use({ colorScheme });

    test("axe finds nothing in a conversation", async ({ chat, page }) => {
      await rich(chat);
      await clean(chat, "conversation");
      for (const fold of await page.locator("details").all()) await fold.locator("summary").click();
      await clean(chat, "open folds");
      await page.getByRole("button", { name: /^Model:/ }).click();
      await expect(page.getByRole("listbox")).toBeVisible();
      await clean(chat, "models");
      await page.keyboard.press("Escape");
      await chat.users.first().getByRole("button", { name: "Edit" }).click();
      await clean(chat, "editor");
    });

    test("axe finds nothing in dialogs", async ({ chat, page }) => {
      await chat.open();
      await clean(chat, "empty");
      const settings = await chat.settings();
      await settings.getByLabel("Format").selectOption("json_schema");
      await settings.getByLabel("Temperature").fill("9");
      await clean(chat, "settings");
      await page.keyboard.press("Escape");
      await page.keyboard.press("Control+/");
      await expect(page.getByRole("dialog", { name: "Keyboard" })).toBeVisible();
      await clean(chat, "shortcuts");
      await page.keyboard.press("Escape");
      await chat.ask("Hello");
      await chat.last.getByRole("button", { name: "Delete" }).click();
      await clean(chat, "question");
    });

    test("axe finds nothing where something is wrong", async ({ chat, mock, page }) => {
      chat.allowed.push(/Failed to load resource|ERR_/);
      mock.respond = async (stream, _, nth) => {
        if (nth === 1) return stream.fail(500, { message: "internal error" });
        stream.fail(429, { message: "the queue is full" }, { "retry-after": "60" });
      };
      await chat.open();
      await chat.ask("Fail");
      await clean(chat, "error");
      await chat.send("Wait");
      await expect(chat.last).toContainText("Trying again");
      await clean(chat, "busy");
      await chat.last.getByRole("button", { name: "Stop" }).click();
      mock.key = "secret";
      await page.getByRole("button", { name: "New conversation" }).click();
      await page.reload();
      await expect(page.getByLabel("API key")).toBeVisible();
      await clean(chat, "key");
      mock.key = null;
      mock.models = [];
      await page.reload();
      await expect(page.getByText("No model is served")).toBeVisible();
      await clean(chat, "no model");
      await mock.stop();
      await page.reload();
      await expect(page.getByText("The server can't be reached").first()).toBeVisible();
      await clean(chat, "offline");
      await mock.start(mock.port);
    });

    test("axe finds nothing on a phone", async ({ chat, page }) => {
      await page.setViewportSize({ width: 375, height: 720 });
      await rich(chat);
      await clean(chat, "conversation");
      await page.getByRole("button", { name: "Show conversations" }).click();
      await clean(chat, "drawer");
    });
  });
}

test("all of it works from the keyboard", async ({ chat, mock, page }) => {
  mock.respond = async (stream, _, nth) => {
    await stream.text(`answer ${nth}`);
    stream.end();
  };
  await chat.open();
  await chat.message.focus();
  await page.keyboard.type("Hello");
  await page.keyboard.press("Shift+Enter");
  await page.keyboard.type("there");
  await page.keyboard.press("Enter");
  await expect(chat.last).toContainText("answer 1");
  expect(mock.asked[0]!.messages[0]!.content).toBe("Hello\nthere");
  await expect(chat.message).toBeFocused();
  await page.keyboard.press("ArrowUp");
  await expect(page.getByRole("textbox", { name: "Edit your message" })).toBeFocused();
  await page.keyboard.press("Escape");
  await page.keyboard.press("Control+,");
  await expect(page.getByRole("dialog", { name: "Settings" })).toBeVisible();
  await page.keyboard.press("Escape");
  await page.keyboard.press("Control+Shift+O");
  await expect(page.getByRole("heading", { level: 1 })).toHaveText("New conversation");
  await expect(chat.message).toBeFocused();
  // Every button is reached by Tab and shows that it has the focus.
  const seen = new Set<string>();
  for (let i = 0; i < 40; i++) {
    await page.keyboard.press("Tab");
    const focused = await page.evaluate(() => {
      const node = document.activeElement as HTMLElement | null;
      if (!node || node === document.body) return null;
      const style = getComputedStyle(node);
      const box = node.closest(".box");
      const shown = style.outlineStyle !== "none" || (box && getComputedStyle(box).boxShadow !== "none");
      return { name: node.getAttribute("aria-label") ?? node.textContent?.trim() ?? "", shown: !!shown };
    });
    if (!focused) continue;
    expect(focused.shown, focused.name).toBe(true);
    seen.add(focused.name);
  }
  for (const name of ["New conversation", "Hide conversations", "Settings", "Add files", "Record audio", "Message"]) {
    expect([...seen].some((one) => one.startsWith(name)), `${name} in ${[...seen].join(", ")}`).toBe(true);
  }
});

test("screen readers hear what happens, block by block", async ({ chat, mock, page }) => {
  const half = gate();
  mock.respond = async (stream) => {
    await stream.text("The first paragraph.\n\nThe second, longer");
    await half.opened;
    await stream.text(" paragraph.");
    stream.end();
  };
  await chat.open();
  await chat.send("Talk");
  const heard = page.getByRole("log", { name: "Answer" });
  await expect(heard.locator("p")).toHaveText(["The first paragraph."]);
  half.open();
  await expect(heard.locator("p")).toHaveText(["The first paragraph.", "The second, longer paragraph."]);
  await expect(page.locator(".hidden[role=status]")).toHaveText(/The answer is complete/);
});
