// Engines in a process that is asked over HTTP: `node/bridge.ts`. For browsers, which have no engine.

import { LapidaryError, isErrorCode } from '../errors';
import type {
  Host,
  HostAnswer,
  HostAnswerOptions,
  HostEngine,
  HostEvent,
  HostMessage,
  HostModel,
} from '../host';
import type { LoadOptions, MemoryPlan, ModelInfo } from '../types';

/** One line of an answer. */
type Line = Record<string, unknown>;

export class RemoteHost implements Host {
  constructor(
    private readonly url: string,
    readonly platform: string = 'web',
  ) {}

  async choose(backends: readonly string[]): Promise<string | undefined> {
    const { backend } = await this.ask<{ backend?: string }>('choose', { backends });
    return backend;
  }

  async isDownloaded(source: string): Promise<boolean> {
    return (await this.ask<{ downloaded: boolean }>('downloaded', { source })).downloaded;
  }

  async download(
    source: string,
    signal: AbortSignal,
    progress: (fraction: number) => void,
  ): Promise<void> {
    const lines = await Lines.of(this.url, 'download', { source }, signal);
    for (let line = await lines.next(); line; line = await lines.next()) {
      progress(line.fraction as number);
    }
  }

  async open(source: string): Promise<HostModel> {
    const { id, info } = await this.ask<{ id: string; info: ModelInfo }>('open', { source });
    return {
      info,
      plan: (options) => this.ask<MemoryPlan>('plan', { id, options }),
      load: (options, signal, progress) => this.load(id, options, signal, progress),
      close: () => void this.ask('close', { id }).catch(() => undefined),
    };
  }

  private async load(
    id: string,
    options: LoadOptions,
    signal: AbortSignal,
    progress: (fraction: number) => void,
  ): Promise<HostEngine> {
    const lines = await Lines.of(this.url, 'load', { id, options }, signal);
    let line: Line | null = await lines.next();
    while (line && typeof line.fraction === 'number') {
      progress(line.fraction);
      line = await lines.next();
    }
    if (!line) throw new LapidaryError('network_error', 'the engine went away while it loaded');
    const { engine, info, plan } = line as { engine: string; info: ModelInfo; plan: MemoryPlan };
    return {
      info,
      plan,
      answer: (messages, options) => this.answer(engine, messages, options),
      countTokens: async (messages, options) => {
        const body = { engine, messages: messages.map(packed), options };
        return (await this.ask<{ tokens: number }>('count', body)).tokens;
      },
      unload: async () => void (await this.ask('unload', { engine })),
    };
  }

  private async answer(
    engine: string,
    messages: HostMessage[],
    options: HostAnswerOptions,
  ): Promise<HostAnswer> {
    const abort = new AbortController();
    const body = { engine, messages: messages.map(packed), options };
    const lines = await Lines.of(this.url, 'answer', body, abort.signal);
    const first = await lines.next();
    const answer = first?.answer;
    return {
      next: async () => (await lines.next()) as unknown as HostEvent | null,
      cancel: () => void this.ask('cancel', { answer }).catch(() => undefined),
      close: () => abort.abort(),
    };
  }

  private async ask<T>(what: string, body: Line): Promise<T> {
    const line = await (await Lines.of(this.url, what, body)).next();
    return line as T;
  }
}

/** Lines of JSON while they come. One with `error` is thrown. */
class Lines {
  private rest = '';
  private readonly decoder = new TextDecoder();

  private constructor(private readonly reader: ReadableStreamDefaultReader<Uint8Array>) {}

  static async of(url: string, what: string, body: Line, signal?: AbortSignal): Promise<Lines> {
    try {
      const response = await fetch(`${url}/${what}`, {
        method: 'POST',
        headers: { 'content-type': 'application/json' },
        body: JSON.stringify(body),
        ...(signal ? { signal } : {}),
      });
      if (!response.ok || !response.body) {
        throw new LapidaryError('network_error', `${url} says ${response.status}`);
      }
      return new Lines(response.body.getReader());
    } catch (thrown) {
      throw unreachable(url, thrown);
    }
  }

  async next(): Promise<Line | null> {
    for (;;) {
      const end = this.rest.indexOf('\n');
      if (end >= 0) {
        const line = JSON.parse(this.rest.slice(0, end)) as Line;
        this.rest = this.rest.slice(end + 1);
        if (line.error) throw failure(line.error as { code: string; message: string });
        return line;
      }
      let chunk;
      try {
        chunk = await this.reader.read();
      } catch (thrown) {
        throw unreachable('the engine', thrown);
      }
      if (chunk.done) return null;
      this.rest += this.decoder.decode(chunk.value, { stream: true });
    }
  }
}

function failure({ code, message }: { code: string; message: string }): LapidaryError {
  return new LapidaryError(isErrorCode(code) ? code : 'internal_error', message);
}

function unreachable(what: string, thrown: unknown): LapidaryError {
  if (thrown instanceof LapidaryError) return thrown;
  const known = LapidaryError.from(thrown);
  if (known.code === 'cancelled') return known;
  return new LapidaryError('network_error', `${what} can't be reached: ${known.message}`);
}

/** Bytes as base64, since they go as JSON. */
function packed(message: HostMessage): Line {
  const parts = message.parts.map((part) =>
    'bytes' in part ? { ...part, bytes: base64(part.bytes) } : part,
  );
  return { ...message, parts };
}

function base64(bytes: Uint8Array): string {
  let text = '';
  // Not all at once: a call takes only so many arguments.
  for (let i = 0; i < bytes.length; i += 8192) {
    text += String.fromCharCode(...bytes.subarray(i, i + 8192));
  }
  return btoa(text);
}
