// A question before something is lost.

export interface Question {
  title: string;
  text: string;
  action: string;
  answer: (yes: boolean) => void;
}

class Confirm {
  question: Question | null = $state(null);

  ask(title: string, text: string, action: string): Promise<boolean> {
    return new Promise((resolve) => {
      this.question = {
        title,
        text,
        action,
        answer: (yes) => {
          this.question = null;
          resolve(yes);
        },
      };
    });
  }
}

export const confirm = new Confirm();
