/** A random name. `crypto.randomUUID` is missing where the page comes from another machine over HTTP. */
export function newId(): string {
  const bytes = crypto.getRandomValues(new Uint8Array(12));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
