"""The real Gemma 3 270M, where its weights were fetched. It has no chat template: it continues text."""


import ollama
import openai
import pytest
from conftest import REAL, user

pytestmark = pytest.mark.skipif(REAL is None, reason="SKIPPED: the real model was not fetched")
PROMPT = "The capital of France is"


@pytest.fixture(scope="module")
def client():
    return openai.OpenAI(base_url=f"{REAL}/v1", api_key="none", max_retries=0, timeout=120)


@pytest.fixture(scope="module")
def model(client):
    [model] = client.models.list()
    return model.id


def test_text_and_stream(client, model):
    ask = {"model": model, "prompt": PROMPT, "max_tokens": 8, "temperature": 0}
    whole = client.completions.create(**ask)
    assert whole.choices[0].text.strip() and whole.usage.completion_tokens == 8
    parts = list(client.completions.create(
        **ask, stream=True, stream_options={"include_usage": True}))
    assert "".join(p.choices[0].text for p in parts if p.choices) == whole.choices[0].text
    assert parts[-1].usage.completion_tokens == whole.usage.completion_tokens
    raw = ollama.Client(host=REAL, timeout=120).generate(
        model=model, prompt=PROMPT, raw=True, options={"temperature": 0, "num_predict": 8})
    assert raw.response == whole.choices[0].text


def test_log_likelihoods(client, model):
    def likelihood(text):
        answer = client.completions.create(
            model=model, prompt=text, max_tokens=1, echo=True, logprobs=1, temperature=0)
        logprobs = answer.choices[0].logprobs
        assert logprobs.token_logprobs[0] is None
        return sum(logprobs.token_logprobs[1:-1])

    assert likelihood(f"{PROMPT} Paris.") > likelihood(f"{PROMPT} Oslo.")


def test_embeddings(client, model):
    texts = ["A fox is in the wood.", "There is a fox in the forest.", "SELECT id FROM users;"]
    a, b, c = [row.embedding for row in client.embeddings.create(model=model, input=texts).data]
    alike = sum(x * y for x, y in zip(a, b))
    other = sum(x * y for x, y in zip(a, c))
    assert 1.001 > alike > other


def test_chat_is_refused_with_its_reason(client, model):
    with pytest.raises(openai.BadRequestError) as error:
        client.chat.completions.create(model=model, messages=user("Hi"))
    assert "chat template" in str(error.value)
