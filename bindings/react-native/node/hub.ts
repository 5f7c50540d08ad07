// A hub on this machine that gives out pebble as a Hugging Face folder, so that a download can be tried
// without one: `demo/pebble`. Slow if asked to be, and its connections may break.

import { createHash } from 'node:crypto';
import { readFileSync, readdirSync } from 'node:fs';
import { createServer, type Server } from 'node:http';
import { join } from 'node:path';

const COMMIT = '0123456789abcdef0123456789abcdef01234567';
export const REPO = 'demo/pebble';

export interface Faults {
  /** Bytes in a second of all that is sent; unlimited without. */
  rate?: number;
  /** How many answers break off in the middle before all goes well. */
  cuts?: number;
}

interface File {
  bytes: Buffer;
  etag: string;
  isLarge: boolean;
}

interface Tensor {
  dtype: string;
  shape: number[];
  data_offsets: [number, number];
}

/** The weights of a `.lap` file in 8 bits, as bf16. */
export function weights(lap: Buffer): Buffer {
  const length = Number(lap.readBigUInt64LE(0));
  const header = JSON.parse(lap.toString('utf8', 8, 8 + length)) as Record<string, Tensor>;
  const data = (name: string) => {
    const [from, to] = header[name]!.data_offsets;
    return lap.subarray(8 + length + from, 8 + length + to);
  };
  const tensors: [string, number[], Buffer][] = [];
  for (const [name, tensor] of Object.entries(header)) {
    if (tensor.dtype === 'BF16') tensors.push([name, tensor.shape, data(name)]);
    if (!name.endsWith(':q8')) continue;
    const plain = name.slice(0, -3);
    const scale = header[`${plain}:scale`]!;
    const values = dequantised(data(name), tensor.shape, data(`${plain}:scale`), scale);
    tensors.push([plain, tensor.shape, values]);
  }
  // A program has the positions of rows and of columns below each other, and a checkpoint beside.
  for (const tensor of tensors) {
    const [rows, columns] = tensor[1] as [number, number];
    if (tensor[0].endsWith('position_embedding_table')) tensor[1] = [2, rows / 2, columns];
  }
  const out: Record<string, object> = { __metadata__: { format: 'pt' } };
  let end = 0;
  for (const [name, shape, bytes] of tensors) {
    out[name] = { dtype: 'BF16', shape, data_offsets: [end, (end += bytes.length)] };
  }
  const text = Buffer.from(JSON.stringify(out));
  const size = Buffer.alloc(8);
  size.writeBigUInt64LE(BigInt(text.length));
  return Buffer.concat([size, text, ...tensors.map(([, , bytes]) => bytes)]);
}

function dequantised(codes: Buffer, shape: number[], scales: Buffer, scale: Tensor): Buffer {
  const [rows, columns] = shape as [number, number];
  const groups = scale.shape[1]!;
  const group = columns / groups;
  const out = Buffer.alloc(rows * columns * 2);
  const float = new Float32Array(1);
  const bits = new Uint32Array(float.buffer);
  for (let row = 0; row < rows; row++) {
    for (let column = 0; column < columns; column++) {
      const at = row * groups + Math.floor(column / group);
      const factor = scale.dtype === 'F32' ? scales.readFloatLE(at * 4) : half(scales.readUInt16LE(at * 2));
      // Codes are stored with their middle at 128.
      float[0] = (codes[row * columns + column]! - 128) * factor;
      // To the nearest, ties to even.
      const rounded = bits[0]! + 0x7fff + ((bits[0]! >>> 16) & 1);
      out.writeUInt16LE((rounded >>> 16) & 0xffff, (row * columns + column) * 2);
    }
  }
  return out;
}

function half(bits: number): number {
  const exponent = (bits >> 10) & 31;
  const fraction = bits & 1023;
  const value = exponent === 0 ? fraction * 2 ** -24 : (1 + fraction / 1024) * 2 ** (exponent - 15);
  return bits & 0x8000 ? -value : value;
}

/** Pebble's folder, in memory. */
export function pebbleFolder(root: string): Map<string, File> {
  const folder = join(root, 'pebble', 'folder');
  const files = new Map<string, File>();
  const add = (name: string, bytes: Buffer, isLarge: boolean) => {
    const hash = createHash(isLarge ? 'sha256' : 'sha1');
    if (!isLarge) hash.update(`blob ${bytes.length}\0`);
    files.set(name, { bytes, isLarge, etag: hash.update(bytes).digest('hex') });
  };
  for (const name of readdirSync(folder)) add(name, readFileSync(join(folder, name)), false);
  const halves = ['1', '2'].map((n) => readFileSync(join(root, 'pebble', 'halves', n, `pebble.lap.${n}`)));
  add('model.safetensors', weights(Buffer.concat(halves)), true);
  return files;
}

/** The hub; `faults` may be changed while it runs. */
export function hub(files: Map<string, File>, faults: Faults = {}): Server {
  return createServer((request, response) => {
    const { pathname } = new URL(request.url ?? '/', 'http://hub');
    if (pathname.startsWith(`/api/models/${REPO}/`)) {
      return void response.setHeader('content-type', 'application/json').end(api(pathname, files));
    }
    const name = new RegExp(`^/${REPO}/resolve/[^/]+/(.+)$`).exec(pathname)?.[1];
    const file = name === undefined ? undefined : files.get(name);
    if (!file) return void response.writeHead(404, { 'x-error-code': 'EntryNotFound' }).end();
    const range = /^bytes=(\d+)-(\d*)$/.exec(request.headers.range ?? '');
    const from = range ? Number(range[1]) : 0;
    const to = range?.[2] ? Math.min(Number(range[2]), file.bytes.length - 1) : file.bytes.length - 1;
    response.writeHead(range ? 206 : 200, {
      etag: `"${file.etag}"`,
      'x-repo-commit': COMMIT,
      'accept-ranges': 'bytes',
      'content-length': to - from + 1,
      ...(range ? { 'content-range': `bytes ${from}-${to}/${file.bytes.length}` } : {}),
    });
    if (request.method === 'HEAD') return void response.end();
    void send(response, file.bytes.subarray(from, to + 1), file.isLarge ? faults : {});
  });
}

async function send(
  response: import('node:http').ServerResponse,
  bytes: Buffer,
  faults: Faults,
): Promise<void> {
  const isCut = (faults.cuts ?? 0) > 0 && bytes.length > 65_536;
  if (isCut) faults.cuts = faults.cuts! - 1;
  const end = isCut ? bytes.length >> 1 : bytes.length;
  for (let at = 0; at < end && !response.destroyed; at += 65_536) {
    response.write(bytes.subarray(at, Math.min(at + 65_536, end)));
    if (faults.rate) await new Promise((done) => setTimeout(done, 65_536_000 / faults.rate!));
  }
  if (isCut) response.destroy();
  else response.end();
}

function api(pathname: string, files: Map<string, File>): string {
  const sized = [...files].map(([path, { bytes, etag, isLarge }]) => ({
    type: 'file',
    path,
    rfilename: path,
    size: bytes.length,
    ...(isLarge ? { oid: etag.slice(0, 40), lfs: { oid: etag, sha256: etag, size: bytes.length } } : { oid: etag, blobId: etag }),
  }));
  if (pathname.includes('/tree/')) return JSON.stringify(sized);
  return JSON.stringify({ id: REPO, sha: COMMIT, gated: false, private: false, siblings: sized });
}
