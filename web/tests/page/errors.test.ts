import { expect, gate, test } from "./page.ts";

test.beforeEach(({ chat }) => {
  // Browsers log every answer that is no success.
  chat.allowed.push(/Failed to load resource/);
});

test("a busy server is asked again after the time it names", async ({ chat, mock }) => {
  mock.respond = async (stream, _, nth) => {
    if (nth === 1) return stream.fail(429, { message: "the queue is full", code: "queue_full" }, { "retry-after": "2" });
    await stream.text("Now there is room.");
    stream.end();
  };
  await chat.open();
  await chat.send("Hello");
  await expect(chat.last).toContainText("The server is busy");
  await expect(chat.last).toContainText("the queue is full");
  await expect(chat.last).toContainText(/Trying again in [12] s/);
  await expect(chat.last).toContainText("Now there is room.");
  expect(mock.asked).toHaveLength(2);
});

test("a model that is loading is waited for, at once if wanted, and the wait can be stopped", async ({ chat, mock, page }) => {
  mock.respond = async (stream, _, nth) => {
    if (nth !== 2) return stream.fail(503, { message: "the model is being loaded", code: "model_loading" }, { "retry-after": "60" });
    await stream.text("Loaded.");
    stream.end();
  };
  await chat.open();
  await chat.send("Hello");
  await expect(chat.last).toContainText("the model is being loaded");
  await page.getByRole("button", { name: "Try now" }).click();
  await expect(chat.last).toContainText("Loaded.");
  await chat.send("Hello");
  await expect(chat.last).toContainText("the model is being loaded");
  await chat.last.getByRole("button", { name: "Stop" }).click();
  await expect(chat.last).toContainText("Stopped.");
});

test("a model that does not fit is an error, and another try is one button away", async ({ chat, mock }) => {
  mock.respond = async (stream, _, nth) => {
    if (nth === 1) return stream.fail(503, { message: "the model needs 18 GiB, 4 GiB are free", code: "out_of_memory" });
    await stream.text("Fits now.");
    stream.end();
  };
  await chat.open();
  await chat.ask("Hello");
  await expect(chat.last.locator(".problem")).toContainText("the model needs 18 GiB, 4 GiB are free");
  await chat.last.getByRole("button", { name: "Try again" }).click();
  await expect(chat.last).toContainText("Fits now.");
});

test("a prompt that is too long says so and what to do", async ({ chat, mock, page }) => {
  mock.respond = (stream) =>
    stream.fail(400, { message: "the prompt has 9,000 tokens, the context 8,192", code: "context_length_exceeded" });
  await chat.open();
  await chat.ask("Long");
  await expect(chat.last).toContainText("longer than the model's context");
  await expect(chat.last).toContainText("the prompt has 9,000 tokens, the context 8,192");
  await chat.last.getByRole("button", { name: "New conversation" }).click();
  await expect(page.getByRole("heading", { level: 1 })).toHaveText("New conversation");
});

test("a fault of the server shows its words and the request's id", async ({ chat, mock }) => {
  mock.respond = (stream) => stream.fail(500, { message: "internal error", code: "internal" });
  await chat.open();
  await chat.ask("Hello");
  await expect(chat.last).toContainText("The server failed");
  await expect(chat.last).toContainText("req-mock");
});

test("an error in the stream and a cut connection keep what came", async ({ chat, mock }) => {
  chat.allowed.push(/ERR_/);
  const cut = gate();
  mock.respond = async (stream, _, nth) => {
    await stream.text("Some words");
    if (nth === 1) {
      stream.raw('data: {"error":{"message":"the engine stopped","code":"internal"}}\n\n');
      return stream.close();
    }
    await cut.opened;
    stream.cut();
  };
  await chat.open();
  await chat.ask("One");
  await expect(chat.last).toContainText("Some words");
  await expect(chat.last).toContainText("the engine stopped");
  await chat.send("Two");
  await expect(chat.last).toContainText("Some words");
  cut.open();
  await expect(chat.last).toContainText("The answer was cut off");
  await expect(chat.last).toContainText("Some words");
});

test("comments of a silent server do no harm, and answers without an end are noticed", async ({ chat, mock }) => {
  mock.respond = async (stream, _, nth) => {
    stream.raw(": ping\n\n");
    await stream.text("Words");
    stream.raw(": ping\n\n");
    if (nth === 1) return stream.end();
    stream.close();
  };
  await chat.open();
  await chat.ask("One");
  await expect(chat.last.locator(".problem")).toHaveCount(0);
  await chat.ask("Two");
  await expect(chat.last).toContainText("The answer was cut off");
});

