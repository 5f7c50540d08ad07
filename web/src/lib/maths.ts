// KaTeX, loaded when the first formula is shown. MathML needs no fonts and no styles of its own.

import katex from "katex";

/** Draws a formula into a node; one that can't be read stays as its source. */
export function draw(tex: string, node: HTMLElement, display: boolean): void {
  try {
    // `render` builds nodes; a string of HTML would be stripped of its styles by the page's policy.
    katex.render(tex, node, {
      displayMode: display,
      output: "mathml",
      throwOnError: true,
      trust: false,
      strict: "ignore",
      maxSize: 20,
      maxExpand: 500,
    });
  } catch {
    node.textContent = tex;
    node.classList.add("unread");
  }
}
