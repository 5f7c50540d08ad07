"""`lapidary.ray` on a cluster of this machine: a head, and two workers that can be killed."""

import hashlib
import json
import os
import urllib.error
import urllib.request

import pytest
import ray
from ray.cluster_utils import Cluster

import lapidary
import lapidary.ray
from lapidary.ray import Answers, map_prompts, seed_of

N = 2000
LOAD = {"backend": "cpu", "context": 512, "threads": 1, "sequences": 8, "pack_cache": "off"}
ASKED = {"max_tokens": 6, "temperature": 1.0}
ANIMALS = ("fox", "bear", "owl", "mouse", "cat")


def rows():
    return [
        {"id": i, "prompt": f"Tell me a story about {ANIMALS[i % 5]} number {i}."} for i in range(N)
    ]


@pytest.fixture(scope="module")
def cluster():
    cluster = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 1, "object_store_memory": 100 << 20, "include_dashboard": False},
    )
    memory = 80 << 20
    workers = [cluster.add_node(num_cpus=1, object_store_memory=memory) for _ in range(2)]
    ray.init(address=cluster.address, log_to_driver=False)
    cluster.wait_for_nodes()
    yield cluster, workers
    ray.shutdown()
    cluster.shutdown()


def alone():
    """What one process answers."""
    asked = rows()
    answers = Answers("pebble", key="id", seed=7, load=LOAD, options=ASKED)
    batch = {name: [row[name] for row in asked] for name in ("id", "prompt")}
    with answers.model:
        return dict(zip(batch["id"], answers(batch)["answer"]))


def test_seeds_belong_to_rows():
    assert seed_of(7, 1) == seed_of(7, 1) != seed_of(7, 2) != seed_of(8, 2)
    assert 0 <= seed_of(7, "a") < 1 << 64


def test_every_prompt_is_answered_once_though_a_worker_is_killed(cluster):
    cluster, workers = cluster
    dataset = ray.data.from_items(rows(), override_num_blocks=40)
    answered = map_prompts(
        dataset,
        "pebble",
        key="id",
        seed=7,
        concurrency=2,
        batch_size=50,
        num_cpus=1,
        load=LOAD,
        **ASKED,
    )
    found, killed = [], False
    for row in answered.iter_rows():
        found.append(row)
        if not killed and len(found) >= N // 10:
            # In the middle: much is answered, and much is not.
            killed = True
            cluster.remove_node(workers[0], allow_graceful=False)
            cluster.add_node(num_cpus=1, object_store_memory=80 << 20)
    assert killed and sorted(row["id"] for row in found) == list(range(N))
    want = alone()
    assert {row["id"]: row["answer"] for row in found} == want
    # Seeds matter, and so do prompts.
    assert len(set(want.values())) > 50
    told = hashlib.sha256(json.dumps(sorted(want.items())).encode()).hexdigest()
    print(f"{N} answers, {told}")


def post(path, body, stream=False):
    request = urllib.request.Request(
        f"http://127.0.0.1:{PORT}{path}",
        json.dumps(body).encode(),
        {"content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=120) as answer:
        text = answer.read().decode()
        return (text if stream else json.loads(text)), dict(answer.headers)


PORT = 18000 + os.getpid() % 1000


def test_the_api_is_served_and_prompts_find_their_caches(cluster):
    from ray import serve

    serve.start(http_options={"host": "127.0.0.1", "port": PORT})
    app = lapidary.ray.openai_app(
        "pebble",
        name="pebble",
        replicas=2,
        num_cpus=0.5,
        load={**LOAD, "context": 2048},
    )
    serve.run(app, name="lapidary", route_prefix="/")
    asked = {"temperature": 0, "max_tokens": 16}
    with lapidary.Model("pebble", **{**LOAD, "context": 2048}) as model:
        system = {"role": "system", "content": "You are a fox. You live in a wood. " * 20}
        ask = lambda n: [system, {"role": "user", "content": f"What is 2 + {n}?"}]  # noqa: E731
        want = model.chat_completion(ask(3), **asked)
        got, headers = post("/v1/chat/completions", {"messages": ask(3), **asked})
        assert got["choices"] == want["choices"] and got["object"] == "chat.completion"
        body = {"messages": ask(3), "stream": True, "stream_options": {"include_usage": True}, **asked}
        events, _ = post("/v1/chat/completions", body, stream=True)
        lines = [line.removeprefix("data: ") for line in events.split("\n\n") if line]
        assert lines[-1] == "[DONE]"
        chunks = [json.loads(line) for line in lines[:-1]]
        said = "".join(c["choices"][0]["delta"].get("content", "") for c in chunks if c["choices"])
        assert said == want["choices"][0]["message"]["content"]
        assert chunks[-1]["usage"]["completion_tokens"] == want["usage"]["completion_tokens"]
        # All that begin alike go where the beginning is, and read it there.
        replicas, cached = [], []
        for n in range(10):
            got, headers = post("/v1/chat/completions", {"messages": ask(n), **asked})
            replicas.append(headers["x-lapidary-replica"])
            cached.append(got["usage"]["prompt_tokens_details"]["cached_tokens"])
        assert len(set(replicas)) == 1 and min(cached) > 100, (replicas, cached)
        # Others go to others, too.
        others = set()
        for n in range(30):
            messages = [{"role": "user", "content": f"{n} {ANIMALS[n % 5]}"}]
            body = {"messages": messages, "temperature": 0, "max_tokens": 2}
            others.add(post("/v1/chat/completions", body)[1]["x-lapidary-replica"])
        assert len(others) == 2
        text, _ = post("/v1/completions", {"prompt": "Once upon a time", **asked})
        want_text = model.generate("Once upon a time", temperature=0, max_tokens=16).text
        assert text["choices"][0]["text"] == want_text
        rows, _ = post("/v1/embeddings", {"input": ["a fox"]})
        assert rows["data"][0]["embedding"] == pytest.approx(model.embed("a fox"), rel=1e-5)
    with pytest.raises(urllib.error.HTTPError) as refused:
        post("/v1/chat/completions", {"messages": ask(1), "temperature": -1})
    assert refused.value.code == 400
    error = json.loads(refused.value.read())["error"]
    assert error["code"] == "invalid_argument"
    serve.shutdown()
