import { expect, test } from "@playwright/test";

import * as tree from "../../src/lib/tree.ts";
import type { Chosen, Node, Nodes } from "../../src/lib/tree.ts";

let clock = 0;
const node = (id: string, parent: string | null, role: tree.Role = "user"): Node => ({
  id,
  conversation: "c",
  parent,
  role,
  text: id,
  created: ++clock,
});

/** q1 → a1, a1b (regenerated) → q2 → a2; q1b (edited) → a1c. */
function sample(): { nodes: Nodes; chosen: Chosen } {
  const nodes: Nodes = new Map();
  const chosen: Chosen = {};
  tree.add(nodes, chosen, node("q1", null));
  tree.add(nodes, chosen, node("a1", "q1", "assistant"));
  tree.add(nodes, chosen, node("a1b", "q1", "assistant"));
  tree.add(nodes, chosen, node("q2", "a1b"));
  tree.add(nodes, chosen, node("a2", "q2", "assistant"));
  tree.add(nodes, chosen, node("q1b", null));
  tree.add(nodes, chosen, node("a1c", "q1b", "assistant"));
  return { nodes, chosen };
}

const ids = (nodes: Node[]) => nodes.map((one) => one.id);

test("what was added last is shown", () => {
  const { nodes, chosen } = sample();
  expect(ids(tree.path(tree.families(nodes), chosen))).toEqual(["q1b", "a1c"]);
});

test("a branch that is left and found again shows the same messages", () => {
  const { nodes, chosen } = sample();
  expect(tree.turn(nodes, chosen, nodes.get("q1b")!, -1)?.id).toBe("q1");
  expect(ids(tree.path(tree.families(nodes), chosen))).toEqual(["q1", "a1b", "q2", "a2"]);
  tree.turn(nodes, chosen, nodes.get("a1b")!, -1);
  expect(ids(tree.path(tree.families(nodes), chosen))).toEqual(["q1", "a1"]);
  tree.turn(nodes, chosen, nodes.get("a1")!, 1);
  expect(ids(tree.path(tree.families(nodes), chosen))).toEqual(["q1", "a1b", "q2", "a2"]);
  tree.turn(nodes, chosen, nodes.get("q1")!, 1);
  expect(ids(tree.path(tree.families(nodes), chosen))).toEqual(["q1b", "a1c"]);
});

test("no sibling beyond the first and the last", () => {
  const { nodes, chosen } = sample();
  const before = { ...chosen };
  expect(tree.turn(nodes, chosen, nodes.get("q1b")!, 1)).toBeUndefined();
  expect(tree.turn(nodes, chosen, nodes.get("q1")!, -1)).toBeUndefined();
  expect(chosen).toEqual(before);
});

test("a message knows its place among its versions", () => {
  const { nodes } = sample();
  expect(tree.place(tree.families(nodes), nodes.get("a1b")!)).toEqual({ index: 1, count: 2 });
  expect(tree.place(tree.families(nodes), nodes.get("a2")!)).toEqual({ index: 0, count: 1 });
});

test("the line of a message goes to the root", () => {
  const { nodes } = sample();
  expect(ids(tree.lineage(nodes, "a2"))).toEqual(["q1", "a1b", "q2", "a2"]);
  expect(tree.lineage(nodes, null)).toEqual([]);
  expect(tree.lineage(nodes, "unknown")).toEqual([]);
});

test("removing a message takes what follows and shows the version beside it", () => {
  const { nodes, chosen } = sample();
  tree.turn(nodes, chosen, nodes.get("q1b")!, -1);
  expect(tree.remove(nodes, chosen, "a1b").sort()).toEqual(["a1b", "a2", "q2"]);
  expect(ids(tree.path(tree.families(nodes), chosen))).toEqual(["q1", "a1"]);
  tree.remove(nodes, chosen, "a1");
  expect(ids(tree.path(tree.families(nodes), chosen))).toEqual(["q1"]);
  tree.remove(nodes, chosen, "q1");
  tree.remove(nodes, chosen, "q1b");
  expect(tree.path(tree.families(nodes), chosen)).toEqual([]);
  expect(chosen).toEqual({});
});

test("a message can't answer one that is not there", () => {
  const { nodes, chosen } = sample();
  expect(() => tree.add(nodes, chosen, node("x", "unknown"))).toThrow(/unknown/);
});

test("a circle, which only a made-up file has, ends", () => {
  const nodes: Nodes = new Map([
    ["a", node("a", "b")],
    ["b", node("b", "a")],
    ["r", node("r", null)],
  ]);
  expect(ids(tree.path(tree.families(nodes), {}))).toEqual(["r"]);
  expect(tree.lineage(nodes, "a")).toHaveLength(2);
});

test("titles are the first line, cut at a word", () => {
  expect(tree.titleOf("  ## Hello   there\nmore")).toBe("Hello there");
  expect(tree.titleOf("")).toBe("New conversation");
  const long = tree.titleOf("word ".repeat(40));
  expect(long.length).toBeLessThanOrEqual(61);
  expect(long.endsWith("word…")).toBe(true);
});
