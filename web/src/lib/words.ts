// Numbers as people read them.

const whole = new Intl.NumberFormat("en-GB");

export const number = (value: number): string => whole.format(value);

export function bytes(value: number): string {
  const units = ["bytes", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  let rest = value;
  while (rest >= 1024 && at < units.length - 1) {
    rest /= 1024;
    at++;
  }
  return `${at === 0 || rest >= 100 ? Math.round(rest) : rest.toFixed(1)} ${units[at]}`;
}

export function seconds(value: number | undefined): string {
  if (value === undefined) return "";
  const rounded = Math.round(value);
  return `${Math.floor(rounded / 60)}:${String(rounded % 60).padStart(2, "0")}`;
}

export const milliseconds = (value: number): string =>
  value < 1000 ? `${Math.round(value)} ms` : `${(value / 1000).toFixed(value < 10_000 ? 2 : 1)} s`;

export const rate = (value: number): string => `${value >= 100 ? Math.round(value) : value.toFixed(1)} tok/s`;

export const plural = (n: number, one: string, many = `${one}s`): string => `${number(n)} ${n === 1 ? one : many}`;

/** A context in its usual short form: 8192 is 8k. */
export const context = (tokens: number): string =>
  tokens >= 1024 && tokens % 1024 === 0 ? `${tokens / 1024}k` : number(tokens);

/** JSON with line breaks; what is none (or not yet) stays as it is. */
export function pretty(json: string): string {
  try {
    return JSON.stringify(JSON.parse(json), null, 2);
  } catch {
    return json;
  }
}

/** JSON as a block of code, open while it grows. */
export function fencedJson(json: string, done: boolean): string {
  return done ? `\`\`\`json\n${pretty(json)}\n\`\`\`` : `\`\`\`json\n${json}`;
}

export function when(time: number, now: number): string {
  const date = new Date(time);
  const today = new Date(now);
  if (date.toDateString() === today.toDateString()) {
    return date.toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit" });
  }
  const thisYear = date.getFullYear() === today.getFullYear();
  return date.toLocaleDateString("en-GB", { day: "numeric", month: "short", ...(thisYear ? {} : { year: "numeric" }) });
}
