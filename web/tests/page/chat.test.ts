import { SAMPLE } from "../mock/server.mjs";
import { expect, gate, test } from "./page.ts";

test("an answer streams and tells its speed and tokens", async ({ chat, mock, page }) => {
  const half = gate();
  mock.respond = async (stream) => {
    await stream.text("First half");
    await half.opened;
    await stream.text(" and second half.");
    stream.end();
  };
  await chat.open();
  await chat.send("Hello?");
  await expect(chat.last).toContainText("First half");
  await expect(chat.last).toHaveAttribute("aria-busy", "true");
  half.open();
  await expect(chat.last).toContainText("First half and second half.");
  await expect(chat.last.locator(".stats")).toContainText("44.4 tok/s");
  await expect(chat.last.locator(".stats")).toContainText(/in\s*21 \(16 cached\)/);
  await expect(chat.last.locator(".stats")).toContainText(/TTFT\s*\d+ ms/);
  await expect(page.getByRole("meter", { name: "Context used" })).toBeVisible();
  await expect(page.locator(".used")).toContainText("63 / 8k");
  expect(mock.asked[0]).toMatchObject({
    model: "gemma-4-e2b",
    stream: true,
    stream_options: { include_usage: true },
    messages: [{ role: "user", content: "Hello?" }],
  });
});

test("stop ends the request and keeps what came", async ({ chat, mock, page }) => {
  let closed = false;
  mock.respond = async (stream) => {
    await stream.text("Some words");
    await stream.closed;
    closed = true;
  };
  await chat.open();
  await chat.send("Go on for ever");
  await expect(chat.last).toContainText("Some words");
  await page.getByRole("button", { name: "Stop" }).click();
  await expect(chat.last).toContainText("Stopped.");
  await expect(chat.last).toContainText("Some words");
  await expect.poll(() => closed).toBe(true);
  // By keyboard, too.
  await chat.send("Again");
  await expect(chat.last).toContainText("Some words");
  await page.keyboard.press("Escape");
  await expect(chat.last).toContainText("Stopped.");
  await expect(page.getByRole("button", { name: "Send" })).toBeVisible();
});

test("regenerate keeps both answers, edit makes a branch, and branches are found again", async ({ chat, mock, page }) => {
  mock.respond = async (stream, _, nth) => {
    await stream.text(`answer ${nth}`);
    stream.end();
  };
  await chat.open();
  await chat.ask("question one");
  await chat.last.getByRole("button", { name: "Regenerate" }).click();
  await expect(chat.last).toContainText("answer 2");
  await expect(chat.last.locator(".versions")).toContainText("2 / 2");
  await chat.ask("question two");
  await expect(chat.last).toContainText("answer 3");
  expect(mock.asked[2]!.messages.map((one) => one.content)).toEqual(["question one", "answer 2", "question two"]);

  await chat.users.first().getByRole("button", { name: "Edit" }).click();
  const editor = page.getByRole("textbox", { name: "Edit your message" });
  await expect(editor).toBeFocused();
  await editor.fill("question one, better");
  await editor.press("Enter");
  await expect(chat.last).toContainText("answer 4");
  await expect(chat.users).toHaveCount(1);
  expect(mock.asked[3]!.messages.map((one) => one.content)).toEqual(["question one, better"]);

  await chat.users.first().getByRole("button", { name: "Previous version" }).click();
  await expect(chat.users.first()).toContainText("question one");
  await expect(chat.last).toContainText("answer 3");
  await chat.answers.first().getByRole("button", { name: "Previous version" }).click();
  await expect(chat.answers).toHaveCount(1);
  await expect(chat.last).toContainText("answer 1");
  await page.reload();
  await expect(chat.last).toContainText("answer 1");
  await chat.answers.first().getByRole("button", { name: "Next version" }).click();
  await expect(chat.last).toContainText("answer 3");
});

