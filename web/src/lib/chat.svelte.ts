// Conversations: which are kept, which is open, and what can be done to it.

import { SvelteMap } from "svelte/reactivity";

import * as files from "./files.ts";
import { newId } from "./ids.ts";
import type { Prepared } from "./media.ts";
import { messagesOf } from "./messages.ts";
import { preferences } from "./preferences.svelte.ts";
import { Run } from "./run.svelte.ts";
import { server } from "./server.svelte.ts";
import { fields, restore } from "./settings.ts";
import { speech } from "./speak.svelte.ts";
import * as store from "./store.ts";
import * as transfer from "./transfer.ts";
import * as tree from "./tree.ts";
import type { Node, ToolResult } from "./tree.ts";
import type { Conversation, Model, Settings } from "./types.ts";

/** An answer that is coming is kept this often, so that a closed tab loses little. */
const KEEP_EVERY = 1000;

function reactive(node: Node): Node {
  const state = $state(node);
  return state;
}

class Chat {
  list: Conversation[] = $state([]);
  open: Conversation | null = $state(null);
  nodes = new SvelteMap<string, Node>();
  runs = new SvelteMap<string, Run>();
  /** Why nothing can be kept; the page works on without. */
  storageProblem: string | null = $state(null);
  ready = $state(false);
  families = $derived(tree.families(this.nodes));
  path: Node[] = $derived(this.open ? tree.path(this.families, this.open.chosen) : []);
  /** Settings and model of a conversation that has not begun. */
  fresh: { settings: Settings; model: string } = $state({ settings: restore({}), model: "" });
  #channel: BroadcastChannel | null = null;
  #made = 0;
  #wanted = "";

  get settings(): Settings {
    return this.open?.settings ?? this.fresh.settings;
  }

  get running(): Run | undefined {
    const last = this.path[this.path.length - 1];
    return last && this.runs.get(last.id);
  }

  /** The model that answers next. */
  get model(): Model | undefined {
    const wanted = this.open?.model || this.fresh.model || preferences.model;
    return server.find(wanted) ?? server.models.find((model) => model.state === "loaded") ?? server.models[0];
  }

  choose(id: string): void {
    if (this.open) {
      this.open.model = id;
      void this.#keep();
    }
    this.fresh.model = id;
    preferences.model = id;
  }

  async start(): Promise<void> {
    this.fresh.settings = restore($state.snapshot(preferences.defaults));
    try {
      await this.#reload();
      this.#channel = new BroadcastChannel("lapidary");
      this.#channel.onmessage = (event: MessageEvent<string>) => void this.#elsewhere(event.data);
    } catch (e) {
      this.storageProblem = e instanceof Error ? e.message : "the browser's storage can't be used";
    }
    const wanted = location.hash.slice(1);
    if (wanted) await this.show(wanted);
    window.addEventListener("hashchange", () => void this.show(location.hash.slice(1)));
    window.addEventListener("pagehide", () => {
      for (const run of this.runs.values()) {
        run.leave();
        const of = this.list.find((one) => one.id === run.node.conversation);
        if (of) void this.#keep([run.node], [], of);
      }
    });
    this.ready = true;
  }

