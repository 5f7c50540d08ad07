// Where a Chromium is. Playwright would fetch its own, from a host that need not be reachable.

import { accessSync, constants } from "node:fs";
import { delimiter, join } from "node:path";

const NAMES = ["chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "chrome"];

export function browser(): string | undefined {
  const given = process.env["LAPIDARY_CHROMIUM"];
  if (given) return given;
  for (const name of NAMES) {
    for (const folder of (process.env["PATH"] ?? "").split(delimiter)) {
      const path = join(folder, name);
      try {
        accessSync(path, constants.X_OK);
        return path;
      } catch {
        // Not there.
      }
    }
  }
  return undefined;
}
