// Attachments of the conversation that is open: their bytes, and addresses to show them by.

import * as store from "./store.ts";
import { base64 } from "./transfer.ts";
import type { Attachment } from "./types.ts";

const blobs = new Map<string, Blob>();
const urls = new Map<string, string>();

export function keep(id: string, blob: Blob): void {
  blobs.set(id, blob);
}

export async function blobOf(id: string): Promise<Blob> {
  const known = blobs.get(id);
  if (known) return known;
  const found = await store.file(id);
  if (!found) throw new Error("the file is no longer kept by this browser");
  blobs.set(id, found.blob);
  return found.blob;
}

/** An address for `<img>` and `<audio>`, good until the conversation is left. */
export async function urlOf(id: string): Promise<string> {
  const blob = await blobOf(id);
  let url = urls.get(id);
  if (!url) urls.set(id, (url = URL.createObjectURL(blob)));
  return url;
}

/** As a request wants it: text as it is, media as base64. */
export async function load(attachment: Attachment): Promise<string> {
  const blob = await blobOf(attachment.id);
  if (attachment.kind === "text") return blob.text();
  return base64(new Uint8Array(await blob.arrayBuffer()));
}

/** Forgets what is not on the screen any more. */
export function forget(): void {
  for (const url of urls.values()) URL.revokeObjectURL(url);
  urls.clear();
  blobs.clear();
}
