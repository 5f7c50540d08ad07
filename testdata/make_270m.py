#!/usr/bin/env python3
"""Write real/gemma3_270m.json: what transformers computes from the real Gemma 3 270M file (see fetch_270m.py).

    python make_270m.py GGUF

The GGUF's weights are dequantised with gguf-py and run in float32, so this says what the *file* means, free of the
activation rounding of llama.cpp. Per prompt: ids (BOS included), the top logits after the last token, and the greedy
continuation with the margin between best and second-best logit at each step. One long prompt runs past the sliding
window of 512. Needs 3 GB of memory and about two minutes.
"""
import json
import sys
from pathlib import Path

import oracle  # first: it pins the instruction set that torch may use
import gguf
import torch
import transformers as tf

sys.path.insert(0, str(Path(__file__).resolve().parent / "gguf"))
from make_gguf import LAYER, TOP  # noqa: E402

HERE = Path(__file__).resolve().parent
N_TOP, N_NEW = 16, 16
# ids by the Gemma 3 tokenizer; the texts are for the reader
PROMPTS = {
    "The capital of France is": [2, 818, 5279, 529, 7001, 563],
    "<bos> alone": [2],
}


def load(path):
    reader = gguf.GGUFReader(path)
    config = tf.Gemma3TextConfig(
        vocab_size=262144, hidden_size=640, intermediate_size=2048, num_hidden_layers=18, num_attention_heads=4,
        num_key_value_heads=1, head_dim=256, query_pre_attn_scalar=256, sliding_window=512,
        max_position_embeddings=32768,
    )  # fmt: skip
    with torch.device("meta"):
        model = tf.Gemma3ForCausalLM(config)
    names = {v: k for k, v in LAYER.items()}
    tops = {v: k for k, v in TOP.items()}
    state = {}
    for tensor in reader.tensors:
        if tensor.name in tops:
            name = f"model.{tops[tensor.name]}"
        else:
            _, layer, rest = tensor.name.split(".", 2)
            name = f"model.layers.{layer}.{names[rest]}"
        values = torch.from_numpy(gguf.dequantize(tensor.data, tensor.tensor_type).copy())
        state[name] = values - 1 if name.endswith("norm.weight") else values
    state["lm_head.weight"] = state["model.embed_tokens.weight"]
    fresh = tf.Gemma3ForCausalLM(tf.Gemma3TextConfig(**config.to_dict() | {"vocab_size": 8}))
    model.load_state_dict(state, assign=True)
    for name, buffer in fresh.named_buffers():  # constants that a model on the meta device does not have
        parent, _, leaf = name.rpartition(".")
        setattr(model.get_submodule(parent), leaf, buffer)
    model.tie_weights()
    return model.eval()


def run(model, ids):
    cache = tf.DynamicCache(config=model.config)
    logits = model(input_ids=torch.tensor([ids]), past_key_values=cache, use_cache=True, logits_to_keep=1).logits[0, -1]
    top = logits.topk(N_TOP)
    out = {
        "ids": ids,
        "top_ids": top.indices.tolist(),
        "top_logits": [round(v, 5) for v in top.values.tolist()],
        "logsumexp": round(logits.logsumexp(-1).item(), 5),
        "greedy": [],
        "margins": [],
    }
    for _ in range(N_NEW):
        best = logits.topk(2)
        out["greedy"].append(int(best.indices[0]))
        out["margins"].append(round((best.values[0] - best.values[1]).item(), 4))
        token = torch.tensor([[out["greedy"][-1]]])
        logits = model(input_ids=token, past_key_values=cache, use_cache=True).logits[0, -1]
    return out


def main():
    model = load(sys.argv[1])
    samples = json.loads((HERE / "tokens" / "gemma3.json").read_text())["plain"]
    prompts = dict(PROMPTS)
    for text in ("日本語のテキストです。", "fn main() {\n    println!(\"{}\", 1 + 2);\n}\n"):
        prompts[text] = [2] + next(s["ids"] for s in samples if s["text"] == text)
    long = [i for s in samples for i in s["ids"] if len(s["ids"]) < 30]
    prompts["700 tokens of tokens/gemma3.json"] = [2] + long[:700]
    lines = [json.dumps({"prompt": p} | run(model, ids)) for p, ids in prompts.items()]
    out = HERE / "real" / "gemma3_270m.json"
    out.parent.mkdir(exist_ok=True)
    out.write_text("[\n" + ",\n".join(lines) + "\n]\n")
    print(out.read_text()[:3000])


if __name__ == "__main__":
    main()
