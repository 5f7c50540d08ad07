// X7: model output is untrusted.

import { expect, test } from "./page.ts";

/** Each sets `window.hit` or fetches from `evil` if it runs. */
const PAYLOADS = [
  "<script>window.hit=1</script>",
  "<img src=x onerror=window.hit=1>",
  "<img src='https://evil.example/pixel.png'>",
  "![pixel](https://evil.example/pixel.png)",
  "![x](javascript:window.hit=1)",
  "<svg onload=window.hit=1><script>window.hit=1</script></svg>",
  "<svg><animate onbegin=window.hit=1 attributeName=x dur=1s>",
  "<math><mtext><table><mglyph><style><img src=x onerror=window.hit=1>",
  "<math href='javascript:window.hit=1'>click</math>",
  "<iframe srcdoc='<script>parent.hit=1</script>'></iframe>",
  "<iframe src='javascript:parent.hit=1'></iframe>",
  "<object data='javascript:window.hit=1'></object>",
  "<embed src='javascript:window.hit=1'>",
  "<a href='javascript:window.hit=1'>html link</a>",
  "[link](javascript:window.hit=1)",
  "[link](JaVaScRiPt:window.hit=1)",
  "[link](\u0001javascript:window.hit=1)",
  "[link](data:text/html,<script>opener.hit=1</script>)",
  "[link](vbscript:window.hit=1)",
  "<javascript:window.hit=1>",
  "[ref]\n\n[ref]: javascript:window.hit=1",
  "[x](https://ok.example \"' onmouseover='window.hit=1\")",
  "[x](https://ok.example/\"onmouseover=\"window.hit=1)",
  "<style>body{display:none}</style>",
  "<link rel=stylesheet href='https://evil.example/x.css'>",
  "<meta http-equiv=refresh content='0;url=https://evil.example/'>",
  "<base href='https://evil.example/'>",
  "<form action='https://evil.example/'><input name=q><button>send</button></form>",
  "<details open ontoggle=window.hit=1>",
  "<div style='position:fixed;inset:0;z-index:9999' id=cover>cover</div>",
  "<input autofocus onfocus=window.hit=1>",
  "<video><source onerror=window.hit=1></video>",
  "<a id=app name=app>clobber</a>",
  "<noscript><p title='</noscript><img src=x onerror=window.hit=1>'>",
  "<!--><img src=x onerror=window.hit=1>-->",
  "<br onclick=window.hit=1>",
  "<sub onmouseover=window.hit=1>x</sub>",
  "```html\n<script>window.hit=1</script>\n```",
  "```\"><img src=x onerror=window.hit=1>\ncode\n```",
  "`<img src=x onerror=window.hit=1>`",
  "| a |\n|---|\n| <img src=x onerror=window.hit=1> |",
  "$\\href{javascript:window.hit=1}{x}$",
  "$\\htmlData{onclick=window.hit}{x}$ $\\includegraphics{https://evil.example/x.png}$",
  "$$\\html{<img src=x onerror=window.hit=1>}$$",
  "$<img src=x onerror=window.hit=1>$",
  "\\(<script>window.hit=1</script>\\)",
  "# <img src=x onerror=window.hit=1>",
  "<xmp><script>window.hit=1</script></xmp>",
  "<template><script>window.hit=1</script></template>",
  "&lt;script&gt;window.hit=1&lt;/script&gt;",
];

const TAGS = new Set(
  "A BLOCKQUOTE BR BUTTON CODE DEL DIV EM FIGCAPTION FIGURE H3 H4 H5 H6 HR KBD LI MARK OL P PRE SPAN STRONG SUB SUP TABLE TBODY TD TH THEAD TR U UL".split(" "),
);

