// What a person chose for the page itself, kept in local storage. No words of conversations are.

import { DEFAULTS, restore } from "./settings.ts";
import type { Settings } from "./types.ts";

export type Theme = "system" | "light" | "dark";

const NAME = "lapidary-preferences";

interface Kept {
  theme: Theme;
  enterSends: boolean;
  sidebar: boolean;
  model: string;
  defaults: Settings;
}

function recall(): Kept {
  const kept: Kept = { theme: "system", enterSends: true, sidebar: true, model: "", defaults: { ...DEFAULTS } };
  try {
    const raw = JSON.parse(localStorage.getItem(NAME) ?? "{}") as Record<string, unknown>;
    if (raw["theme"] === "light" || raw["theme"] === "dark") kept.theme = raw["theme"];
    if (typeof raw["enterSends"] === "boolean") kept.enterSends = raw["enterSends"];
    if (typeof raw["sidebar"] === "boolean") kept.sidebar = raw["sidebar"];
    if (typeof raw["model"] === "string") kept.model = raw["model"];
    kept.defaults = restore(raw["defaults"]);
  } catch {
    // Storage may be forbidden or hold something else: defaults then.
  }
  return kept;
}

export const preferences: Kept = $state(recall());

/** Keeps every change, and shows the theme. */
export function follow(): void {
  $effect(() => {
    const text = JSON.stringify(preferences);
    try {
      localStorage.setItem(NAME, text);
    } catch {
      // Then it lasts as long as the page.
    }
  });
  $effect(() => {
    const { theme } = preferences;
    if (theme === "system") delete document.documentElement.dataset["theme"];
    else document.documentElement.dataset["theme"] = theme;
  });
}
