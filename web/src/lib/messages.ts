// A path of the tree as the messages of a request.

import type { Node } from "./tree.ts";
import type { Attachment } from "./types.ts";

export type ContentPart =
  | { type: "text"; text: string }
  | { type: "image_url"; image_url: { url: string } }
  | { type: "input_audio"; input_audio: { data: string; format: "wav" } };

export interface Message {
  role: "system" | "user" | "assistant" | "tool";
  content: string | ContentPart[];
  tool_calls?: { id: string; type: "function"; function: { name: string; arguments: string } }[];
  tool_call_id?: string;
}

/** What a model can be given besides text. */
export interface Takes {
  image: boolean;
  audio: boolean;
}

/** Reads an attachment: text as it is, media as base64. */
export type Load = (attachment: Attachment) => Promise<string>;

/** Fences a text file, with a fence that its text does not hold. */
export function fenced(name: string, text: string): string {
  let fence = "```";
  while (text.includes(fence)) fence += "`";
  const ending = /\.([A-Za-z0-9+#]{1,10})$/.exec(name)?.[1] ?? "";
  return `${name}:\n${fence}${ending}\n${text}${text.endsWith("\n") ? "" : "\n"}${fence}`;
}

async function userParts(node: Node, takes: Takes, load: Load): Promise<ContentPart[]> {
  const parts: ContentPart[] = [];
  for (const file of node.attachments ?? []) {
    if (file.kind === "text") {
      parts.push({ type: "text", text: fenced(file.name, await load(file)) });
    } else if (file.kind === "image" && takes.image) {
      const url = `data:${file.type};base64,${await load(file)}`;
      parts.push({ type: "image_url", image_url: { url } });
    } else if (file.kind === "audio" && takes.audio) {
      parts.push({ type: "input_audio", input_audio: { data: await load(file), format: "wav" } });
    }
  }
  if (node.text) parts.push({ type: "text", text: node.text });
  return parts;
}

/** One string where all parts are text. */
function contentOf(parts: ContentPart[]): string | ContentPart[] {
  const texts = parts.filter((part) => part.type === "text").map((part) => part.text);
  return texts.length === parts.length ? texts.join("\n\n") : parts;
}

/**
 * Messages of a request. Answers that hold nothing are left out, and user messages that would then
 * follow each other become one: chat templates want the roles in turn.
 */
export async function messagesOf(line: Node[], system: string, takes: Takes, load: Load): Promise<Message[]> {
  const out: Message[] = [];
  if (system.trim()) out.push({ role: "system", content: system });
  let open: ContentPart[] | null = null;
  for (const node of line) {
    if (node.role === "user") {
      const parts = await userParts(node, takes, load);
      if (open) {
        open.push(...parts);
        out[out.length - 1]!.content = contentOf(open);
      } else {
        open = parts;
        out.push({ role: "user", content: contentOf(parts) });
      }
    } else if (node.role === "assistant") {
      const calls = node.calls ?? [];
      if (!node.text && !calls.length) continue;
      open = null;
      const message: Message = { role: "assistant", content: node.text };
      if (calls.length) {
        message.tool_calls = calls.map(({ id, name, arguments: args }) => ({
          id,
          type: "function",
          function: { name, arguments: args },
        }));
      }
      out.push(message);
    } else {
      open = null;
      for (const { id, content } of node.results ?? []) {
        out.push({ role: "tool", tool_call_id: id, content });
      }
    }
  }
  return out;
}

/** How many attachments of these messages a model can't take. */
export function leftOut(line: Node[], takes: Takes): { images: number; audio: number } {
  const files = line.flatMap((node) => node.attachments ?? []);
  return {
    images: takes.image ? 0 : files.filter((file) => file.kind === "image").length,
    audio: takes.audio ? 0 : files.filter((file) => file.kind === "audio").length,
  };
}
