// Serves the bundled page and an engine, on this machine alone.

import { readFileSync } from 'node:fs';
import type { AddressInfo } from 'node:net';
import type { Server } from 'node:http';
import { join } from 'node:path';

import { bindings } from '../node/bindings';
import { bridge } from '../node/bridge';
import { hub, pebbleFolder, type Faults } from '../node/hub';

const PAGE = `<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Lapidary</title>
<style>html, body, #root { height: 100%; margin: 0 } #root { display: flex }</style>
<div id="root"></div>
<script src="/app.js"></script>
</html>
`;

export interface Options {
  /** 0 for any that is free. */
  port: number;
  /** A hub on this machine instead of Hugging Face's. */
  demo?: Faults;
  cache?: string;
}

function listening(server: Server, port: number): Promise<string> {
  return new Promise((resolve, reject) => {
    server.once('error', reject);
    server.listen(port, '127.0.0.1', () => {
      resolve(`http://127.0.0.1:${(server.address() as AddressInfo).port}`);
    });
  });
}

/** Begins to serve. */
export async function start({ port, demo, cache }: Options): Promise<{ url: string; close: () => void }> {
  const root = join(__dirname, '..', '..', '..', '..');
  const servers: Server[] = [];
  let endpoint: string | undefined;
  if (demo) {
    servers.push(hub(pebbleFolder(root), demo));
    endpoint = await listening(servers[0]!, 0);
  }
  const app = readFileSync(join(__dirname, 'app.js'));
  const server = bridge(bindings, { cache, endpoint }, (request, response) => {
    const path = new URL(request.url ?? '/', 'http://here').pathname;
    if (path === '/') response.setHeader('content-type', 'text/html').end(PAGE);
    else if (path === '/app.js') response.setHeader('content-type', 'text/javascript').end(app);
    else response.writeHead(404).end();
  });
  servers.push(server);
  const url = await listening(server, port);
  const close = () => servers.forEach((one) => void one.close(() => undefined));
  return { url, close };
}