test("x7: payloads in an answer stay text, streamed and read again", async ({ chat, mock, page }) => {
  const fetched: string[] = [];
  page.on("request", (request) => {
    if (!request.url().startsWith(mock.url) && !request.url().startsWith("blob:")) fetched.push(request.url());
  });
  mock.respond = async (stream) => {
    // Three letters at a time: every tag is open for a while.
    await stream.text(PAYLOADS.join("\n\n"), 0, 3);
    stream.end();
  };
  await chat.open();
  const check = async () => {
    await expect(chat.last.locator(".block")).not.toHaveCount(0);
    const seen = await chat.last.locator(".md").evaluate((root) => {
      const tags: string[] = [];
      const attributes: string[] = [];
      const links: string[] = [];
      for (const node of root.querySelectorAll("*")) {
        const maths = node.closest("math");
        tags.push(maths ? `math:${node.tagName}` : node.tagName);
        for (const { name, value } of node.attributes) attributes.push(`${name}=${value}`);
        if (node.hasAttribute("href")) links.push(node.getAttribute("href")!);
      }
      return { tags: [...new Set(tags)], attributes, links, text: root.textContent ?? "" };
    });
    expect(seen.tags.filter((tag) => !tag.startsWith("math:") && !TAGS.has(tag))).toEqual([]);
    expect(seen.tags.filter((tag) => /^math:(script|img|iframe|a|style)$/i.test(tag))).toEqual([]);
    expect(seen.attributes.filter((one) => /^(on|srcdoc|action|id=(?!$)|name=)/i.test(one))).toEqual([]);
    for (const link of seen.links) expect(link).toMatch(/^(https?:|mailto:)/);
    for (const shown of ["<script>window.hit=1</script>", "<img src=x onerror=window.hit=1>", "<style>body{display:none}</style>", "<base href="]) {
      expect(seen.text).toContain(shown);
    }
    for (const link of await chat.last.locator(".md a").all()) {
      await expect(link).toHaveAttribute("target", "_blank");
    }
    expect(await page.evaluate(() => (window as { hit?: number }).hit)).toBeUndefined();
  };
  await chat.ask("Attack me");
  await check();
  await page.reload();
  await check();
  expect(fetched).toEqual([]);
});

test("x7: each payload alone, too", async ({ chat, mock, page }) => {
  mock.respond = async (stream, _, nth) => {
    await stream.text(PAYLOADS[nth - 1]!, 0, 1);
    stream.end();
  };
  await chat.open();
  for (let i = 0; i < PAYLOADS.length; i += 1) {
    await page.evaluate(() => document.getElementById("message")!.focus());
    await chat.ask(`payload ${i}`);
  }
  await expect(chat.answers).toHaveCount(PAYLOADS.length);
  const bad = await page.locator("article.assistant .md").evaluateAll((roots) =>
    roots.flatMap((root) =>
      [...root.querySelectorAll("script,img,iframe,object,embed,style,link,meta,base,form,input,svg,video,template,[style]:not(math *):not(math)")].map((node) => node.outerHTML),
    ),
  );
  expect(bad).toEqual([]);
  expect(await page.evaluate(() => (window as { hit?: number }).hit)).toBeUndefined();
});

test("x7: names of tools, models, files and conversations are text", async ({ chat, mock, page }) => {
  const html = "<img src=x onerror=window.hit=1>";
  mock.models = [{ id: html, object: "model", lapidary: { state: "loaded", modalities: ["text", html] } }];
  mock.respond = async (stream) => {
    stream.delta({ reasoning_content: html });
    stream.delta({ tool_calls: [{ index: 0, id: html, function: { name: html, arguments: html } }] });
    stream.end("tool_calls");
  };
  await chat.open();
  await chat.ask(html);
  await expect(page.getByRole("heading", { level: 1 })).toHaveText(html);
  await expect(page.locator("article img")).toHaveCount(0);
  expect(await page.evaluate(() => (window as { hit?: number }).hit)).toBeUndefined();
});

test("the policy holds: no inline script or style, no other host, no string as markup", async ({ chat, mock, page }) => {
  chat.allowed.push(/policy|Content Security Policy|Trusted(HTML|Script)|Refused|Connecting to|Executing|Applying|Loading the/i);
  await chat.open();
  const response = await page.request.get(mock.url);
  expect(response.headers()["content-security-policy"]).toContain("default-src 'none'");
  const tried = await page.evaluate(async () => {
    const out: Record<string, boolean> = {};
    const script = document.createElement("script");
    try {
      script.text = "window.hit=1";
      document.body.append(script);
    } catch {
      // Trusted types refuse the text itself.
    }
    out["inline script"] = (window as { hit?: number }).hit === 1;
    try {
      document.createElement("div").innerHTML = "<b>x</b>";
      out["innerHTML"] = true;
    } catch {
      out["innerHTML"] = false;
    }
    // In a task of its own: what the test itself runs may do this.
    out["eval"] = await new Promise((resolve) => {
      setTimeout(() => {
        try {
          resolve(new Function("return true")() as boolean);
        } catch {
          resolve(false);
        }
      });
    });
    const style = document.createElement("style");
    style.textContent = "body{outline:7px solid red}";
    document.head.append(style);
    out["inline style"] = getComputedStyle(document.body).outlineWidth === "7px";
    style.remove();
    out["other host"] = await fetch("https://evil.example/", { mode: "no-cors" }).then(() => true, () => false);
    try {
      (window as unknown as { trustedTypes: { createPolicy(name: string, rules: object): void } }).trustedTypes.createPolicy("mine", {});
      out["own policy"] = true;
    } catch {
      out["own policy"] = false;
    }
    return out;
  });
  expect(Object.values(tried)).toHaveLength(6);
  expect(Object.entries(tried).filter(([, worked]) => worked)).toEqual([]);
});