  async #reload(): Promise<void> {
    const kept = await store.listConversations();
    const open = this.open;
    // Objects that something here holds on to stay the same ones.
    const held = new Set([...this.runs.values()].map((run) => run.node.conversation));
    if (open) held.add(open.id);
    const ours = new Map(this.list.map((one) => [one.id, one]));
    this.list = kept
      .map((one) => (held.has(one.id) && ours.get(one.id)) || { ...one, settings: restore(one.settings) })
      .sort((a, b) => b.updated - a.updated);
    if (open && !kept.some((one) => one.id === open.id) && this.nodes.size) this.#leave();
  }

  /** Another tab changed a conversation. */
  async #elsewhere(id: string): Promise<void> {
    await this.#reload();
    if (this.open?.id !== id) return;
    const kept = await store.nodesOf(id);
    if (this.open?.id !== id) return;
    const still = new Set(kept.map((node) => node.id));
    for (const node of this.nodes.keys()) if (!still.has(node) && !this.runs.has(node)) this.nodes.delete(node);
    for (const node of kept) {
      const ours = this.nodes.get(node.id);
      if (!ours) this.nodes.set(node.id, reactive(node));
      else if (!this.runs.has(node.id)) Object.assign(ours, node);
    }
  }

  #close(): void {
    this.open = null;
    this.nodes.clear();
    files.forget();
    speech.clear();
  }

  #leave(): void {
    this.#close();
    if (location.hash) history.pushState(null, "", location.pathname);
  }

  /** Opens a conversation by its id; none for an id that is not known. */
  async show(id: string): Promise<void> {
    if (this.open?.id === id) return;
    const found = this.list.find((one) => one.id === id);
    if (!found) return this.#leave();
    this.#wanted = id;
    let loaded: Node[];
    try {
      loaded = await store.nodesOf(id);
    } catch (e) {
      this.storageProblem = e instanceof Error ? e.message : "the browser's storage can't be read";
      return;
    }
    // Somebody who clicks twice gets the second.
    if (this.#wanted !== id) return;
    this.#close();
    for (const node of loaded) {
      const run = this.runs.get(node.id);
      // An answer that this page does not know to be coming was cut off with the page that asked for it.
      if (!run && node.ending === "running") node.ending = "lost";
      this.nodes.set(node.id, run ? run.node : reactive(node));
    }
    this.open = found;
    if (location.hash !== `#${id}`) history.pushState(null, "", `#${id}`);
  }

  begin(): void {
    this.#wanted = "";
    this.#leave();
    this.fresh.settings = restore($state.snapshot(preferences.defaults));
  }

  async #keep(nodes: Node[] = [], added: store.StoredFile[] = [], of = this.open): Promise<void> {
    // One that was deleted must not come back with the last words of its answer.
    if (!of || !this.list.some((one) => one.id === of.id)) return;
    try {
      await store.save(of, nodes, added);
      this.storageProblem = null;
      this.#channel?.postMessage(of.id);
    } catch (e) {
      const full = e instanceof DOMException && e.name === "QuotaExceededError";
      this.storageProblem = full
        ? "the browser's storage is full: export and delete old conversations"
        : e instanceof Error ? e.message : "nothing could be kept";
    }
  }

  keepSettings(): void {
    void this.#keep();
  }

  #touch(conversation: Conversation): void {
    conversation.updated = Date.now();
    this.list.sort((a, b) => b.updated - a.updated);
  }

  #node(of: Conversation, parent: string | null, role: tree.Role, rest: Partial<Node>): Node {
    // Siblings are told apart by their time, so no two may share one.
    this.#made = Math.max(Date.now(), this.#made + 1);
    return reactive({ id: newId(), conversation: of.id, parent, role, text: "", created: this.#made, ...rest });
  }

  #ensure(title: string): Conversation {
    if (this.open) return this.open;
    const now = Date.now();
    const made: Conversation = {
      id: newId(),
      title,
      named: false,
      created: now,
      updated: now,
      model: this.model?.id ?? this.fresh.model,
      chosen: {},
      settings: restore($state.snapshot(this.fresh.settings)),
    };
    this.list.unshift(made);
    this.open = this.list[0]!;
    history.pushState(null, "", `#${made.id}`);
    return this.open;
  }

  #add(of: Conversation, node: Node): void {
    // The tree's function takes plain objects; these are proxies of the same shape.
    tree.add(this.nodes, of.chosen, node);
  }

  /** Sends a message after what is shown and asks for an answer. */
  async send(text: string, added: Prepared[]): Promise<void> {
    const named = text.trim() || added[0]?.attachment.name || "";
    const of = this.#ensure(tree.titleOf(named));
    const last = this.path[this.path.length - 1];
    await this.#say(of, last?.id ?? null, text, added, []);
  }

  async #say(of: Conversation, parent: string | null, text: string, added: Prepared[], kept: Node["attachments"]): Promise<void> {
    for (const { attachment, blob } of added) files.keep(attachment.id, blob);
    const attachments = [...(kept ?? []), ...added.map((one) => one.attachment)];
    const node = this.#node(of, parent, "user", { text, attachments: attachments.length ? attachments : undefined });
    this.#add(of, node);
    if (parent === null && !of.named) of.title = tree.titleOf(text.trim() || attachments[0]?.name || "");
    this.#touch(of);
    const stored = added.map(({ attachment, blob }) => ({ id: attachment.id, conversation: of.id, blob }));
    // The answer need not wait for the disk.
    void this.#keep([node], stored);
    await this.answer(node.id);
  }

  /** Another version of a user's message, with its own answer. */
  async edit(node: Node, text: string, added: Prepared[], kept: Node["attachments"]): Promise<void> {
    if (this.open) await this.#say(this.open, node.parent, text, added, kept);
  }

  /** Another version of an answer, as the user would have it. Nothing is asked. */
  editAnswer(node: Node, text: string): void {
    if (!this.open) return;
    const { model, thinking, json } = node;
    const made = this.#node(this.open, node.parent, "assistant", { text, model, thinking, json, ending: "stop" });
    this.#add(this.open, made);
    this.#touch(this.open);
    void this.#keep([made]);
  }

  /** What tools returned, and the answer to that. */
  async giveResults(call: Node, results: ToolResult[]): Promise<void> {
    if (!this.open) return;
    const node = this.#node(this.open, call.id, "tool", { results });
    this.#add(this.open, node);
    void this.#keep([node]);
    await this.answer(node.id);
  }

  /** One more answer to what an answer answers. */
  async regenerate(node: Node): Promise<void> {
    if (node.parent !== null) await this.answer(node.parent);
  }

  async answer(parent: string): Promise<void> {
    const of = this.open;
    if (!of) return;
    const model = this.model;
    const line = tree.lineage(this.nodes, parent);
    const settings = restore($state.snapshot(of.settings));
    const json = settings.format !== "text" || undefined;
    const node = this.#node(of, parent, "assistant", { model: model?.id ?? "", ending: "running", json });
    this.#add(of, node);
    if (model) of.model = model.id;
    const run = new Run(node);
    this.runs.set(node.id, run);
    speech.clear();
    speech.say("Answering");
    const wanted = () => this.runs.get(node.id) === run;
    const saver = setInterval(() => wanted() && void this.#keep([node], [], of), KEEP_EVERY);
    try {
      await run.go(async () => {
        const takes = { image: model?.image ?? true, audio: model?.audio ?? true };
        const messages = await messagesOf(line, settings.system, takes, files.load);
        return { model: node.model, messages, return_progress: true, ...fields(settings) };
      });
    } finally {
      clearInterval(saver);
    }
    if (!wanted()) return;
    this.runs.delete(node.id);
    this.#touch(of);
    await this.#keep([node], [], of);
    speech.say(this.#verdict(node));
    if (model?.state !== "loaded") void server.refresh();
  }

  #verdict(node: Node): string {
    if (node.problem) return `The answer failed. ${node.problem.message}`;
    if (node.ending === "stopped") return "Stopped";
    if (node.calls?.length) return "The model calls a tool";
    return "The answer is complete";
  }

  turn(node: Node, step: number): void {
    if (!this.open) return;
    const next = tree.turn(this.nodes, this.open.chosen, node, step);
    if (!next) return;
    const { index, count } = tree.place(this.families, next);
    speech.say(`Version ${index + 1} of ${count}`);
    void this.#keep();
  }

  /** Removes a message, its other versions stay. */
  async remove(node: Node): Promise<void> {
    const of = this.open;
    if (!of) return;
    const before = new Map(this.nodes);
    const gone = tree.remove(this.nodes, of.chosen, node.id);
    for (const id of gone) this.#drop(id);
    const shown = new Set([...this.nodes.values()].flatMap((one) => one.attachments ?? []).map((one) => one.id));
    const unseen = gone
      .flatMap((id) => before.get(id)?.attachments ?? [])
      .map((one) => one.id)
      .filter((id) => !shown.has(id));
    try {
      await store.removeNodes(of, gone, unseen);
      this.#channel?.postMessage(of.id);
    } catch (e) {
      this.storageProblem = e instanceof Error ? e.message : "nothing could be removed";
    }
    speech.say("Removed");
  }

  /** Ends an answer that nobody wants any more. */
  #drop(id: string): void {
    const run = this.runs.get(id);
    this.runs.delete(id);
    run?.stop();
  }

  rename(of: Conversation, title: string): void {
    of.title = title.trim().slice(0, 200) || of.title;
    of.named = true;
    void this.#keep([], [], of);
  }

  async removeConversation(of: Conversation): Promise<void> {
    for (const [id, run] of this.runs) {
      if (run.node.conversation === of.id) this.#drop(id);
    }
    if (this.open?.id === of.id) this.#leave();
    this.list = this.list.filter((one) => one.id !== of.id);
    await store.removeConversation(of.id).catch(() => {});
    this.#channel?.postMessage("");
    speech.say("Conversation deleted");
  }

  async removeAll(): Promise<void> {
    for (const id of this.runs.keys()) this.#drop(id);
    this.#leave();
    this.list = [];
    await store.removeAll().catch(() => {});
    this.#channel?.postMessage("");
    speech.say("All conversations deleted");
  }

  async export(only?: Conversation): Promise<string> {
    const bundles: transfer.Bundle[] = [];
    for (const one of only ? [only] : this.list) {
      const [nodes, kept] = await Promise.all([store.nodesOf(one.id), store.filesOf(one.id)]);
      bundles.push({ conversation: $state.snapshot(one) as Conversation, nodes, files: kept });
    }
    return transfer.write(bundles, new Date());
  }

  /** Adds the conversations of a file; how many. */
  async import(text: string): Promise<number> {
    const bundles = transfer.readFile(text, newId);
    for (const { conversation, nodes, files: added } of bundles) await store.save(conversation, nodes, added);
    await this.#reload();
    this.#channel?.postMessage("");
    return bundles.length;
  }
}

export const chat = new Chat();
