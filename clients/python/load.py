"""A server under the load of many clients, each of whose answers is the one that it gives alone.

    load.py burst   clients at once, with prompts and answers of mixed lengths; a tenth are cut off
    load.py soak    one request after another on a few connections; resident memory stays flat

The server at LAPIDARY_URL serves LAPIDARY_MODEL, or pebble. `soak` needs the server's --pid.
"""

import argparse
import concurrent.futures
import http.client
import json
import os
import pathlib
import random
import sys
import threading
import time
import urllib.parse

URL = urllib.parse.urlsplit(os.environ["LAPIDARY_URL"])
MODEL = os.environ.get("LAPIDARY_MODEL", "pebble")
ANIMALS = ["fox", "otter", "hare", "owl", "snail", "bear", "mole", "crow"]
MOODS = ["brave", "merry", "lazy", "shy", "clever", "hungry", "gentle", "proud"]
#: Seconds that a request may take in all, with its turns in the queue.
PATIENCE = 300
#: Seconds after which a server that is asked for nothing is idle.
SETTLE = 30
#: How much more resident memory a soak may leave than its first requests did.
GROWTH = 1.02


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("kind", choices=["burst", "soak"])
    arguments.add_argument("--clients", type=int, default=64)
    arguments.add_argument("--requests", type=int, default=20, help="of each client; of all for a soak")
    arguments.add_argument("--distinct", type=int, default=96, help="requests that differ")
    arguments.add_argument("--longest", type=int, default=600, help="words of a prompt")
    arguments.add_argument("--seed", type=int, default=1)
    arguments.add_argument("--pid", type=int, help="of the server, for a soak")
    arguments = arguments.parse_args()
    sys.exit({"burst": burst, "soak": soak}[arguments.kind](arguments))


def request(rng: random.Random, longest: int) -> dict:
    """A request whose answer is known beforehand: greedy, or with a seed."""
    story = f"Tell me a story about a {rng.choice(MOODS)} {rng.choice(ANIMALS)}."
    words = rng.choice([0, 0, rng.randrange(40), rng.randrange(longest)])
    before = " ".join(rng.choice(ANIMALS + MOODS) for _ in range(words))
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": f"{before} {story}".strip()}],
        "max_tokens": rng.choice([1, 8, 24, 64, 160]),
        "stream": rng.random() < 0.7,
    }
    if rng.random() < 0.5:
        return body | {"temperature": 0}
    return body | {"temperature": 0.9, "top_p": 0.95, "seed": rng.randrange(1 << 31)}


def ask(connection: http.client.HTTPConnection, body: dict, cut: float | None = None) -> str | None:
    """The answer's text; None if it was cut off after that part of its tokens."""
    deadline = time.monotonic() + PATIENCE
    while True:
        connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
        if cut is not None and (cut < 0.3 or not body["stream"]):
            # While the request waits or its prompt is read, most often.
            time.sleep(cut * 0.3)
            connection.close()
            return None
        response = connection.getresponse()
        if response.status != 429:
            break
        response.read()
        if time.monotonic() > deadline:
            raise TimeoutError("429 for too long")
        time.sleep(min(float(response.getheader("Retry-After", "1")), 2.0) * random.uniform(0.5, 1.0))
    if response.status != 200:
        raise RuntimeError(f"{response.status}: {response.read()[:300]!r}")
    if not body["stream"]:
        return json.loads(response.read())["choices"][0]["message"]["content"] or ""
    text, pieces = "", 0
    while line := response.readline():
        line = line.decode().strip()
        if line == "data: [DONE]":
            response.read()
            return None if cut is not None else text
        if not line.startswith("data: "):
            continue
        event = json.loads(line.removeprefix("data: "))
        if "error" in event:
            raise RuntimeError(event["error"])
        for choice in event["choices"]:
            text += choice["delta"].get("content") or ""
        pieces += 1
        if cut is not None and pieces > cut * body["max_tokens"]:
            connection.close()
            return None
    raise RuntimeError("a stream that ends without [DONE]")


