// What screen readers are told: short notes, and answers block by block as they become whole.

class Speech {
  note = $state("");
  lines: { id: number; text: string }[] = $state([]);
  #next = 0;

  say(text: string): void {
    // The same words twice are news only if the region changes.
    this.note = this.note === text ? `${text}\u00a0` : text;
  }

  read(text: string): void {
    const words = text.trim();
    if (!words) return;
    this.lines.push({ id: this.#next++, text: words });
    if (this.lines.length > 20) this.lines.splice(0, this.lines.length - 20);
  }

  clear(): void {
    this.lines = [];
  }
}

export const speech = new Speech();
