// A conversation is a tree of messages: an edit or another answer is a sibling, nothing is overwritten.
//
// What is shown is one path from the root: `chosen` says for each message (and for the root, under "")
// which of its children is on it. A choice deeper in a branch stays when the branch is left.

import type { Attachment, ToolCall, Usage } from "./types.ts";

export type Role = "user" | "assistant" | "tool";

/** How an answer ended, or that it has not. */
export type Ending = "running" | "stop" | "length" | "tool_calls" | "stopped" | "lost" | "error";

export interface ToolResult {
  id: string;
  name: string;
  content: string;
}

export interface Problem {
  /** What to do about it depends on this. */
  kind: "unreachable" | "key" | "busy" | "context" | "refused" | "server" | "lost" | "page";
  message: string;
  status?: number | undefined;
  code?: string | undefined;
  requestId?: string | undefined;
}

export interface Node {
  id: string;
  conversation: string;
  parent: string | null;
  role: Role;
  text: string;
  created: number;
  attachments?: Attachment[] | undefined;
  thinking?: string | undefined;
  calls?: ToolCall[] | undefined;
  results?: ToolResult[] | undefined;
  model?: string | undefined;
  ending?: Ending | undefined;
  problem?: Problem | undefined;
  usage?: Usage | undefined;
  /** The answer was asked to be JSON, so its text is no Markdown. */
  json?: boolean | undefined;
  /** What the server did not take as it was asked. */
  warnings?: string[] | undefined;
}

export type Nodes = Map<string, Node>;
export type Chosen = Record<string, string>;

const key = (parent: string | null) => parent ?? "";

const older = (a: Node, b: Node) => a.created - b.created || (a.id < b.id ? -1 : 1);

/** Children of a message, oldest first. */
export function children(nodes: Nodes, parent: string | null): Node[] {
  const found: Node[] = [];
  for (const node of nodes.values()) if (node.parent === parent) found.push(node);
  return found.sort(older);
}

/** Children of every message that has any, oldest first; those of the root under "". */
export function families(nodes: Nodes): Map<string, Node[]> {
  const all = new Map<string, Node[]>();
  for (const node of nodes.values()) {
    const list = all.get(key(node.parent));
    if (list) list.push(node);
    else all.set(key(node.parent), [node]);
  }
  for (const list of all.values()) list.sort(older);
  return all;
}

/** The messages that are shown, from the first to the last. */
export function path(byParent: Map<string, Node[]>, chosen: Chosen): Node[] {
  const shown: Node[] = [];
  const seen = new Set<string>();
  let at = "";
  for (;;) {
    const options = byParent.get(at);
    if (!options?.length) return shown;
    const next = options.find((node) => node.id === chosen[at]) ?? options[options.length - 1]!;
    // An imported file may hold a circle.
    if (seen.has(next.id)) return shown;
    seen.add(next.id);
    shown.push(next);
    at = next.id;
  }
}

/** Messages from the root to this one, this one included. */
export function lineage(nodes: Nodes, id: string | null): Node[] {
  const line: Node[] = [];
  const seen = new Set<string>();
  for (let at = id; at !== null && !seen.has(at); ) {
    seen.add(at);
    const node = nodes.get(at);
    if (!node) break;
    line.push(node);
    at = node.parent;
  }
  return line.reverse();
}

/** Adds a message and shows it. */
export function add(nodes: Nodes, chosen: Chosen, node: Node): void {
  if (node.parent !== null && !nodes.has(node.parent)) {
    throw new Error(`no message ${node.parent} to answer`);
  }
  nodes.set(node.id, node);
  chosen[key(node.parent)] = node.id;
}

/** Which sibling a message is, counted from zero, and how many there are. */
export function place(byParent: Map<string, Node[]>, node: Node): { index: number; count: number } {
  const all = byParent.get(key(node.parent)) ?? [];
  return { index: all.findIndex((other) => other.id === node.id), count: all.length };
}

/** Shows the sibling that is `step` places on, if there is one. */
export function turn(nodes: Nodes, chosen: Chosen, node: Node, step: number): Node | undefined {
  const all = children(nodes, node.parent);
  const next = all[all.findIndex((other) => other.id === node.id) + step];
  if (next) chosen[key(node.parent)] = next.id;
  return next;
}

/** Removes a message and everything after it; the ids that went. A sibling beside it is shown next. */
export function remove(nodes: Nodes, chosen: Chosen, id: string): string[] {
  const node = nodes.get(id);
  if (!node) return [];
  const before = children(nodes, node.parent);
  const at = before.findIndex((other) => other.id === id);
  const gone: string[] = [];
  const waiting = [id];
  for (let next = waiting.pop(); next !== undefined; next = waiting.pop()) {
    for (const child of children(nodes, next)) waiting.push(child.id);
    nodes.delete(next);
    delete chosen[next];
    gone.push(next);
  }
  const beside = before[at + 1] ?? before[at - 1];
  if (beside) chosen[key(node.parent)] = beside.id;
  else delete chosen[key(node.parent)];
  return gone;
}

/** The first words of a conversation, for the list. */
export function titleOf(text: string): string {
  const line = text.trim().split("\n", 1)[0]!.replace(/\s+/g, " ").replace(/^[#>*\-\s]+/, "");
  if (line.length <= 60) return line || "New conversation";
  const cut = line.slice(0, 60);
  const space = cut.lastIndexOf(" ");
  return `${space > 30 ? cut.slice(0, space) : cut}…`;
}
