// Markdown of answers. Model output is untrusted: raw HTML stays text, and what marked makes of the
// rest goes through DOMPurify into nodes. Code and formulas are coloured and drawn after that.

import DOMPurify from "dompurify";
import { Marked, type Token, type TokenizerAndRendererExtension, type Tokens } from "marked";

import { copyText } from "./clipboard.ts";

const ESCAPES: Record<string, string> = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;" };
const escape = (text: string) => text.replace(/[&<>"']/g, (letter) => ESCAPES[letter]!);

/** Tags without attributes that models write inside tables and sentences. */
const PLAIN_TAG = /^<\/?(br|sub|sup|kbd|u|mark)\s*\/?>$/i;
const SAFE_LINK = /^(https?:|mailto:)/i;

interface Maths extends Tokens.Generic {
  tex: string;
}

const blockMaths: TokenizerAndRendererExtension = {
  name: "blockMaths",
  level: "block",
  start(src) {
    const found = /\n {0,3}(\$\$|\\\[)/.exec(src);
    return found ? found.index + 1 : undefined;
  },
  tokenizer(src) {
    const found =
      /^ {0,3}\$\$([\s\S]{1,4000}?)\$\$[ \t]*(?:\n|$)/.exec(src) ??
      /^ {0,3}\\\[([\s\S]{1,4000}?)\\\][ \t]*(?:\n|$)/.exec(src);
    if (!found?.[1]?.trim() || /\n\s*\n/.test(found[1])) return undefined;
    return { type: "blockMaths", raw: found[0], tex: found[1]!.trim() };
  },
  renderer: (token) => `<div data-maths="block">${escape((token as Maths).tex)}</div>\n`,
};

const inlineMaths: TokenizerAndRendererExtension = {
  name: "inlineMaths",
  level: "inline",
  // Three dollars and more begin nothing.
  start: (src) => /(?<!\$)\${1,2}(?!\$)|\\[([]/.exec(src)?.index,
  tokenizer(src) {
    // Bounded, since each opening sign is looked after by itself: a text of nothing else must not take minutes.
    const display = /^\$\$(?!\$)([^$]{1,1000}?)\$\$/.exec(src) ?? /^\\\[([\s\S]{1,1000}?)\\\]/.exec(src);
    if (display) return { type: "inlineMaths", raw: display[0], tex: display[1]!.trim(), display: true };
    // "$5 and $6" is money: no space inside the dollars, no digit after them.
    const found =
      /^\$(?![\s$])((?:\\.|[^\\$\n]){0,1000}?(?:\\.|[^\\$\s]))\$(?!\d)/.exec(src) ??
      /^\\\(([\s\S]{1,1000}?)\\\)/.exec(src);
    if (!found) return undefined;
    return { type: "inlineMaths", raw: found[0], tex: found[1]!.trim(), display: false };
  },
  renderer: (token) =>
    `<span data-maths="${token["display"] ? "block" : "inline"}">${escape((token as Maths).tex)}</span>`,
};

const marked = new Marked({
  gfm: true,
  extensions: [blockMaths, inlineMaths],
  renderer: {
    html({ text, block }: Tokens.HTML | Tokens.Tag) {
      if (!block && PLAIN_TAG.test(text)) return text;
      return block ? `<p class="raw">${escape(text.trimEnd())}</p>` : escape(text);
    },
    image({ href, text }: Tokens.Image) {
      // Loading it would tell its host that somebody reads this.
      const words = escape(text || "image");
      return SAFE_LINK.test(href) ? `<a href="${escape(href)}">${words}</a>` : words;
    },
    link({ href, tokens }: Tokens.Link) {
      const inner = this.parser.parseInline(tokens);
      return SAFE_LINK.test(href) ? `<a href="${escape(href)}">${inner}</a>` : inner;
    },
    code({ text, lang }: Tokens.Code) {
      const language = /^[\w+#.-]{1,30}/.exec(lang ?? "")?.[0] ?? "";
      return `<pre data-language="${escape(language)}"><code>${escape(text)}\n</code></pre>`;
    },
    checkbox: ({ checked }: Tokens.Checkbox) => (checked ? "☑ " : "☐ "),
  },
});

const TAGS = [
  "a", "blockquote", "br", "code", "del", "div", "em", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "kbd", "li",
  "mark", "ol", "p", "pre", "span", "strong", "sub", "sup", "table", "tbody", "td", "th", "thead", "tr", "u", "ul",
];

function sanitised(html: string): DocumentFragment {
  return DOMPurify.sanitize(html, {
    RETURN_DOM_FRAGMENT: true,
    ALLOWED_TAGS: TAGS,
    ALLOWED_ATTR: ["href", "class", "start", "align", "data-maths", "data-language"],
    ALLOW_DATA_ATTR: false,
    ALLOW_ARIA_ATTR: false,
    ALLOWED_URI_REGEXP: SAFE_LINK,
    // The expression would be asked about these, too.
    ADD_URI_SAFE_ATTR: ["start", "align", "data-maths", "data-language"],
  });
}

/** Letters after which a line's kind is certain: the marker of a list has up to nine digits. */
const CERTAIN = 16;

/** Where the part begins that later text may still change. Blocks before it are whole. */
function lastBlock(tokens: Token[], tail: string): number {
  const line = tail.lastIndexOf("\n") + 1;
  // "1" after a list may become "10. ", its next item; "#" after a line may become "#tag", its next word.
  const open = tail.slice(line).trim();
  const certain = open === "" || open.length > CERTAIN;
  let start = tail.length;
  let at = tokens.length - 1;
  for (; at > 0; at--) {
    const token = tokens[at]!;
    start -= token.raw.length;
    if (token.type !== "space" && (certain || start < line)) break;
  }
  return Math.max(at, 0);
}

/** How many headings deep the page is where answers stand. */
const PAGE_DEPTH = 2;

/** Markdown in a node, which may grow. Blocks that are whole are never touched again. */
export class MarkdownView {
  #root: HTMLElement;
  #onBlock: ((text: string) => void) | undefined;
  /** All that was given, and how much of it stands in blocks that are whole. */
  #source = "";
  #whole = 0;
  #last: HTMLElement | null = null;
  #level = PAGE_DEPTH;
  #lastLevel = PAGE_DEPTH;
  #hasReferences = false;
  /** An open block of code to which text is appended without reading it again. */
  #code: { node: Text; fence: string } | null = null;

  constructor(root: HTMLElement, onBlock?: (text: string) => void) {
    this.#root = root;
    this.#onBlock = onBlock;
  }

  update(given: string, done: boolean): void {
    const text = given.replace(/\r\n?/g, "\n");
    if (!text.startsWith(this.#source)) this.#reset();
    const added = text.slice(this.#source.length);
    const before = this.#source;
    this.#source = text;
    if (this.#code && !done && this.#appendCode(before, added)) return;
    if (done && this.#hasReferences) {
      // A reference at the end gives links to text before it.
      this.#reset();
      this.#source = text;
    }
    if (added || done) this.#read(done);
  }

  #reset(): void {
    this.#root.replaceChildren();
    this.#source = "";
    this.#whole = 0;
    this.#last = null;
    this.#level = this.#lastLevel = PAGE_DEPTH;
    this.#hasReferences = false;
    this.#code = null;
  }

  #appendCode(before: string, added: string): boolean {
    const { node, fence } = this.#code!;
    const line = before.slice(before.lastIndexOf("\n") + 1);
    // What may close the block is read with the whole block.
    if ((line + added).includes(fence[0]!.repeat(3))) return false;
    node.appendData(added);
    return true;
  }

  #read(done: boolean): void {
    try {
      this.#blocks(this.#source.slice(this.#whole), done);
    } catch {
      // Lists or quotes so deep that reading them overflows the stack: shown as they were written.
      this.#plain(this.#source.slice(this.#whole), done);
    }
    if (done) this.#whole = this.#source.length;
  }

  #plain(tail: string, done: boolean): void {
    const block = document.createElement("div");
    block.className = "block";
    block.dir = "auto";
    const text = document.createElement("p");
    text.className = "raw";
    text.textContent = tail;
    block.append(text);
    this.#put(block);
    this.#code = null;
    this.#last = done ? null : block;
  }

  #put(block: HTMLElement): void {
    if (this.#last) this.#last.replaceWith(block);
    else this.#root.append(block);
  }

  #blocks(tail: string, done: boolean): void {
    let tokens: Token[] = marked.lexer(tail);
    const links = (tokens as Token[] & { links?: Record<string, unknown> }).links ?? {};
    if (Object.keys(links).length) this.#hasReferences = true;
    const joined = tokens.reduce((length, token) => length + token.raw.length, 0);
    // Raw texts that do not add up can't tell where a block ends.
    let lastAt = joined === tail.length ? lastBlock(tokens, tail) : 0;
    if (!done && tokens.slice(lastAt).filter((token) => token.type !== "space").length > 1) {
      const rest = tokens.slice(lastAt);
      const group: Tokens.Generic = { type: "group", raw: rest.map((token) => token.raw).join(""), all: rest };
      tokens = [...tokens.slice(0, lastAt), group];
    } else if (done) {
      lastAt = tokens.length - 1;
    }
    for (const [at, token] of tokens.entries()) {
      if (at > lastAt) break;
      const open = at === lastAt && !done;
      if (token.type !== "space" && token.type !== "def") this.#render(token, links, open);
      if (!open) this.#whole += token.raw.length;
    }
  }

  #render(token: Token, links: object, open: boolean): void {
    const inner = token.type === "group" ? ((token as Tokens.Generic)["all"] as Token[]) : [token];
    const html = marked.parser(Object.assign([...inner], { links }) as never);
    const block = document.createElement("div");
    block.className = "block";
    // Each block by its own first letters: languages from right to left stand where they should.
    block.dir = "auto";
    block.append(sanitised(html));
    this.#level = this.#lastLevel;
    this.#finish(block, open);
    this.#put(block);
    this.#code = null;
    if (open) {
      this.#last = block;
      const code = token.type === "code" ? block.querySelector("pre > code")?.firstChild : null;
      const fence = /^ {0,3}(`{3,}|~{3,})/.exec(token.raw)?.[1];
      if (code instanceof Text && fence && /\n/.test(token.raw)) {
        // What comes next is appended as it is, so the line end that closes a block must not be there.
        code.data = token.raw.slice(token.raw.indexOf("\n") + 1);
        this.#code = { node: code, fence };
      }
    } else {
      this.#last = null;
      this.#lastLevel = this.#level;
      if (this.#onBlock) this.#onBlock(block.textContent ?? "");
    }
  }

  #finish(block: HTMLElement, open: boolean): void {
    for (const link of block.querySelectorAll("a")) {
      link.target = "_blank";
      link.rel = "noopener noreferrer";
    }
    for (const heading of block.querySelectorAll("h1,h2,h3,h4,h5,h6")) {
      // Levels go down one at a time, so that the outline has no holes; looks follow what was written.
      const depth = Number(heading.tagName[1]);
      this.#level = Math.min(6, depth + PAGE_DEPTH, this.#level + 1);
      const level = document.createElement(`h${this.#level}`);
      level.className = `depth${depth}`;
      level.append(...heading.childNodes);
      heading.replaceWith(level);
    }
    for (const table of block.querySelectorAll("table")) {
      const frame = document.createElement("div");
      frame.className = "table";
      frame.tabIndex = 0;
      frame.setAttribute("role", "group");
      frame.setAttribute("aria-label", "Table");
      table.replaceWith(frame);
      frame.append(table);
    }
    for (const pre of block.querySelectorAll("pre")) codeBlock(pre, open);
    if (!open) drawMaths(block);
    else if (block.querySelector("[data-maths]")) drawMaths(block);
  }
}

function codeBlock(pre: HTMLPreElement, open: boolean): void {
  const language = pre.dataset["language"] ?? "";
  const code = pre.querySelector("code");
  const figure = document.createElement("figure");
  figure.className = "code";
  const caption = document.createElement("figcaption");
  const name = document.createElement("span");
  name.textContent = language || "text";
  const copy = document.createElement("button");
  copy.type = "button";
  copy.className = "quiet small";
  copy.textContent = "Copy";
  copy.setAttribute("aria-label", `Copy code${language ? `, ${language}` : ""}`);
  copy.addEventListener("click", () => {
    void copyText(code?.textContent ?? "").then((done) => {
      copy.textContent = done ? "Copied" : "Not copied";
      setTimeout(() => (copy.textContent = "Copy"), 1500);
    });
  });
  caption.append(name, copy);
  pre.replaceWith(figure);
  pre.tabIndex = 0;
  pre.setAttribute("role", "group");
  pre.setAttribute("aria-label", language ? `Code, ${language}` : "Code");
  figure.append(caption, pre);
  if (open || !code || !language) return;
  void import("./highlight.ts").then(({ highlight }) => {
    const html = highlight(code.textContent ?? "", language.toLowerCase());
    if (html === null) return;
    const coloured = DOMPurify.sanitize(html, {
      RETURN_DOM_FRAGMENT: true,
      ALLOWED_TAGS: ["span"],
      ALLOWED_ATTR: ["class"],
    });
    code.replaceChildren(coloured);
  }, () => {});
}

function drawMaths(block: HTMLElement): void {
  const nodes = block.querySelectorAll<HTMLElement>("[data-maths]");
  if (!nodes.length) return;
  const load = maths ? Promise.resolve(maths) : import("./maths.ts");
  const draw = (module: typeof import("./maths.ts")) => {
    maths = module;
    for (const node of nodes) {
      const display = node.dataset["maths"] === "block";
      delete node.dataset["maths"];
      node.classList.add("maths", display ? "display" : "inline");
      module.draw(node.textContent ?? "", node, display);
      if (display) {
        node.tabIndex = 0;
        node.setAttribute("role", "group");
        node.setAttribute("aria-label", "Formula");
      }
    }
  };
  // Once loaded, at once: a formula in a growing paragraph must not flicker.
  if (maths) draw(maths);
  else load.then(draw, () => {});
}

let maths: typeof import("./maths.ts") | undefined;
