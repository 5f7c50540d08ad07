// Conversations as a file, and back. A file is somebody else's: every field is checked.

import { restore } from "./settings.ts";
import type { StoredFile } from "./store.ts";
import type { Ending, Node, Problem, Role } from "./tree.ts";
import type { Attachment, Conversation, ToolCall, Usage } from "./types.ts";

const FORMAT = "lapidary-conversations";
const VERSION = 1;

export interface Bundle {
  conversation: Conversation;
  nodes: Node[];
  files: StoredFile[];
}

export function base64(bytes: Uint8Array): string {
  let binary = "";
  for (let at = 0; at < bytes.length; at += 0x8000) {
    binary += String.fromCharCode(...bytes.subarray(at, at + 0x8000));
  }
  return btoa(binary);
}

export function unbase64(text: string): Uint8Array<ArrayBuffer> {
  let binary: string;
  try {
    binary = atob(text);
  } catch {
    throw new Error("a file's data is no base64");
  }
  const bytes = new Uint8Array(binary.length);
  for (let at = 0; at < binary.length; at++) bytes[at] = binary.charCodeAt(at);
  return bytes;
}

export async function write(bundles: Bundle[], now: Date): Promise<string> {
  const conversations = [];
  for (const { conversation, nodes, files } of bundles) {
    const kept = [];
    for (const { id, blob } of files) {
      kept.push({ id, type: blob.type, data: base64(new Uint8Array(await blob.arrayBuffer())) });
    }
    conversations.push({ ...conversation, nodes, files: kept });
  }
  return JSON.stringify({ format: FORMAT, version: VERSION, exported: now.toISOString(), conversations }, null, 1);
}

type Json = Record<string, unknown>;

function object(value: unknown, what: string): Json {
  if (typeof value === "object" && value !== null && !Array.isArray(value)) return value as Json;
  throw new Error(`${what} is not an object`);
}

function array(value: unknown, what: string): unknown[] {
  if (Array.isArray(value)) return value;
  throw new Error(`${what} is not a list`);
}

const string = (value: unknown): string => (typeof value === "string" ? value : "");
const optional = (value: unknown): string | undefined => (typeof value === "string" ? value : undefined);
const number = (value: unknown): number | undefined =>
  typeof value === "number" && Number.isFinite(value) ? value : undefined;
const oneOf = <T extends string>(value: unknown, all: readonly T[]): T | undefined =>
  all.find((word) => word === value);

const ROLES: readonly Role[] = ["user", "assistant", "tool"];
const ENDINGS: readonly Ending[] = ["stop", "length", "tool_calls", "stopped", "lost", "error"];
const KINDS: readonly Problem["kind"][] = ["unreachable", "key", "busy", "context", "refused", "server", "lost", "page"];
const FILES: readonly Attachment["kind"][] = ["image", "audio", "text"];
/** Types that may become an address of the page: a type such as text/html must not. */
const TYPES = /^(image\/(png|jpeg|webp|gif|bmp)|audio\/wav|text\/plain)$/;

/** Reads a file. Ids are made anew, so nothing that is kept already is overwritten. */
export function readFile(text: string, newId: () => string): Bundle[] {
  let raw: unknown;
  try {
    raw = JSON.parse(text);
  } catch {
    throw new Error("this is no JSON file");
  }
  const top = object(raw, "the file");
  if (top["format"] !== FORMAT) throw new Error("this file holds no conversations of this page");
  if (top["version"] !== VERSION) {
    const version = typeof top["version"] === "number" ? `version ${top["version"]}` : "no version";
    throw new Error(`the file has ${version}, this page reads version ${VERSION}`);
  }
  return array(top["conversations"], "conversations").map((item, i) => {
    try {
      return bundle(object(item, "it"), newId);
    } catch (e) {
      throw new Error(`conversation ${i + 1}: ${e instanceof Error ? e.message : "can't be read"}`);
    }
  });
}

