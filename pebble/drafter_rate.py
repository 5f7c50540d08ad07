"""How many guesses of a call are right on pebble's held-out stories, by the command line. Run: python drafter_rate.py LAPIDARY

LAPIDARY is the program. Further arguments go to `lapidary run`, `--draft lookup` for example.
"""

import json
import subprocess
import sys
from pathlib import Path

HELDOUT = Path(__file__).resolve().parent / "heldout/mixed.jsonl"


def main() -> None:
    program, *more = sys.argv[1:]
    more = more if "--draft" in more else ["--draft", "pebble", *more]
    items = [json.loads(line) for line in HELDOUT.read_text(encoding="utf-8").splitlines()]
    stories = [item["messages"][-1]["content"] for item in items if item["kind"] == "story" and len(item["messages"]) == 1]
    for name, how in (("greedy", ["-t", "0"]), ("temperature 0.5", ["-t", "0.5", "--seed", "7"])):
        calls = drafted = accepted = tokens = 0
        for question in stories:
            run = [program, "run", "pebble", question, "--json", "-n", "200", *how, *more]
            stats = json.loads(subprocess.run(run, check=True, capture_output=True).stdout)["stats"]
            calls, drafted = calls + stats["draft_calls"], drafted + stats["drafted_tokens"]
            accepted, tokens = accepted + stats["accepted_tokens"], tokens + stats["new_tokens"]
        print(f"{name}: {len(stories)} stories of {tokens} tokens; {accepted} of {drafted} guesses were right in {calls} calls, "
              f"{accepted / calls:.2f} a call; {accepted / calls + 1:.2f} tokens a call")


if __name__ == "__main__":
    main()
