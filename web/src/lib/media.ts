// Files that people pick, drop, paste or record, made into what the server reads.

import { newId } from "./ids.ts";
import type { Attachment } from "./types.ts";
import { mono, RATE, wav } from "./wav.ts";

export interface Prepared {
  attachment: Attachment;
  blob: Blob;
}

const AS_THEY_ARE = ["image/png", "image/jpeg", "image/webp"];
/** An image beyond these is made smaller here: no model sees more, and requests have a limit. */
const MAX_SIDE = 2048;
const MAX_IMAGE = 4 * 1024 * 1024;
const MAX_TEXT = 1024 * 1024;
const MAX_FILE = 256 * 1024 * 1024;
/** Longest recording, in seconds. */
export const MAX_RECORDING = 120;

const TEXT_NAME =
  /\.(txt|md|markdown|json|jsonl|ya?ml|toml|ini|cfg|conf|csv|tsv|log|xml|html?|css|s[ac]ss|[cm]?[jt]sx?|svelte|vue|rs|py|go|java|kt|swift|c|h|cc|cpp|hpp|cs|rb|php|pl|lua|r|jl|sql|sh|bash|zsh|fish|ps1|diff|patch|tex|dockerfile|makefile|wgsl|proto|lock)$/i;

export function kindOf(file: { type: string; name: string }): Attachment["kind"] | null {
  if (file.type.startsWith("image/") && file.type !== "image/svg+xml") return "image";
  if (file.type.startsWith("audio/")) return "audio";
  // Browsers take recordings without an image for video.
  if (file.type === "video/webm" && /\.weba?$/i.test(file.name)) return "audio";
  if (/^(text\/|application\/(json|xml|javascript|toml|x-sh|x-yaml))/.test(file.type)) return "text";
  return TEXT_NAME.test(file.name) || /^(dockerfile|makefile)$/i.test(file.name) ? "text" : null;
}

/** Reads a file; a refusal is an error whose message is for the user. */
export async function prepare(file: File): Promise<Prepared> {
  const kind = kindOf(file);
  if (!kind) throw new Error(`${file.name}: images, audio and text files can be added, this is none of them`);
  if (file.size > MAX_FILE) throw new Error(`${file.name} is larger than 256 MiB`);
  if (file.size === 0) throw new Error(`${file.name} is empty`);
  if (kind === "image") return image(file);
  if (kind === "audio") return audio(file, file.name);
  return text(file);
}

function prepared(kind: Attachment["kind"], name: string, blob: Blob, seconds?: number): Prepared {
  return { attachment: { id: newId(), kind, name, type: blob.type, size: blob.size, seconds }, blob };
}

async function image(file: File): Promise<Prepared> {
  let bitmap: ImageBitmap;
  try {
    bitmap = await createImageBitmap(file);
  } catch {
    throw new Error(`${file.name} is no image that this browser can read`);
  }
  const { width, height } = bitmap;
  const name = file.name || "image";
  if (AS_THEY_ARE.includes(file.type) && file.size <= MAX_IMAGE && Math.max(width, height) <= MAX_SIDE) {
    bitmap.close();
    // A copy: the file may change or vanish on disk while the conversation is kept.
    return prepared("image", name, new Blob([await file.arrayBuffer()], { type: file.type }));
  }
  const factor = Math.min(1, MAX_SIDE / Math.max(width, height));
  const canvas = document.createElement("canvas");
  canvas.width = Math.max(1, Math.round(width * factor));
  canvas.height = Math.max(1, Math.round(height * factor));
  canvas.getContext("2d")?.drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  bitmap.close();
  const type = file.type === "image/jpeg" ? "image/jpeg" : "image/png";
  const as = (wanted: string) =>
    new Promise<Blob | null>((resolve) => canvas.toBlob(resolve, wanted, 0.92));
  let blob = await as(type);
  if (blob && blob.size > MAX_IMAGE) blob = await as("image/jpeg");
  if (!blob) throw new Error(`${name} can't be made smaller by this browser`);
  return prepared("image", name, blob);
}

export async function audio(blob: Blob, name: string): Promise<Prepared> {
  let decoded: AudioBuffer;
  try {
    decoded = await new OfflineAudioContext(1, 1, RATE).decodeAudioData(await blob.arrayBuffer());
  } catch {
    throw new Error(`${name} is no audio that this browser can read`);
  }
  const channels = Array.from({ length: decoded.numberOfChannels }, (_, i) => decoded.getChannelData(i));
  const bytes = wav(mono(channels), RATE);
  return prepared("audio", name, new Blob([bytes], { type: "audio/wav" }), decoded.duration);
}

async function text(file: File): Promise<Prepared> {
  if (file.size > MAX_TEXT) throw new Error(`${file.name} is larger than 1 MiB of text`);
  let content: string;
  try {
    content = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
  } catch {
    throw new Error(`${file.name} is not UTF-8 text`);
  }
  return prepared("text", file.name, new Blob([content], { type: "text/plain" }));
}

export interface Recording {
  stop(): Promise<Prepared>;
  cancel(): void;
}

/** Why the microphone can't be used on this page; null if it may be. */
export function microphoneProblem(): string | null {
  if (!window.isSecureContext) return "Browsers give the microphone to pages from this computer or over HTTPS only.";
  if (!navigator.mediaDevices?.getUserMedia || typeof MediaRecorder === "undefined") {
    return "This browser can't record audio.";
  }
  return null;
}

/** Starts a recording. `onFull` is called when it has reached its longest. */
export async function record(onFull: () => void): Promise<Recording> {
  let stream: MediaStream;
  try {
    stream = await navigator.mediaDevices.getUserMedia({ audio: { channelCount: 1 } });
  } catch (e) {
    const denied = e instanceof DOMException && e.name === "NotAllowedError";
    throw new Error(denied ? "The browser was not allowed to use the microphone." : "No microphone was found.");
  }
  const recorder = new MediaRecorder(stream);
  const pieces: Blob[] = [];
  recorder.ondataavailable = (event) => pieces.push(event.data);
  const full = setTimeout(onFull, MAX_RECORDING * 1000);
  const ended = new Promise<void>((resolve) => (recorder.onstop = () => resolve()));
  const end = () => {
    clearTimeout(full);
    if (recorder.state !== "inactive") recorder.stop();
    for (const track of stream.getTracks()) track.stop();
  };
  recorder.start();
  return {
    async stop() {
      end();
      await ended;
      return audio(new Blob(pieces, { type: recorder.mimeType }), "recording.wav");
    },
    cancel: end,
  };
}
