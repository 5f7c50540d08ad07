"""Chats, streams, batches, and what ends them."""

import gc
import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from asked import LONG, SHORT, STORY

import lapidary


def test_it_talks(model):
    reply = model.chat(STORY, **SHORT)
    assert "fox" in reply.text and str(reply) == reply.text
    assert reply.finish_reason == "length" and reply.stats.new_tokens == 24
    assert len(reply.tokens) == 24 and reply.stats.prompt_tokens > 5
    same = [{"role": "user", "content": [{"type": "text", "text": STORY}]}]
    assert model.chat(same, **SHORT).text == reply.text


def test_a_stream_is_the_answer_in_pieces(model):
    whole = model.chat(STORY, **SHORT)
    stream = model.stream(STORY, **SHORT)
    chunks = list(stream)
    assert "".join(chunk.text for chunk in chunks) == whole.text
    assert [token for chunk in chunks for token in chunk.tokens] == whole.tokens
    assert [chunk.finish_reason for chunk in chunks] == [None] * (len(chunks) - 1) + ["length"]
    last = chunks[-1]
    assert (last.generation_tokens, last.prompt_tokens) == (24, whole.stats.prompt_tokens)
    assert last.generation_tps > 0 and last.peak_memory > 0.01
    assert all(chunk.prompt_tokens == last.prompt_tokens for chunk in chunks)
    assert stream.reply.text == whole.text and next(stream, None) is None


def test_leaving_a_loop_ends_the_answer(model):
    before = model.metrics
    for chunk in model.stream(STORY, ignore_eos=True, **LONG):
        if chunk.text:
            break
    gc.collect()
    until(lambda: model.metrics.cancelled == before.cancelled + 1 and not model.metrics.open)
    with model.stream(STORY, ignore_eos=True, **LONG) as stream:
        next(stream)
    until(lambda: model.metrics.cancelled == before.cancelled + 2 and not model.metrics.open)


def test_cancel_keeps_what_was_said(model):
    stream = model.stream(STORY, ignore_eos=True, **LONG)
    first = next(stream)
    stream.cancel()
    rest = list(stream)
    assert rest[-1].finish_reason == "cancelled"
    assert stream.reply.text.startswith(first.text) and stream.reply.stats.new_tokens < 400


