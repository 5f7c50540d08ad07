// Builds the page into dist/, with a compressed copy of each file and a list of all for the server.
//
//   node scripts/build.mjs           build
//   node scripts/build.mjs --check   build elsewhere and compare with dist/

import { createHash } from "node:crypto";
import { mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { brotliCompressSync, brotliDecompressSync, constants } from "node:zlib";

import { svelte } from "@sveltejs/vite-plugin-svelte";
import { build } from "vite";

const root = join(dirname(fileURLToPath(import.meta.url)), "..");
const dist = join(root, "dist");
/** Bytes of all files, compressed. */
const BUDGET = 200 * 1000;

const TYPES = {
  html: "text/html; charset=utf-8",
  js: "text/javascript; charset=utf-8",
  css: "text/css; charset=utf-8",
  svg: "image/svg+xml",
  txt: "text/plain; charset=utf-8",
  webmanifest: "application/manifest+json",
};

const shared = {
  root,
  configFile: false,
  logLevel: "warn",
  mode: "production",
};

/** Licences of the packages whose code is in the page, which they want to go along with it. */
function licenses(built) {
  const chunks = [built].flat().flatMap(({ output }) => output.filter((one) => one.type === "chunk"));
  const modules = chunks.flatMap((chunk) => Object.keys(chunk.modules));
  const names = modules.flatMap((id) => /.*node_modules\/((?:@[^/]+\/)?[^/]+)/.exec(id)?.[1] ?? []);
  const texts = [...new Set(names)].sort().map((name) => {
    const folder = join(root, "node_modules", name);
    const { version, license } = JSON.parse(readFileSync(join(folder, "package.json"), "utf8"));
    const file = readdirSync(folder).find((one) => /^licen[cs]e(\.(md|txt))?$/i.test(one));
    if (!file) throw new Error(`${name} has no licence file`);
    return `${name} ${version} (${license.replace(/^\(|\)$/g, "")})\n\n${readFileSync(join(folder, file), "utf8").trim()}\n`;
  });
  return texts.join(`\n${"-".repeat(80)}\n\n`);
}

async function buildInto(out) {
  const built = await build({
    ...shared,
    plugins: [svelte({ configFile: join(root, "svelte.config.js") })],
    build: {
      outDir: out,
      emptyOutDir: true,
      target: "es2022",
      cssCodeSplit: false,
      modulePreload: false,
      assetsInlineLimit: 0,
      reportCompressedSize: false,
      rollupOptions: {
        output: {
          entryFileNames: "app.js",
          chunkFileNames: "[name].js",
          assetFileNames: (asset) => (asset.names?.[0]?.endsWith(".css") ? "app.css" : "[name][extname]"),
        },
      },
    },
  });
  writeFileSync(join(out, "licenses.txt"), licenses(built));
  const files = readdirSync(out).sort();
  const hash = createHash("sha256");
  for (const file of files) hash.update(file).update("\0").update(readFileSync(join(out, file))).update("\0");
  const paths = files.filter((file) => file !== "index.html" && file !== "licenses.txt").map((file) => `/${file}`);
  await build({
    ...shared,
    publicDir: false,
    define: { FILES: JSON.stringify(["/", ...paths]), BUILD: JSON.stringify(hash.digest("hex").slice(0, 16)) },
    build: {
      outDir: out,
      emptyOutDir: false,
      target: "es2022",
      reportCompressedSize: false,
      rollupOptions: { input: join(root, "src/sw.ts"), output: { entryFileNames: "sw.js" } },
    },
  });
  return readdirSync(out).sort();
}

/** What the server embeds: values of its type `File`. */
function listing(files) {
  const rows = files.map((file) => {
    const type = TYPES[file.split(".").pop()];
    if (!type) throw new Error(`${file} has an ending without a media type`);
    return `    File {
        path: "/${file}",
        content_type: "${type}",
        plain: include_bytes!("${file}"),
        brotli: Some(include_bytes!("${file}.br")),
    },
`;
  });
  return `// Made by \`cargo xtask web\`.\n&[\n${rows.join("")}]\n`;
}

function compress(bytes) {
  const params = {
    [constants.BROTLI_PARAM_QUALITY]: constants.BROTLI_MAX_QUALITY,
    [constants.BROTLI_PARAM_LGWIN]: constants.BROTLI_MAX_WINDOW_BITS,
    [constants.BROTLI_PARAM_SIZE_HINT]: bytes.length,
  };
  return brotliCompressSync(bytes, { params });
}

async function make() {
  const files = await buildInto(dist);
  let sum = 0;
  for (const file of files) {
    const bytes = readFileSync(join(dist, file));
    const small = compress(bytes);
    writeFileSync(join(dist, `${file}.br`), small);
    sum += small.length;
    console.log(`${String(bytes.length).padStart(8)} ${String(small.length).padStart(7)}  ${file}`);
  }
  writeFileSync(join(dist, "files.rs"), listing(files));
  console.log(`${String(sum).padStart(16)}  in all, compressed`);
  if (sum > BUDGET) throw new Error(`the page has ${sum} bytes compressed, more than ${BUDGET}`);
}

/** Compressed bytes depend on the version of Brotli, so those are unpacked and then compared. */
async function check() {
  const out = mkdtempSync(join(tmpdir(), "lapidary-web-"));
  try {
    const files = await buildInto(out);
    const wrong = [];
    let sum = 0;
    for (const file of files) {
      const built = readFileSync(join(out, file));
      try {
        const small = readFileSync(join(dist, `${file}.br`));
        sum += small.length;
        if (!built.equals(readFileSync(join(dist, file)))) wrong.push(file);
        else if (!built.equals(brotliDecompressSync(small))) wrong.push(`${file}.br`);
      } catch {
        wrong.push(`${file} (missing)`);
      }
    }
    const known = new Set([...files, ...files.map((file) => `${file}.br`), "files.rs"]);
    for (const file of readdirSync(dist)) if (!known.has(file)) wrong.push(`${file} (not built)`);
    if (readFileSync(join(dist, "files.rs"), "utf8") !== listing(files)) wrong.push("files.rs");
    if (wrong.length) throw new Error(`web/dist is not what web/ builds: ${wrong.join(", ")}; run \`cargo xtask web\` and commit`);
    if (sum > BUDGET) throw new Error(`the page has ${sum} bytes compressed, more than ${BUDGET}`);
    console.log(`web/dist is what web/ builds: ${files.length} files, ${sum} bytes compressed`);
  } finally {
    rmSync(out, { recursive: true, force: true });
  }
}

try {
  mkdirSync(dist, { recursive: true });
  await (process.argv.includes("--check") ? check() : make());
} catch (e) {
  console.error(`web: ${e instanceof Error ? e.message : e}`);
  process.exit(1);
}
