import { LapidaryError } from './errors';
import type { HostMessage, HostPart } from './host';
import type { Media, Message } from './types';

/** What a microphone of react-native-executorch's users gives. */
const WAVEFORM_RATE = 16_000;

/** A prompt as an engine takes it. Thoughts stay until the next question, as the models were taught. */
export function hostMessages(messages: Message[]): Promise<HostMessage[]> {
  const asked = messages.map(({ role }) => role).lastIndexOf('user');
  const said = messages.map((message, index) => {
    const { thinking, ...rest } = message;
    return hostMessage(index > asked ? message : rest);
  });
  return Promise.all(said);
}

/** A message as an engine takes it: media first, then what is said about them. */
async function hostMessage(message: Message): Promise<HostMessage> {
  const media: Media[] = [...(message.media ?? [])];
  if (message.mediaPath) media.unshift({ type: 'image', path: message.mediaPath });
  if (message.audioWaveform) {
    media.push({ type: 'pcm', samples: message.audioWaveform, rate: WAVEFORM_RATE });
  }
  const parts = await Promise.all(media.map(hostPart));
  if (message.content || parts.length === 0) parts.push({ type: 'text', text: message.content });
  const calls = message.toolCalls ?? [];
  return {
    role: message.role,
    parts,
    ...(message.thinking ? { thinking: message.thinking } : {}),
    toolCalls: calls.map((call) => ({
      id: call.id,
      name: call.toolName,
      arguments: JSON.stringify(call.arguments),
    })),
    ...(message.toolCallId ? { toolCallId: message.toolCallId } : {}),
    ...(message.toolName ? { name: message.toolName } : {}),
  };
}

async function hostPart(media: Media): Promise<HostPart> {
  if (media.type === 'pcm') {
    return { type: 'pcm', bytes: pcmBytes(media.samples), rate: media.rate };
  }
  if ('bytes' in media) return media;
  const { type, path } = media;
  if (path.startsWith('file://')) return { type, path: decodeURIComponent(path.slice(7)) };
  if (path.startsWith('data:') || path.startsWith('blob:')) {
    return { type, bytes: await fetched(path) };
  }
  if (/^[a-z][a-z0-9+.-]+:/i.test(path)) {
    const scheme = path.slice(0, path.indexOf(':'));
    throw new LapidaryError(
      'invalid_argument',
      `${type}: \`${scheme}:\` addresses are not read; pass a file's path or its bytes`,
    );
  }
  return { type, path };
}

async function fetched(uri: string): Promise<Uint8Array> {
  try {
    return new Uint8Array(await (await fetch(uri)).arrayBuffer());
  } catch {
    throw new LapidaryError('invalid_argument', `\`${uri.slice(0, 32)}…\` can't be read`);
  }
}

/** Samples as 16 bits, signed, little-endian. */
export function pcmBytes(samples: Float32Array | Int16Array): Uint8Array {
  const bytes = new Uint8Array(samples.length * 2);
  const view = new DataView(bytes.buffer);
  const factor = samples instanceof Float32Array ? 32_767 : 1;
  for (let i = 0; i < samples.length; i++) {
    const value = Math.round(samples[i]! * factor);
    // What is no number is silence.
    view.setInt16(i * 2, Math.max(-32_768, Math.min(32_767, value)) || 0, true);
  }
  return bytes;
}