def connect() -> http.client.HTTPConnection:
    return http.client.HTTPConnection(URL.hostname, URL.port, timeout=PATIENCE)


def metrics() -> dict[str, float]:
    """What `/metrics` says of the model."""
    connection = connect()
    connection.request("GET", "/metrics")
    found = {}
    for line in connection.getresponse().read().decode().splitlines():
        name, _, rest = line.partition("{")
        if f'model_name="{MODEL}"' in rest:
            found[name.removeprefix("lapidary:")] = float(rest.rsplit(" ", 1)[1])
    return found


def idle() -> str | None:
    """Waits until nothing is under way; what is still held after that, if anything."""
    end = time.monotonic() + SETTLE
    while True:
        now = metrics()
        held = {k: now[k] for k in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc") if now[k]}
        if not held:
            return None
        if time.monotonic() > end:
            return str(held)
        time.sleep(0.2)


def burst(arguments) -> int:
    rng = random.Random(arguments.seed)
    bodies = [request(rng, arguments.longest) for _ in range(arguments.distinct)]
    start = time.monotonic()
    alone = connect()
    wanted = [ask(alone, body) for body in bodies]
    print(f"{len(bodies)} answers, one after another: {time.monotonic() - start:.1f} s", flush=True)
    wrong, cut, lock = [], 0, threading.Lock()

    def client(which: int):
        nonlocal cut
        rng = random.Random(f"{arguments.seed}.{which}")
        connection = connect()
        for _ in range(arguments.requests):
            of = rng.randrange(len(bodies))
            at = rng.random() if rng.random() < 0.1 else None
            try:
                got = ask(connection, bodies[of], at)
            except (OSError, RuntimeError, http.client.HTTPException) as e:
                got = f"failed: {e!r}"
                connection.close()
            with lock:
                if got is None:
                    cut += 1
                elif got != wanted[of]:
                    wrong.append((bodies[of], wanted[of], got))

    start = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(arguments.clients) as pool:
        list(pool.map(client, range(arguments.clients)))
    seconds = time.monotonic() - start
    n = arguments.clients * arguments.requests
    print(f"{n} requests of {arguments.clients} clients in {seconds:.1f} s: {cut} cut off, {len(wrong)} wrong")
    for body, was, got in wrong[:3]:
        print(f"{json.dumps(body)[:300]}\n  wanted {was!r}\n  got    {got!r}")
    held = idle()
    if held:
        print(f"held by nobody: {held}")
    return int(bool(wrong or held))


def resident(pid: int) -> int:
    """KiB of memory that the process holds."""
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    raise RuntimeError(f"/proc/{pid}/status has no VmRSS")


def soak(arguments) -> int:
    rng = random.Random(arguments.seed)
    bodies = [request(rng, 60) | {"max_tokens": rng.choice([1, 4, 12])} for _ in range(arguments.requests)]
    todo, lock, failed = iter(bodies), threading.Lock(), []

    def client(until: int):
        connection = connect()
        while True:
            with lock:
                if client.done >= until:
                    return
                client.done += 1
                body = next(todo)
            try:
                ask(connection, body)
            except (OSError, RuntimeError, http.client.HTTPException) as e:
                failed.append(repr(e))
                connection.close()

    client.done = 0
    seen = []
    for until in sorted({500, *range(0, arguments.requests + 1, 1000)} - {0}):
        if until > arguments.requests:
            break
        start, before = time.monotonic(), client.done
        with concurrent.futures.ThreadPoolExecutor(arguments.clients) as pool:
            list(pool.map(client, [until] * arguments.clients))
        held = idle()
        seen.append(resident(arguments.pid))
        rate = (until - before) / (time.monotonic() - start)
        print(f"{until:6} requests: {seen[-1] / 1024:8.1f} MiB, {rate:6.1f}/s, {len(failed)} failed", flush=True)
        if held:
            print(f"held by nobody: {held}")
            return 1
    if failed:
        print(failed[0])
    return int(bool(failed) or seen[-1] > seen[0] * GROWTH)


if __name__ == "__main__":
    main()