def test_stop_strings_seeds_and_options(model):
    whole = model.chat(STORY, **SHORT).text
    word = whole.split()[3]
    stopped = model.chat(STORY, stop=word, **SHORT)
    assert stopped.stop_string == word and stopped.finish_reason == "stop"
    assert stopped.text == whole[: whole.index(word)]
    drawn = [model.chat(STORY, temperature=1.0, seed=n, max_tokens=16).text for n in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    token = model.chat(STORY, temperature=0, max_tokens=1).tokens[0]
    other = model.chat(STORY, temperature=0, max_tokens=1, logit_bias={token: -100.0}).tokens[0]
    assert other != token
    told = model.chat(STORY, temperature=0.0, max_tokens=3, logprobs=2)
    assert [found.token for found in told.logprobs] == told.tokens
    assert all(found.top[0] == (found.token, found.logprob) for found in told.logprobs)


def test_a_list_of_prompts_is_one_batch(model):
    prompts = [f"Once there was a {animal}" for animal in ("fox", "bear", "owl")] * 20
    alone = [model.generate(prompt, **SHORT).text for prompt in prompts[:3]]
    replies = model.generate(prompts, **SHORT)
    assert [reply.text for reply in replies] == alone * 20
    ids = [model.tokenize(prompt) for prompt in prompts[:3]]
    assert [reply.text for reply in model.generate(ids, **SHORT)] == alone
    assert model.generate(ids[0], **SHORT).text == alone[0]
    assert model.generate([]) == []
    chats = model.chat_all([STORY, [{"role": "user", "content": STORY}]], **SHORT)
    assert chats[0].text == chats[1].text == model.chat(STORY, **SHORT).text


def test_conversations_remember(model, tmp_path):
    chat = model.conversation("Be brief.", **SHORT)
    first = chat.say("What can you do?")
    assert [message["role"] for message in chat.messages] == ["user", "assistant"]
    fork = chat.fork()
    assert fork.regenerate().text == first.text
    second = chat.say("What is 2 + 2?")
    assert second.stats.prompt_tokens > first.stats.prompt_tokens and len(fork.messages) == 2
    assert "".join(chunk.text for chunk in fork.stream("What is 2 + 2?")) == second.text
    assert chat.count_tokens() > 10 and chat.save(tmp_path / "chat.json") > 0
    again = model.conversation(**SHORT)
    assert again.resume(tmp_path / "chat.json") > 0
    assert (again.system, again.messages) == ("Be brief.", chat.messages)
    chat.truncate(2)
    assert len(chat.messages) == 2
    chat.messages = [{"role": "user", "content": "Hello."}]
    assert len(chat.messages) == 1
    chat.clear()
    assert chat.messages == []


def test_many_threads_ask_at_once(model):
    want = model.chat(STORY, **SHORT).text
    said = []

    def ask():
        said.append(model.chat(STORY, **SHORT).text)
        said.append("".join(chunk.text for chunk in model.stream(STORY, **SHORT)))

    threads = [threading.Thread(target=ask) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert said == [want] * 24


def test_python_runs_while_it_waits(model):
    counted, stop = 0, threading.Event()

    def count():
        nonlocal counted
        while not stop.is_set():
            counted += 1

    thread = threading.Thread(target=count)
    thread.start()
    model.chat(STORY, **LONG)
    stop.set()
    thread.join()
    # One that got the lock only between chunks would count no further than there are chunks.
    assert counted > 5000


def test_use_after_close_is_a_typed_error():
    model = lapidary.Model("pebble", backend="cpu", context=512, pack_cache="off")
    chat, stream = model.conversation(), model.stream(STORY, ignore_eos=True, **LONG)
    next(stream)
    model.close()
    model.close()
    assert model.is_closed and "closed" in repr(model)
    for use in (
        lambda: list(stream),
        lambda: model.chat("Hello."),
        lambda: model.info,
        lambda: model.tokenize("Hello."),
        lambda: model.embed("Hello."),
        lambda: chat.say("Hello."),
        lambda: model.conversation(),
    ):
        with pytest.raises(lapidary.UnloadedError) as e:
            use()
        assert e.value.code == "model_unloaded"


def test_closing_ends_those_who_wait_in_other_threads():
    model = lapidary.Model("pebble", backend="cpu", context=512, pack_cache="off")
    ended = []

    def ask():
        try:
            model.chat(STORY, ignore_eos=True, **LONG)
        except lapidary.UnloadedError as e:
            ended.append(e.code)

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    until(lambda: model.metrics.open == 3)
    model.close()
    for thread in threads:
        thread.join()
    assert ended == ["model_unloaded"] * 3


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_a_hundred_loads_take_no_more_memory_than_ten():
    def resident():
        gc.collect()
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def once():
        with lapidary.Model("pebble", backend="cpu", context=256, pack_cache="off") as model:
            model.chat("Hello.", max_tokens=2)

    for _ in range(10):
        once()
    after_ten = resident()
    for _ in range(90):
        once()
    # A model is 20 MB; one that was kept each time would show.
    assert resident() - after_ten < 60e6


def test_ctrl_c_ends_an_answer_promptly():
    # What runs in the background may have been told to ignore the signal, and its children with it.
    program = f"""
import lapidary, signal, time
signal.signal(signal.SIGINT, signal.default_int_handler)
model = lapidary.Model("pebble", backend="cpu", context=512, pack_cache="off")
try:
    print("ready", flush=True)
    while True:
        model.chat({STORY!r}, ignore_eos=True, max_tokens=400, temperature=0)
except KeyboardInterrupt:
    while model.metrics.open:
        time.sleep(0.01)
    print(model.chat("Hello.", max_tokens=2, ignore_eos=True).finish_reason, flush=True)
"""
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    try:
        out, _ = process.communicate(timeout=120)
    finally:
        process.kill()
    assert (out, process.returncode) == ("length\n", 0)


def test_a_fork_is_refused_and_not_hung():
    program = """
import lapidary, os
model = lapidary.Model("pebble", backend="cpu", context=256, pack_cache="off")
child = os.fork()
if child == 0:
    for use in (lambda: model.chat("Hello."), lambda: lapidary.Model("pebble")):
        try:
            use()
        except lapidary.UnsupportedError as e:
            print(e.code, flush=True)
    os._exit(0)
os.waitpid(child, 0)
print(model.chat("Hello.", max_tokens=2, ignore_eos=True).finish_reason)
"""
    told = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120
    )
    assert told.stdout.split() == ["unsupported", "unsupported", "length"], told.stderr


def test_drop_in_names(model, capsys):
    loaded, tokenizer = lapidary.load("pebble", backend="cpu", context=512, pack_cache="off")
    with loaded:
        prompt = tokenizer.apply_chat_template([{"role": "user", "content": STORY}])
        want = model.chat(STORY, **SHORT)
        text = lapidary.generate(loaded, tokenizer, prompt, verbose=True, **SHORT)
        assert text == want.text and "tokens-per-sec" in capsys.readouterr().out
        chunks = list(lapidary.stream_generate(loaded, tokenizer, prompt, **SHORT))
        assert "".join(chunk.text for chunk in chunks) == text
        assert tokenizer.decode(tokenizer.encode("a fox", False)) == "a fox"
        batch = lapidary.batch_generate(loaded, tokenizer, [prompt, prompt], **SHORT)
        assert batch.texts == [text, text]
    llm = lapidary.LLM("pebble", backend="cpu", max_model_len=512, pack_cache="off")
    with llm.model:
        params = lapidary.SamplingParams(temperature=0, max_tokens=24, logprobs=1)
        outputs = llm.generate([{"prompt_token_ids": prompt}, "A fox"], params)
        assert outputs[0].outputs[0].text == text and outputs[1].prompt == "A fox"
        assert outputs[0].outputs[0].token_ids == want.tokens
        assert outputs[0].outputs[0].cumulative_logprob < 0
        chat = llm.chat([{"role": "user", "content": STORY}], params)
        assert chat[0].outputs[0].text == text


def test_openai_dicts(model):
    asked = {"temperature": 0, "max_tokens": 24}
    messages = [{"role": "user", "content": STORY}]
    whole = model.chat_completion(messages, **asked)
    assert whole["object"] == "chat.completion" and whole["usage"]["completion_tokens"] == 24
    chunks = list(
        model.chat_completion(
            messages, stream=True, stream_options={"include_usage": True}, **asked
        )
    )
    said = "".join(c["choices"][0]["delta"].get("content", "") for c in chunks if c["choices"])
    assert said == whole["choices"][0]["message"]["content"]
    assert chunks[-1]["usage"]["completion_tokens"] == 24 and json.dumps(chunks)
    with pytest.raises(lapidary.UnsupportedError):
        model.chat_completion(messages, audio={})


def until(holds):
    """Waits until something holds that must come."""
    for _ in range(6000):
        if holds():
            return
        time.sleep(0.01)
    raise AssertionError("it does not come")