test("an answer can be edited without asking again, and a message deleted", async ({ chat, mock, page }) => {
  await chat.open();
  await chat.ask("question");
  await chat.last.getByRole("button", { name: "Edit" }).click();
  await page.getByRole("textbox", { name: "Edit the answer" }).fill("My own words");
  await page.getByRole("button", { name: "Save" }).click();
  await expect(chat.last).toContainText("My own words");
  await expect(chat.last.locator(".versions")).toContainText("2 / 2");
  expect(mock.asked).toHaveLength(1);
  await chat.last.getByRole("button", { name: "Delete" }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Delete" }).click();
  await expect(chat.last).toContainText("Hello from the mock.");
  await expect(chat.last.locator(".versions")).toHaveCount(0);
});

test("a reload keeps the conversation, also one that is being answered", async ({ chat, mock, page }) => {
  await chat.open();
  await chat.ask("Remember this");
  await page.reload();
  await expect(chat.users.first()).toContainText("Remember this");
  await expect(chat.last).toContainText("Hello from the mock.");
  await expect(page).toHaveTitle(/Remember this/);
  mock.respond = async (stream) => {
    await stream.text("Half of an answer");
    await stream.closed;
  };
  await chat.send("And this");
  await expect(chat.last).toContainText("Half of an answer");
  await page.reload();
  await expect(chat.last).toContainText("Half of an answer");
  await expect(chat.last).toContainText("closed before the answer was whole");
});

test("conversations are listed, renamed, filtered, switched while one is answered, and deleted", async ({ chat, mock, page }) => {
  const list = page.getByRole("navigation", { name: "Conversations" });
  const half = gate();
  mock.respond = async (stream, body) => {
    const slow = body.messages[0]!.content === "slow";
    await stream.text(slow ? "slow begins" : "quick");
    if (slow) await half.opened;
    await stream.text(" and ends");
    stream.end();
  };
  await chat.open();
  await chat.send("slow");
  await expect(chat.last).toContainText("slow begins");
  await list.getByRole("button", { name: "New conversation" }).click();
  await chat.ask("other");
  await expect(chat.last).toContainText("quick and ends");
  half.open();
  await list.getByRole("button", { name: /^slow/ }).click();
  await expect(chat.last).toContainText("slow begins and ends");

  await list.getByRole("listitem").filter({ hasText: "slow" }).hover();
  await list.getByRole("button", { name: "Rename slow" }).click();
  await page.getByRole("textbox", { name: "New name" }).fill("A better name");
  await page.keyboard.press("Enter");
  await expect(page.getByRole("heading", { level: 1 })).toHaveText("A better name");
  await page.reload();
  await expect(page.getByRole("heading", { level: 1 })).toHaveText("A better name");
  await list.getByRole("listitem").filter({ hasText: "A better name" }).hover();
  await list.getByRole("button", { name: "Delete A better name" }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Delete" }).click();
  await expect(list.getByRole("listitem")).toHaveCount(1);
  await expect(page.getByRole("heading", { level: 1 })).toHaveText("New conversation");
});

test("thinking is folded and can be opened", async ({ chat, mock }) => {
  mock.respond = async (stream) => {
    stream.delta({ reasoning_content: "First I think." });
    await stream.text("Then I speak.");
    stream.end();
  };
  await chat.open();
  await chat.ask("Think");
  const fold = chat.last.locator("details.thinking");
  await expect(fold.getByText("First I think.")).toBeHidden();
  await fold.locator("summary").click();
  await expect(fold.getByText("First I think.")).toBeVisible();
});

test("a tool call is shown folded, and its result goes back", async ({ chat, mock, page }) => {
  mock.respond = async (stream, body) => {
    if (body.messages.at(-1)!.role === "tool") {
      await stream.text("It is cold in Oslo.");
      return stream.end();
    }
    const call = (rest: object) => stream.delta({ tool_calls: [{ index: 0, ...rest }] });
    call({ id: "call_9", type: "function", function: { name: "get_weather", arguments: "" } });
    for (const piece of ['{"ci', 'ty": "O', 'slo"}']) call({ function: { arguments: piece } });
    stream.end("tool_calls");
  };
  await chat.open();
  const settings = await chat.settings();
  await settings.getByLabel(/^Tools/).fill('[{"name": "get_weather", "parameters": {"type": "object"}}]');
  await page.keyboard.press("Escape");
  await chat.send("Weather in Oslo?");
  const fold = chat.last.locator("details.call");
  await expect(fold.locator("summary")).toContainText("get_weather");
  await expect(fold.locator("pre")).toBeHidden();
  await fold.locator("summary").click();
  await expect(fold.locator("pre")).toContainText('"city": "Oslo"');
  await page.getByLabel("Result of get_weather").fill("-3 °C");
  await page.getByRole("button", { name: "Send result" }).click();
  await expect(chat.last).toContainText("It is cold in Oslo.");
  expect(mock.asked[0]!["tools"]).toEqual([{ type: "function", function: { name: "get_weather", parameters: { type: "object" } } }]);
  expect(mock.asked[1]!.messages.slice(1)).toEqual([
    { role: "assistant", content: "", tool_calls: [{ id: "call_9", type: "function", function: { name: "get_weather", arguments: '{"city": "Oslo"}' } }] },
    { role: "tool", tool_call_id: "call_9", content: "-3 °C" },
  ]);
});

test("settings go along, are kept, and are checked", async ({ chat, mock, page }) => {
  await chat.open();
  const settings = await chat.settings();
  await settings.getByLabel("System prompt").fill("Answer in French.");
  await settings.getByLabel("Temperature").fill("3");
  await expect(settings.getByText("must be from 0 to 2")).toBeVisible();
  await settings.getByLabel("Temperature").fill("0.2");
  await settings.getByLabel("Max tokens").fill("64");
  await settings.getByLabel("Format").selectOption("json_schema");
  await settings.getByLabel("JSON schema").fill("{");
  await expect(settings.getByText(/Not used/)).toBeVisible();
  await settings.getByLabel("JSON schema").fill('{"type":"object"}');
  await settings.getByLabel("Stop strings").fill("END\nSTOP");
  await settings.getByRole("button", { name: "Use for new conversations" }).click();
  await page.keyboard.press("Escape");
  await chat.ask("Hello");
  const expected = {
    temperature: 0.2,
    max_completion_tokens: 64,
    stop: ["END", "STOP"],
    response_format: { type: "json_schema", json_schema: { name: "answer", strict: true, schema: { type: "object" } } },
  };
  expect(mock.asked[0]).toMatchObject(expected);
  expect(mock.asked[0]!.messages[0]).toEqual({ role: "system", content: "Answer in French." });
  await page.reload();
  await page.getByRole("button", { name: "New conversation" }).click();
  await chat.ask("Hello again");
  expect(mock.asked[1]).toMatchObject(expected);
});

test("an answer that is JSON is shown as code, in lines", async ({ chat, mock, page }) => {
  mock.respond = async (stream) => {
    await stream.text('{"city" :   "Oslo*","list":["*a*"]}', 0, 2);
    stream.end();
  };
  await chat.open();
  const settings = await chat.settings();
  await settings.getByLabel("Format").selectOption("json_object");
  await page.keyboard.press("Escape");
  await chat.ask("Hello");
  expect((await chat.last.locator("figure.code code").textContent())!.trim()).toBe('{\n  "city": "Oslo*",\n  "list": [\n    "*a*"\n  ]\n}');
  await expect(chat.last.locator(".block")).toHaveCount(1);
});

test("models show their state and memory, and the one that is picked answers", async ({ chat, mock, page }) => {
  await chat.open();
  await page.getByRole("button", { name: /^Model: gemma-4-e2b/ }).click();
  const list = page.getByRole("listbox", { name: "Models" });
  await expect(list.getByRole("option", { name: /gemma-3-270m/ })).toContainText("not loaded · 328 MiB · 32k context · text");
  await expect(list.getByRole("option", { name: /gemma-4-31b/ })).toContainText("loading");
  await page.keyboard.press("ArrowDown");
  await page.keyboard.press("Enter");
  await expect(page.getByRole("button", { name: /^Model: gemma-3-270m/ })).toBeFocused();
  await chat.ask("Who are you?");
  expect(mock.asked[0]!.model).toBe("gemma-3-270m");
  await expect(chat.last.getByRole("heading", { level: 2 })).toHaveText("gemma-3-270m");
  await page.reload();
  await expect(page.getByRole("button", { name: /^Model: gemma-3-270m/ })).toBeVisible();
});

test("markdown, code and formulas are drawn; screen readers hear the blocks", async ({ chat, mock, page }) => {
  mock.respond = async (stream) => {
    await stream.text(SAMPLE, 0, 3);
    stream.end();
  };
  await chat.open();
  await chat.ask("Explain prefix reuse");
  const md = chat.last.locator(".md");
  await expect(md.locator("math")).toHaveCount(3);
  await expect(md.locator("math mfrac")).toHaveCount(1);
  await expect(md.locator("figure.code .hljs-keyword").first()).toHaveText("fn");
  await expect(md.locator("table td")).toHaveCount(6);
  await expect(md.getByRole("link", { name: "the notes" })).toHaveAttribute("rel", "noopener noreferrer");
  await expect(md.getByRole("heading", { level: 3 })).toHaveText("Prefix reuse");
  const heard = page.getByRole("log", { name: "Answer" });
  await expect(heard).toContainText("Numbers of one machine say little about another.");
  // What streamed in pieces is what is drawn at once.
  const streamed = await md.innerHTML();
  await page.reload();
  await expect(md.locator("math")).toHaveCount(3);
  await expect(md.locator("figure.code .hljs-keyword").first()).toHaveText("fn");
  expect(await md.innerHTML()).toBe(streamed);
});

test("export and import bring a conversation back", async ({ chat, mock, page }) => {
  await chat.open();
  await chat.ask("Keep me");
  const settings = await chat.settings();
  const waiting = page.waitForEvent("download");
  await settings.getByRole("button", { name: "Export all" }).click();
  const file = await (await waiting).path();
  await settings.getByRole("button", { name: "Delete all" }).click();
  await page.getByRole("dialog", { name: "Delete everything?" }).getByRole("button", { name: "Delete all" }).click();
  await expect(chat.users).toHaveCount(0);
  const choosing = page.waitForEvent("filechooser");
  await settings.getByRole("button", { name: "Import" }).click();
  await (await choosing).setFiles({ name: "x.json", mimeType: "application/json", buffer: Buffer.from("{}") });
  await expect(settings.getByText(/Nothing was imported/)).toBeVisible();
  const again = page.waitForEvent("filechooser");
  await settings.getByRole("button", { name: "Import" }).click();
  await (await again).setFiles(file);
  await expect(settings.getByText("1 conversation imported.")).toBeVisible();
  await page.keyboard.press("Escape");
  await page.getByRole("navigation").getByRole("button", { name: /^Keep me/ }).click();
  await expect(chat.users.first()).toContainText("Keep me");
  await expect(chat.last).toContainText("Hello from the mock.");
  expect(mock.asked).toHaveLength(1);
});

test("two tabs see each other's conversations", async ({ chat, page, context, mock }) => {
  await chat.open();
  const other = await context.newPage();
  await other.goto(mock.url);
  await chat.ask("From the first tab");
  const listed = other.getByRole("navigation").getByRole("button", { name: /^From the first tab/ });
  await expect(listed).toBeVisible();
  await listed.click();
  await expect(other.locator("article.assistant").last()).toContainText("Hello from the mock.");
  await chat.ask("And more");
  await expect(other.locator("article.user").last()).toContainText("And more");
  await expect(other.locator("article.assistant")).toHaveCount(2);
  await expect(other.locator("article.assistant").last()).toHaveAttribute("aria-busy", "false");
  await chat.last.getByRole("button", { name: "Delete" }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Delete" }).click();
  await expect(other.locator("article.assistant")).toHaveCount(1);
});

test("back and forward go through conversations", async ({ chat, page }) => {
  const title = page.getByRole("heading", { level: 1 });
  await chat.open();
  await chat.ask("first");
  await page.getByRole("navigation").getByRole("button", { name: "New conversation" }).click();
  await chat.ask("second");
  await page.getByRole("navigation").getByRole("button", { name: /^first/ }).click();
  await expect(title).toHaveText("first");
  await page.goBack();
  await expect(title).toHaveText("second");
  await page.goBack();
  await expect(title).toHaveText("New conversation");
  await page.goBack();
  await expect(title).toHaveText("first");
  await page.goForward();
  await page.goForward();
  await expect(title).toHaveText("second");
});

test("lists and quotes of any depth do no harm", async ({ chat, mock }) => {
  const texts = ["> ".repeat(8000), "1. ".repeat(8000), "\\(".repeat(8000), "$$\n".repeat(4000), "$".repeat(16000), "[".repeat(16000), `${"- ".repeat(9000)}end`];
  mock.respond = async (stream, _, nth) => {
    await stream.text(texts[nth - 1]!, 0, 500);
    stream.end();
  };
  await chat.open();
  for (let i = 0; i < texts.length; i++) await chat.ask(`text ${i}`);
  await expect(chat.answers).toHaveCount(texts.length);
});
