import { expect, test } from "./page.ts";

/** Documents whose reading depends on what comes later. */
const DOCUMENTS = [
  "Title\n=====\n\nSub\n---\n\ntext\n***\nafter",
  "- a\n- b\n\n  still b\n\n- c\n  - d\n\n    still d\n\nafter",
  "1. one\n\n   ```rust\n   fn a() {}\n   ```\n\n2. two\n\n\n10. ten",
  "| a | b |\n|---|:-:|\n| 1 | `x|y` |\n| 2 |\nafter",
  "see [this] and [that][x]\n\nmore\n\n[this]: https://a.example\n[x]: https://b.example 'title'\n\nend",
  "~~~python\nprint('``` not the end')\n~~~\n\n````md\n```\ninner\n```\n````\nafter",
  "```\nno language\n\n\nblank lines\n```",
  "    indented code\n\n    more\n\nafter",
  "> quote\nlazy\n\n> - list in quote\n>   more\n\nafter",
  "<div>\nraw **html**\n</div>\n\nafter <br> inline <b>bold</b>",
  "$$\na = b\n$$\n\ntext $x$ and $$y$$ more\n\n\\[ c \\]\n\nafter \\(d\\)",
  "# One\n\n### Three\n\n## Two\n\n###### Six\n",
  "unfinished **bold and `code and [link](http",
  "```rust\nfn unfinished() {",
  "line one  \nline two\\\nline three\r\nline four",
  "- [ ] open\n- [x] done\n\n* * *\n\n+ plus",
  "שלום עולם\n\nhello",
  "a\n\n\n\n\nb\n\n \n\nc",
  "- a\n**bold** goes on\n- b\n#tag goes on\n***strong*** too",
  "para\n#tag is no heading\n1986. is no list\n***strong***\n1. a list",
  "1. a\n\n12. b\n\n123 is a number\n\n4. c",
  "text\n<details>\nraw\n\nend",
];

/** Some of them, so that several tests share the work. */
const PARTS = [0, 1, 2, 3].map((part) => DOCUMENTS.filter((_, i) => i % 4 === part));

for (const [part, documents] of PARTS.entries()) test(`what streams letter by letter is what is drawn at once, ${part}`, async ({ chat, mock, page }) => {
  mock.respond = async (stream, _, nth) => {
    // A frame for each letter: every beginning is drawn once.
    await stream.text(documents[nth - 1] ?? "```rust\nfn last() {}\n```", 17, 1);
    stream.end();
  };
  await chat.open();
  for (let i = 0; i <= documents.length; i++) await chat.ask(`document ${i}`);
  const drawn = async () => {
    // Colours and formulas come after the text.
    await expect(page.locator(".md [data-maths]")).toHaveCount(0);
    await expect(page.locator(".md .hljs-keyword")).not.toHaveCount(0);
    return page.locator(".md").evaluateAll((all) => all.map((one) => one.innerHTML));
  };
  const streamed = await drawn();
  await page.reload();
  await expect(chat.answers).toHaveCount(documents.length + 1);
  // Those far from the screen are drawn when they come near.
  for (const answer of await chat.answers.all()) {
    await answer.scrollIntoViewIfNeeded();
    await expect(answer.locator(".block")).not.toHaveCount(0);
  }
  const whole = await drawn();
  for (const [i, html] of whole.entries()) expect(streamed[i], documents[i]).toBe(html);
});

test("formulas are told from money and code", async ({ chat, mock }) => {
  const cases: [string, number][] = [
    ["It costs $5 and $6.", 0],
    ["From $10 to $20 a day", 0],
    ["`$x$` is code", 0],
    ["an escaped \\$x\\$", 0],
    ["a sum $x+1$ of two", 1],
    ["$a$, $b$ and $c_1$", 3],
    ["\\(x\\) and \\[y\\]", 2],
    ["$$\\int_0^1 f$$", 1],
    ["$$\n\\begin{aligned}a &= b\\\\ c &= d\\end{aligned}\n$$", 1],
    ["price$", 0],
    ["$\\frac{unfinished$", 0],
  ];
  mock.respond = async (stream, _, nth) => {
    await stream.text(cases[nth - 1]![0]);
    stream.end();
  };
  await chat.open();
  for (const [text, count] of cases) {
    await chat.ask(`case ${text}`);
    await expect(chat.last.locator("math"), text).toHaveCount(count);
  }
  // What can't be read stays as it was written.
  await expect(chat.last).toContainText("\\frac{unfinished");
});

test("code is copied as it is", async ({ chat, mock, page, context }) => {
  await context.grantPermissions(["clipboard-read", "clipboard-write"]);
  mock.respond = async (stream) => {
    await stream.text("```python\nif a < b:\n\tprint(\"&amp;\")\n```");
    stream.end();
  };
  await chat.open();
  await chat.ask("Code");
  await chat.last.getByRole("button", { name: "Copy code, python" }).click();
  await expect(chat.last.getByText("Copied")).toBeVisible();
  expect((await page.evaluate(() => navigator.clipboard.readText())).trimEnd()).toBe('if a < b:\n\tprint("&amp;")');
});