function bundle(raw: Json, newId: () => string): Bundle {
  const id = newId();
  const fresh = new Map<string, string>();
  const rename = (old: unknown, what: string): string => {
    if (typeof old !== "string" || !old) throw new Error(`${what} without an id`);
    let made = fresh.get(old);
    if (!made) fresh.set(old, (made = newId()));
    return made;
  };
  const files: StoredFile[] = array(raw["files"] ?? [], "files").map((item) => {
    const from = object(item, "a file");
    const type = string(from["type"]);
    if (!TYPES.test(type)) throw new Error(`a file of type ${type || "none"} is not read`);
    return { id: rename(from["id"], "a file"), conversation: id, blob: new Blob([unbase64(string(from["data"]))], { type }) };
  });
  const known = new Map(files.map((file) => [file.id, file]));
  const items = array(raw["nodes"], "nodes").map((item) => object(item, "a message"));
  const ids = new Set(items.map((item) => rename(item["id"], "a message")));
  const nodes = items.map((item): Node => {
    const role = oneOf(item["role"], ROLES);
    if (!role) throw new Error(`a message with ${item["role"] ? `the role ${String(item["role"])}` : "no role"}`);
    const parent = item["parent"] === null ? null : rename(item["parent"], "a parent");
    if (parent !== null && !ids.has(parent)) throw new Error("a message answers one that is not in the file");
    const attachments = array(item["attachments"] ?? [], "attachments").map((one): Attachment => {
      const from = object(one, "an attachment");
      const file = known.get(rename(from["id"], "an attachment"));
      const kind = oneOf(from["kind"], FILES);
      if (!file || !kind) throw new Error("an attachment is not in the file");
      return {
        id: file.id,
        kind,
        name: string(from["name"]) || kind,
        type: file.blob.type,
        size: file.blob.size,
        seconds: number(from["seconds"]),
      };
    });
    return {
      id: rename(item["id"], "a message"),
      conversation: id,
      parent,
      role,
      text: string(item["text"]),
      created: number(item["created"]) ?? 0,
      attachments: attachments.length ? attachments : undefined,
      thinking: optional(item["thinking"]),
      calls: item["calls"] === undefined ? undefined : array(item["calls"], "calls").map(call),
      results:
        item["results"] === undefined
          ? undefined
          : array(item["results"], "results").map((one) => {
              const from = object(one, "a result");
              return { id: string(from["id"]), name: string(from["name"]), content: string(from["content"]) };
            }),
      model: optional(item["model"]),
      ending: role === "assistant" ? (oneOf(item["ending"], ENDINGS) ?? "stop") : undefined,
      problem: problem(item["problem"]),
      usage: usage(item["usage"]),
      json: item["json"] === true || undefined,
      warnings:
        item["warnings"] === undefined
          ? undefined
          : array(item["warnings"], "warnings").filter((one): one is string => typeof one === "string"),
    };
  });
  const chosen: Record<string, string> = {};
  for (const [parent, child] of Object.entries(object(raw["chosen"] ?? {}, "chosen"))) {
    const to = typeof child === "string" ? fresh.get(child) : undefined;
    const from = parent === "" ? "" : fresh.get(parent);
    if (to && from !== undefined) chosen[from] = to;
  }
  return {
    conversation: {
      id,
      title: string(raw["title"]).slice(0, 200) || "Imported conversation",
      named: raw["named"] === true,
      created: number(raw["created"]) ?? 0,
      updated: number(raw["updated"]) ?? 0,
      model: string(raw["model"]),
      chosen,
      settings: restore(raw["settings"]),
    },
    nodes,
    files,
  };
}

function call(raw: unknown): ToolCall {
  const from = object(raw, "a call");
  return { id: string(from["id"]), name: string(from["name"]), arguments: string(from["arguments"]) };
}

function problem(raw: unknown): Problem | undefined {
  if (raw === undefined || raw === null) return undefined;
  const from = object(raw, "a problem");
  return {
    kind: oneOf(from["kind"], KINDS) ?? "server",
    message: string(from["message"]),
    status: number(from["status"]),
    code: optional(from["code"]),
    requestId: optional(from["requestId"]),
  };
}

function usage(raw: unknown): Usage | undefined {
  if (raw === undefined || raw === null) return undefined;
  const from = object(raw, "usage");
  return {
    prompt: number(from["prompt"]) ?? 0,
    completion: number(from["completion"]) ?? 0,
    cached: number(from["cached"]),
    ttft: number(from["ttft"]),
    promptMs: number(from["promptMs"]),
    predictedMs: number(from["predictedMs"]),
    rate: number(from["rate"]),
  };
}
