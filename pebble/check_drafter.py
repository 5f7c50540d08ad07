"""Holds the lean drafter to transformers': guesses of a burst after a story, and a whole answer with it. Run:
python check_drafter.py FOLDER

Needs transformers with Gemma 4. The target is the embedded model, dequantised.
"""

import json
import sys
from pathlib import Path

import torch
from transformers import Gemma4AssistantForCausalLM, Gemma4ForCausalLM, Gemma4TextConfig

from draft_model import Drafter
from safetensors.torch import load_file
from sequences import Encoder
from target import Target, Writer

# As in check.py: both sides round to f32, and not in the same places.
TOLERANCE = 2e-5
QUESTION = "<bos><|turn>user\nTell me a story about a brave fox.<turn|>\n<|turn>model\n"


def written(target: Target, ids: list[int], count: int) -> tuple[list[int], Writer]:
    """A greedy answer, and what was kept on the way; the newest token has no key yet."""
    writer = Writer(target, 1, len(ids) + count)
    for i in range(len(ids) + count - 1):
        state = writer.step(torch.tensor(ids[i : i + 1]))
        if i + 1 == len(ids):
            ids = [*ids, int(target.logits(state).argmax(-1))]
    return ids, writer


def gap(theirs: torch.Tensor, ours: torch.Tensor) -> float:
    """The largest difference, as a part of the largest number."""
    return ((theirs - ours).abs().max() / theirs.abs().max()).item()


@torch.no_grad()
def check_burst(folder: Path, hf: Gemma4AssistantForCausalLM, count: int) -> float:
    """Four guesses in a row, far enough into a text that the window matters if `count` is large."""
    target, encoder = Target(), Encoder()
    ids, writer = written(target, encoder.ids(QUESTION), count)
    ours = Drafter(json.loads((folder / "config.json").read_text()))
    ours.load_state_dict({k: v.float() for k, v in load_file(folder / "model.safetensors").items()})
    kv, n = writer.shared(), len(ids)
    around = (ours.angles(n), ours.masks(n), None)
    # Our own code asks every position at once; only the last is compared.
    padded = {full: tuple(torch.nn.functional.pad(x, (0, 0, 0, n - x.shape[2])) for x in pair) for full, pair in kv.items()}
    around = (around[0], around[1], ours.per_query_head(padded))
    names = {"full_attention": kv[True], "sliding_attention": kv[False]}
    hidden, token, worst = writer.hidden[:, n - 2].float(), torch.tensor([ids[-1]]), 0.0
    for _ in range(4):
        embedded = target.embed(token)
        wide = [torch.zeros(1, n, embedded.shape[-1]) for _ in "eh"]
        wide[0][:, -1], wide[1][:, -1] = embedded, hidden
        y, after = ours.step(*wide, around)
        theirs = hf(inputs_embeds=torch.cat((embedded, hidden), -1)[:, None], position_ids=torch.tensor([[n - 1]]), shared_kv_states=names)
        worst = max(worst, gap(theirs.logits[:, 0], ours.head(y[:, -1])), gap(theirs.last_hidden_state[:, 0], after[:, -1]))
        hidden, token = after[:, -1], theirs.logits[:, 0].argmax(-1)
    return worst


def transformers_target(target: Target) -> Gemma4ForCausalLM:
    """The same target in transformers' own class."""
    model = Gemma4ForCausalLM(Gemma4TextConfig(**target.config)).float().eval()
    names = {f"model.{k}": v for k, v in target.model.state_dict().items()}
    missing = set(model.load_state_dict(names, strict=False).missing_keys)
    assert missing <= {"lm_head.weight"}, missing
    model.tie_weights()
    return model


def main() -> None:
    folder = Path(sys.argv[1])
    hf = Gemma4AssistantForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    for count in (40, 280):
        worst = check_burst(folder, hf, count)
        print(f"a burst after {count} tokens: logits and rows differ by {worst:.1e} of the largest")
        assert worst < TOLERANCE
    model = transformers_target(Target())
    ids = torch.tensor([Encoder().ids(QUESTION)])
    how = {"max_new_tokens": 100, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    hf.generation_config.num_assistant_tokens = 4
    assert torch.equal(model.generate(ids, **how), model.generate(ids, assistant_model=hf, **how))
    print("transformers' own answer of 100 tokens is the same with the drafter")
    print("ok")


if __name__ == "__main__":
    main()
