// Engines for a browser on the same machine: what `RemoteHost` asks, one request for each call, the
// answer as lines of JSON. For development and tests; `lapidary serve` is what serves people.

import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';

import { LapidaryError } from '../src/errors';
import type { Host, HostAnswer, HostEngine, HostMessage, HostModel, HostPart } from '../src/host';
import { NativeHost, type Bindings, type NativeSettings } from '../src/hosts/native';

/** A photo of a phone, as base64, and some turns of them. */
const BODY_LIMIT = 64 * 1024 * 1024;

type Body = Record<string, any>;
type Tell = (line: object) => void;

/** What browsers ask for at once. Names of what they have are counted. */
class Bridge {
  private readonly models = new Map<string, HostModel>();
  private readonly engines = new Map<string, HostEngine>();
  private readonly answers = new Map<string, HostAnswer>();
  private count = 0;

  constructor(private readonly host: Host) {}

  private put<T>(map: Map<string, T>, value: T): string {
    const id = String(++this.count);
    map.set(id, value);
    return id;
  }

  readonly calls: Record<string, (body: Body, tell: Tell, signal: AbortSignal) => Promise<void>> = {
    choose: async ({ backends }, tell) => tell({ backend: await this.host.choose(backends) }),
    downloaded: async ({ source }, tell) =>
      tell({ downloaded: await this.host.isDownloaded(source) }),
    download: ({ source }, tell, signal) =>
      this.host.download(source, signal, (fraction) => tell({ fraction })),
    open: async ({ source }, tell) => {
      const model = await this.host.open(source);
      tell({ id: this.put(this.models, model), info: model.info });
    },
    close: async ({ id }, tell) => {
      this.models.get(id)?.close();
      this.models.delete(id);
      tell({});
    },
    plan: async ({ id, options }, tell) => tell(await found(this.models, id).plan(options)),
    load: async ({ id, options }, tell, signal) => {
      const model = found(this.models, id);
      const engine = await model.load(options, signal, (fraction) => tell({ fraction }));
      const { info, plan } = engine;
      tell({ engine: this.put(this.engines, engine), info, plan });
    },
    unload: async ({ engine }, tell) => {
      const known = this.engines.get(engine);
      this.engines.delete(engine);
      await known?.unload();
      tell({});
    },
    count: async ({ engine, messages, options }, tell) => {
      const said = (messages as HostMessage[]).map(unpacked);
      tell({ tokens: await found(this.engines, engine).countTokens(said, options) });
    },
    answer: async ({ engine, messages, options }, tell, signal) => {
      const said = (messages as HostMessage[]).map(unpacked);
      const answer = await found(this.engines, engine).answer(said, options);
      const id = this.put(this.answers, answer);
      const cancel = () => answer.cancel();
      signal.addEventListener('abort', cancel);
      try {
        tell({ answer: id });
        for (let event = await answer.next(); event; event = await answer.next()) tell(event);
      } finally {
        signal.removeEventListener('abort', cancel);
        this.answers.delete(id);
        answer.close();
      }
    },
    cancel: async ({ answer }, tell) => {
      this.answers.get(answer)?.cancel();
      tell({});
    },
  };
}

function found<T>(map: Map<string, T>, id: string): T {
  const value = map.get(id);
  if (value === undefined) throw new LapidaryError('model_unloaded', 'the model was unloaded');
  return value;
}

function unpacked(message: HostMessage): HostMessage {
  const parts = message.parts.map((part) =>
    'bytes' in part
      ? { ...part, bytes: new Uint8Array(Buffer.from(part.bytes as unknown as string, 'base64')) }
      : part,
  );
  return { ...message, parts: parts as HostPart[] };
}

async function body(request: IncomingMessage): Promise<Body> {
  const chunks: Buffer[] = [];
  let size = 0;
  for await (const chunk of request) {
    size += chunk.length;
    if (size > BODY_LIMIT) throw new LapidaryError('invalid_argument', 'the request is too large');
    chunks.push(chunk as Buffer);
  }
  return JSON.parse(Buffer.concat(chunks).toString() || '{}') as Body;
}

/** Only pages of this server may ask: another page's script could use the name of this machine. */
function isOwn(request: IncomingMessage): boolean {
  const { host, origin } = request.headers;
  const isLocal = /^(127\.0\.0\.1|localhost|\[::1\])(:\d+)?$/.test(host ?? '');
  return isLocal && (!origin || origin === `http://${host}`);
}

/** A server on this machine; `rest` answers what is not asked of an engine. */
export function bridge(
  bindings: Bindings,
  settings: Omit<NativeSettings, 'platform'>,
  rest: (request: IncomingMessage, response: ServerResponse) => void,
): Server {
  const { calls } = new Bridge(new NativeHost(bindings, { platform: process.platform, ...settings }));
  return createServer((request, response) => {
    const call = calls[/^\/engine\/(\w+)$/.exec(request.url ?? '')?.[1] ?? ''];
    if (!call || request.method !== 'POST') return rest(request, response);
    if (!isOwn(request)) return void response.writeHead(403).end();
    const abort = new AbortController();
    response.on('close', () => abort.abort());
    response.writeHead(200, { 'content-type': 'application/x-ndjson' });
    const tell: Tell = (line) => void response.write(`${JSON.stringify(line)}\n`);
    body(request)
      .then((given) => call(given, tell, abort.signal))
      .catch((thrown: unknown) => {
        const { code, message } = LapidaryError.from(thrown);
        tell({ error: { code, message } });
      })
      .finally(() => response.end());
  });
}
