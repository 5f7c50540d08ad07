// What of the page is open, and where the focus goes.

const NARROW = "(max-width: 800px)";

class Ui {
  settings = $state(false);
  shortcuts = $state(false);
  /** On a narrow screen the list of conversations covers the rest, and starts closed. */
  drawer = $state(false);
  narrow = $state(false);
  notice: string | null = $state(null);
  #clear: ReturnType<typeof setTimeout> | undefined;

  start(): void {
    const query = window.matchMedia(NARROW);
    this.narrow = query.matches;
    query.addEventListener("change", () => {
      this.narrow = query.matches;
      this.drawer = false;
    });
  }

  openSettings(): void {
    this.settings = true;
  }

  focusMessage(): void {
    document.getElementById("message")?.focus();
  }

  /** A line that goes away by itself. */
  tell(text: string): void {
    this.notice = text;
    clearTimeout(this.#clear);
    this.#clear = setTimeout(() => (this.notice = null), 6000);
  }
}

export const ui = new Ui();