test("a key is asked for, checked, and kept with the tab only", async ({ chat, mock, page }) => {
  mock.key = "secret";
  await page.goto(mock.url);
  const key = page.getByLabel("API key");
  await expect(key).toBeFocused();
  await key.fill("wrong");
  await page.getByRole("button", { name: "Continue" }).click();
  await expect(page.getByRole("alert")).toContainText("The server refused this key.");
  await key.fill("secret");
  await page.getByRole("button", { name: "Continue" }).click();
  await expect(key).toBeHidden();
  await chat.ask("Hello");
  await expect(chat.last).toContainText("Hello from the mock.");
  const kept = await page.evaluate(() => [JSON.stringify(localStorage), JSON.stringify(sessionStorage), document.cookie]);
  expect(kept[0]).not.toContain("secret");
  expect(kept[1]).toContain("secret");
  expect(kept[2]).toBe("");
  await page.reload();
  await expect(chat.last).toContainText("Hello from the mock.");
  await expect(key).toBeHidden();
  const settings = await chat.settings();
  await settings.getByRole("button", { name: "Forget API key" }).click();
  await page.keyboard.press("Escape");
  await expect(key).toBeVisible();
  await key.fill("secret");
  await page.getByRole("checkbox", { name: "Keep it until this tab is closed" }).uncheck();
  await page.getByRole("button", { name: "Continue" }).click();
  await expect(key).toBeHidden();
  expect(await page.evaluate(() => JSON.stringify(sessionStorage))).not.toContain("secret");
});

test("a server without models says how to get one", async ({ chat, mock, page }) => {
  mock.models = [];
  await chat.open();
  await expect(page.getByRole("heading", { name: "No model is served" })).toBeVisible();
  await chat.message.fill("Hello");
  await expect(page.getByRole("button", { name: "Send" })).toBeDisabled();
});

test("a server that goes and comes back is noticed, and the message is not lost", async ({ chat, mock, page }) => {
  chat.allowed.push(/ERR_/);
  await chat.open();
  await chat.known();
  const port = mock.port;
  await mock.stop();
  await chat.send("Anyone?");
  await expect(chat.last).toContainText("The server can't be reached");
  await expect(chat.users.last()).toContainText("Anyone?");
  await mock.start(port);
  await expect(page.locator(".bar")).toBeHidden({ timeout: 60_000 });
  await chat.last.getByRole("button", { name: "Try again" }).click();
  await expect(chat.last).toContainText("Hello from the mock.");
});

test("another try does not wait for a question that hangs", async ({ chat, mock, page }) => {
  chat.allowed.push(/ERR_/);
  await chat.open();
  await chat.known();
  const port = mock.port;
  await mock.stop();
  await chat.send("Anyone?");
  const bar = page.locator(".bar");
  await expect(bar).toContainText("The server can't be reached.");
  const list = gate();
  mock.hold = list.opened;
  await mock.start(port);
  const before = mock.listed;
  await expect.poll(() => mock.listed).toBe(before + 1);
  await bar.getByRole("button", { name: "Try again" }).click();
  await expect.poll(() => mock.listed, { timeout: 15_000 }).toBeGreaterThan(before + 1);
  list.open();
  await expect(bar).toBeHidden();
});

test("a server that takes a connection and says nothing can't be reached either", async ({ chat, mock, page }) => {
  const list = gate();
  mock.hold = list.opened;
  await page.clock.install();
  await chat.open();
  await expect(page.getByText("Asking the server…")).toBeVisible();
  await expect.poll(() => mock.listed).toBe(1);
  await page.clock.fastForward(21_000);
  await expect(page.getByRole("heading", { name: "The server can't be reached" })).toBeVisible();
  await page.getByRole("button", { name: "Try again" }).click();
  list.open();
  await chat.known();
});

test("what is sent before the models are known goes out once they are", async ({ chat, mock, page }) => {
  const list = gate();
  mock.hold = list.opened;
  await chat.open();
  await chat.message.fill("Early");
  await chat.message.press("Enter");
  await expect(page.getByRole("button", { name: "Send", exact: true })).toBeDisabled();
  await expect(chat.message).toHaveValue("Early");
  await expect(page.getByRole("alert")).toHaveCount(0);
  expect(mock.asked).toHaveLength(0);
  list.open();
  await expect(chat.last).toContainText("Hello from the mock.");
  expect(mock.asked).toHaveLength(1);
  await expect(chat.message).toHaveValue("");
});
