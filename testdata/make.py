#!/usr/bin/env python3
"""Write a tiny random checkpoint of each Gemma family, with what transformers computes from it, into tiny/<family>/.

    python make.py                       every family, beside this script
    python make.py OUT                   every family, into OUT
    python make.py OUT family ...        only these (a drafter also needs its target in OUT)

The environment: README.md and requirements.txt. What each folder holds, and the names of the reference tensors:
README.md. Everything is drawn from fixed seeds; a family's seed is the first one from its start whose model passes
the checks of oracle.reference() (clear greedy margins, three ways of computing agree).
"""
import sys
from pathlib import Path

import oracle  # first: it pins the instruction set that torch may use
import media_cases
import torch
import transformers as tf
from oracle import Prompt, random_ids, reference, search

S, F = "sliding_attention", "full_attention"
BEGIN_END_PAD = dict(bos_token_id=2, eos_token_id=1, pad_token_id=0)
SAMPLING = dict(do_sample=True, top_k=64, top_p=0.95, bos_token_id=2, pad_token_id=0)
EOS = {"gemma3": [1, 106], "gemma4": [1, 106, 50]}


# ---------------------------------------------------------------------------------------------- text configs


def gemma3_text(period=6, factor=None, layers=6, **keys):
    full = {"rope_type": "default", "rope_theta": 1e6}
    if factor:
        full = {"rope_type": "linear", "factor": factor, "rope_theta": 1e6}
    return tf.Gemma3TextConfig(
        num_hidden_layers=layers,
        layer_types=[F if (i + 1) % period == 0 else S for i in range(layers)],
        sliding_window_pattern=period,
        rope_parameters={S: {"rope_type": "default", "rope_theta": 1e4}, F: full},
        max_position_embeddings=512,
        **BEGIN_END_PAD,
        **keys,
    )


def gemma4_text(pattern, rotary=0.25, cls=tf.Gemma4TextConfig, **keys):
    """`pattern` spells the layers: "ssf" is sliding, sliding, full."""
    full = {"rope_type": "proportional", "partial_rotary_factor": rotary, "rope_theta": 1e6}
    if cls is tf.Gemma4TextConfig:
        keys = dict(hidden_size_per_layer_input=0, vocab_size_per_layer_input=keys["vocab_size"]) | keys
    return cls(
        num_hidden_layers=len(pattern),
        layer_types=[{"s": S, "f": F}[c] for c in pattern],
        rope_parameters={S: {"rope_type": "default", "rope_theta": 1e4}, F: full},
        max_position_embeddings=512,
        **BEGIN_END_PAD,
        **keys,
    )


# fmt: off
TEXT = {
    # 16-wide heads scaled as if 24-wide; linear rope factor 8; one KV head; ends on sliding layers
    "gemma3_text": lambda: gemma3_text(
        period=3, factor=8.0, layers=5, vocab_size=317, hidden_size=64, intermediate_size=96, num_attention_heads=4,
        num_key_value_heads=1, head_dim=16, query_pre_attn_scalar=24, sliding_window=8),
    # the default period 6, no rope scaling, 12-wide heads, three KV heads; stored as bf16 in several files
    "gemma3_text_sharded": lambda: gemma3_text(
        layers=8, vocab_size=271, hidden_size=48, intermediate_size=80, num_attention_heads=6, num_key_value_heads=3,
        head_dim=12, query_pre_attn_scalar=12, sliding_window=5),
    # no soft-cap, K and V separate on full layers, half of the full head rotated
    "gemma4_text_plain": lambda: gemma4_text(
        "ssfssf", rotary=0.5, vocab_size=259, hidden_size=48, intermediate_size=72, num_attention_heads=6,
        num_key_value_heads=3, head_dim=8, global_head_dim=16, sliding_window=5),
    # 31B style: K = V on full layers, fewer KV heads there
    "gemma4_text_dense": lambda: gemma4_text(
        "ssfsf", vocab_size=307, hidden_size=64, intermediate_size=64, num_attention_heads=4, num_key_value_heads=2,
        num_global_key_value_heads=1, head_dim=16, global_head_dim=32, sliding_window=12, attention_k_eq_v=True,
        use_bidirectional_attention="vision", final_logit_softcapping=30.0),
    # E2B style: per-layer embeddings, the last three layers share KV and have a double-wide MLP
    "gemma4_text_e": lambda: gemma4_text(
        "ssfsfssf", vocab_size=275, hidden_size=64, intermediate_size=32, num_attention_heads=4, num_key_value_heads=1,
        head_dim=8, global_head_dim=16, sliding_window=8, num_kv_shared_layers=3, use_double_wide_mlp=True,
        hidden_size_per_layer_input=8, final_logit_softcapping=8.0),
    # 26B-A4B style: 8 experts, 3 used
    "gemma4_text_moe": lambda: gemma4_text(
        "ssf", vocab_size=301, hidden_size=64, intermediate_size=32, num_attention_heads=4, num_key_value_heads=2,
        num_global_key_value_heads=1, head_dim=8, global_head_dim=16, sliding_window=10, attention_k_eq_v=True,
        use_bidirectional_attention="vision", final_logit_softcapping=20.0, enable_moe_block=True, num_experts=8,
        top_k_experts=3, moe_intermediate_size=32),
}
# fmt: on
# Families that are not stored as one float32 file.
STORED = {
    "gemma3_text_sharded": dict(dtype=torch.bfloat16, max_shard_size="120KB"),
    "gemma3_mm": dict(dtype=torch.bfloat16),
    "gemma4_mm_e": dict(dtype=torch.bfloat16),
}
FIRST_SEED = {name: 1000 * (i + 1) for i, name in enumerate(TEXT)}


def build(name, cls, config, seed):
    return oracle.at_dtype(oracle.randomise(cls(config), seed), STORED.get(name, {}).get("dtype", torch.float32))


def text_prompt(config, seed):
    """More than four windows of ordinary tokens."""
    text = config.get_text_config()
    return Prompt(random_ids(4 * text.sliding_window + 8, text.vocab_size, seed, reserved=20))


def make_text(name):
    cls = tf.Gemma3ForCausalLM if name.startswith("gemma3") else tf.Gemma4ForCausalLM
    seed, model, tensors, figures = search(
        lambda seed: build(name, cls, TEXT[name](), seed),
        lambda model: reference(model, text_prompt(model.config, 7), EOS[name[:6]]),
        FIRST_SEED[name],
    )
    return model, tensors, {"seed": seed} | figures


# ---------------------------------------------------------------------------------------------- multimodal


N_SPECIAL = 12  # ids at the top of a multimodal vocabulary kept for media tokens


def special_ids(vocab_size):
    """The media tokens take the top of the vocabulary."""
    names = "boi_token_id eoi_token_id image_token_id video_token_id boa_token_id eoa_token_index audio_token_id"
    return {name: vocab_size - N_SPECIAL + i for i, name in enumerate(names.split())}


def gemma4_mm_ids(special, image_lens, audio_lens=()):
    """BOS, text, images, audio clips, text; and the token types (0 text, 1 image, 3 audio)."""
    begin, end, soft = (special[k] for k in ("boi_token_id", "eoi_token_id", "image_token_id"))
    ids = [2, 40, 41]
    for i, n in enumerate(image_lens):
        ids += [begin] + [soft] * n + [end, 50 + i]
    begin, end, heard = (special[k] for k in ("boa_token_id", "eoa_token_index", "audio_token_id"))
    for i, n in enumerate(audio_lens):
        ids += [begin] + [heard] * n + [end, 60 + i]
    ids += [70, 71, 72, 73, 74, 75]
    ids = torch.tensor([ids])
    types = torch.zeros_like(ids)
    types[ids == soft] = 1
    types[ids == heard] = 3
    return ids, types


def grid_positions(rows, columns):
    """(x, y) of every cell, row by row."""
    y, x = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
    return torch.stack([x, y], -1).reshape(-1, 2)


def gemma4_images(grids, cell_patches, values_per_patch, seed, max_cells):
    """Patch values in [0, 1] and positions of one image per grid, padded with zeros and (-1, -1)."""
    rng = torch.Generator().manual_seed(seed)
    pixels, positions = [], []
    for rows, columns in grids:
        where = grid_positions(rows * cell_patches, columns * cell_patches)
        pad = max_cells * cell_patches**2 - len(where)
        values = torch.rand(len(where), values_per_patch, generator=rng)
        pixels.append(torch.nn.functional.pad(values, (0, 0, 0, pad)))
        positions.append(torch.nn.functional.pad(where, (0, 0, 0, pad), value=-1))
    return {"pixel_values": torch.stack(pixels), "image_position_ids": torch.stack(positions)}


def audio_clips(frames, values, valid, seed):
    """Random feature frames of several clips, zero where the mask is false."""
    features = torch.randn(len(valid), frames, values, generator=torch.Generator().manual_seed(seed))
    mask = torch.arange(frames) < torch.tensor(valid)[:, None]
    return {"input_features": features * mask[..., None], "input_features_mask": mask}


def make_mm(name, cls, config, prompt, first_seed):
    """Search on the text-only prompt and the media prompt together; text-only tensors get the prefix `text.`."""
    vocab_size = config.get_text_config().vocab_size
    avoid = EOS[name[:6]] + list(range(vocab_size - N_SPECIAL, vocab_size))

    def run(model):
        plain, figures = reference(model, text_prompt(model.config, 8), avoid)
        full, figures = reference(model, prompt, avoid) if figures["good"] else (None, figures)
        if not figures["good"]:
            return None, figures
        full |= {f"text.{k}": v for k, v in plain.items()} | prompt.media | prompt.token_types
        return full, figures

    seed, model, tensors, figures = search(lambda seed: build(name, cls, config, seed), run, first_seed)
    causal = model(**Prompt(prompt.input_ids, media=prompt.media).arguments(model)).logits
    figures["bidirectional_minus_causal"] = (tensors["logits"] - causal).abs().max().item()
    if figures["bidirectional_minus_causal"] > 0:
        tensors["logits_causal"] = causal
    return model, tensors, {"seed": seed} | figures


def add_cases(name, tensors, notes, family, layouts, first_seed):
    """References for media in other places of a prompt, under `image.`, `sound.` and `case.`."""
    vocab_size = family.model.config.get_text_config().vocab_size
    avoid = EOS[name[:6]] + list(range(vocab_size - N_SPECIAL, vocab_size))
    cases, notes["case_seeds"] = family.tensors(layouts, avoid, first_seed)
    tensors |= cases


def gemma4_markers(special):
    """Begin, soft and end ids, and the token type of the soft ones."""
    image = [special[k] for k in ("boi_token_id", "image_token_id", "eoi_token_id")]
    sound = [special[k] for k in ("boa_token_id", "audio_token_id", "eoa_token_index")]
    return {"image": (*image, 1), "sound": (*sound, 3)}


def make_gemma3_mm(name):
    """Images of 9 soft tokens against a window of 5. 8 query and 4 KV heads are the class defaults, so the
    published-style config leaves them out."""
    vocab_size = 311
    text = gemma3_text(
        period=2, factor=8.0, layers=4, vocab_size=vocab_size, hidden_size=48, intermediate_size=72,
        num_attention_heads=8, num_key_value_heads=4, head_dim=8, query_pre_attn_scalar=6, sliding_window=5,
    )  # fmt: skip
    vision = tf.SiglipVisionConfig(
        hidden_size=40, intermediate_size=72, num_hidden_layers=2, num_attention_heads=4, image_size=48, patch_size=8,
        vision_use_head=False,
    )  # fmt: skip
    begin, end, soft = (vocab_size - N_SPECIAL + i for i in range(3))
    config = tf.Gemma3Config(
        text_config=text.to_dict(), vision_config=vision.to_dict(), mm_tokens_per_image=9,
        boi_token_index=begin, eoi_token_index=end, image_token_index=soft,
    )  # fmt: skip
    ids = [2, 40, 41, 42, begin] + [soft] * 9 + [end, 43, 44, begin] + [soft] * 9 + [end, 45, 46, 47, 48, 49]
    ids = torch.tensor([ids])
    pixels = torch.rand(2, 3, 48, 48, generator=torch.Generator().manual_seed(21)) * 2 - 1
    prompt = Prompt(ids, {"token_type_ids": (ids == soft).long()}, {"pixel_values": pixels})
    model, tensors, notes = make_mm(name, tf.Gemma3ForConditionalGeneration, config, prompt, 11_000)
    seen = model.model.get_image_features(pixels, return_dict=True)
    tensors["vision_last_hidden"], tensors["image_features"] = seen.last_hidden_state, seen.pooler_output
    images = media_cases.gemma3_images(model, 2, seed=41)
    family = media_cases.Family(model, images, [], {"image": (begin, soft, end, 1)})
    add_cases(name, tensors, notes, family, media_cases.IMAGE_LAYOUTS, 51_000)
    return model, tensors, notes


def gemma4_vision(**keys):
    return tf.Gemma4VisionConfig(
        hidden_size=48, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=4,
        head_dim=12, patch_size=4, pooling_kernel_size=3, position_embedding_size=32, **keys,
    ).to_dict()  # fmt: skip


def image_features(model, media):
    return model.model.get_image_features(media["pixel_values"], media["image_position_ids"], return_dict=True)


def audio_features(model, media):
    return model.model.get_audio_features(media["input_features"], media["input_features_mask"], return_dict=True)


def make_gemma4_mm_large(name):
    """31B style: standardised soft tokens, images bidirectional on sliding layers; 8 soft tokens, window 5."""
    special = special_ids(313)
    text = gemma4_text(
        "ssfsf", vocab_size=313, hidden_size=48, intermediate_size=64, num_attention_heads=4, num_key_value_heads=2,
        num_global_key_value_heads=1, head_dim=8, global_head_dim=16, sliding_window=5, attention_k_eq_v=True,
        use_bidirectional_attention="vision", final_logit_softcapping=30.0,
    )  # fmt: skip
    vision = gemma4_vision(standardize=True)
    config = tf.Gemma4Config(text_config=text.to_dict(), vision_config=vision, audio_config=None, **special)
    media = gemma4_images(((2, 4), (1, 3)), 3, 48, seed=22, max_cells=9)
    ids, types = gemma4_mm_ids(special, (8, 3))
    prompt = Prompt(ids, {"mm_token_type_ids": types}, media)
    model, tensors, notes = make_mm(name, tf.Gemma4ForConditionalGeneration, config, prompt, 12_000)
    seen = image_features(model, media)
    tensors["vision_soft_tokens"] = seen.last_hidden_state
    tensors["image_features"] = torch.cat(seen.pooler_output)
    images = media_cases.gemma4_images(model, ((9, 6), (3, 12)), 48, seed=42)
    family = media_cases.Family(model, images, [], gemma4_markers(special))
    add_cases(name, tensors, notes, family, media_cases.IMAGE_LAYOUTS, 52_000)
    return model, tensors, notes


def make_gemma4_mm_e(name):
    """E2B style: clipped linears, audio tower, per-layer embeddings, shared KV; media tokens stay causal."""
    special = special_ids(293)
    text = gemma4_text(
        "sfssf", vocab_size=293, hidden_size=40, intermediate_size=48, num_attention_heads=4, num_key_value_heads=2,
        head_dim=8, global_head_dim=16, sliding_window=6, num_kv_shared_layers=3, use_double_wide_mlp=True,
        hidden_size_per_layer_input=12, final_logit_softcapping=30.0,
    )  # fmt: skip
    audio = tf.Gemma4AudioConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, subsampling_conv_channels=[16, 8],
        output_proj_dims=36,
    )  # fmt: skip
    vision = gemma4_vision(use_clipped_linears=True)
    config = tf.Gemma4Config(text_config=text.to_dict(), vision_config=vision, audio_config=audio.to_dict(), **special)
    media = gemma4_images(((2, 3), (1, 4)), 3, 48, seed=23, max_cells=8) | audio_clips(90, 16, (83, 37), seed=24)
    heard = media["input_features_mask"][:, ::4].sum(1).tolist()
    ids, types = gemma4_mm_ids(special, (6, 4), heard)
    prompt = Prompt(ids, {"mm_token_type_ids": types}, media)
    model, tensors, notes = make_mm(name, tf.Gemma4ForConditionalGeneration, config, prompt, 13_000)
    tensors["image_features"] = torch.cat(image_features(model, media).pooler_output)
    listened = audio_features(model, media)
    tensors["audio_last_hidden"], tensors["audio_features"] = listened.last_hidden_state, listened.pooler_output
    tensors["audio_mask"] = listened.attention_mask
    images = media_cases.gemma4_images(model, ((9, 6), (3, 12)), 48, seed=43)
    # 30 seconds are 2999 frames; no prompt here is long enough for them.
    sounds = media_cases.sounds(model, (30, 397, 2999), 16, seed=44)
    family = media_cases.Family(model, images, sounds, gemma4_markers(special))
    add_cases(name, tensors, notes, family, media_cases.IMAGE_LAYOUTS | media_cases.SOUND_LAYOUTS, 53_000)
    return model, tensors, notes


def unified_masks(model, ids, types):
    """The masks that generate() uses: images bidirectional on sliding layers only, inside the window.

    forward() on its own still builds the older masks (bidirectional on every layer, window ignored in an image).
    """
    embeddings = torch.zeros(*ids.shape, model.config.get_text_config().hidden_size)
    return model.create_masks_for_generate(model.config, embeddings, None, None, None, **types)


def make_gemma4_unified(name):
    """12B style: no towers; each image patch and each frame of raw audio is one soft token."""
    special = special_ids(289)
    suppress = [special["eoa_token_index"], special["eoi_token_id"]]
    text = gemma4_text(
        "ssfsf", cls=tf.Gemma4UnifiedTextConfig, vocab_size=289, hidden_size=48, intermediate_size=56,
        num_attention_heads=4, num_key_value_heads=2, num_global_key_value_heads=1, head_dim=8, global_head_dim=16,
        sliding_window=5, attention_k_eq_v=True, use_bidirectional_attention="vision", final_logit_softcapping=30.0,
    )  # fmt: skip
    vision = dict(patch_size=4, pooling_kernel_size=3, mm_embed_dim=40, mm_posemb_size=16, output_proj_dims=40)
    config = tf.Gemma4UnifiedConfig(
        text_config=text.to_dict(), vision_config=vision, audio_config=dict(audio_embed_dim=40), **special
    )
    media = gemma4_images(((2, 4), (1, 3)), 1, 432, seed=25, max_cells=9) | audio_clips(7, 40, (7, 4), seed=26)
    ids, types = gemma4_mm_ids(special, (8, 3), (7, 4))
    prompt = Prompt(ids, {"mm_token_type_ids": types}, media, unified_masks)
    cls = tf.Gemma4UnifiedForConditionalGeneration
    model, tensors, notes = make_mm(name, cls, config, prompt, 14_000)
    older = Prompt(ids, {"mm_token_type_ids": types}, media)
    tensors["logits_all_layer_mask"] = model(**older.arguments(model)).logits
    notes["intended_minus_all_layer_mask"] = (tensors["logits"] - tensors["logits_all_layer_mask"]).abs().max().item()
    tensors["image_features"] = torch.cat(image_features(model, media).pooler_output)
    tensors["audio_features"] = audio_features(model, media).pooler_output
    images = media_cases.gemma4_images(model, ((3, 2), (1, 4)), 432, seed=45)
    sounds = media_cases.sounds(model, (5, 60), 40, seed=46)
    family = media_cases.Family(model, images, sounds, gemma4_markers(special), unified_masks)
    add_cases(name, tensors, notes, family, media_cases.IMAGE_LAYOUTS | media_cases.SOUND_LAYOUTS, 54_000)
    model.generation_config.suppress_tokens = suppress
    return model, tensors, notes


# ---------------------------------------------------------------------------------------------- drafters


def make_drafter(target_name, config, first_seed):
    """Four draft steps from the end of a prompt, and a whole speculative run that must equal the target's greedy."""
    out = OUT / target_name
    target = tf.Gemma4ForCausalLM.from_pretrained(out).eval()
    ids = oracle.load_file(out / "reference.safetensors")["input_ids"]

    def run(drafter):
        tensors, margin = draft_steps(target, drafter, ids)
        plain = generate_speculative(target, None, ids)
        drafted = generate_speculative(target, drafter, ids)
        tensors["speculative.greedy"] = torch.tensor(drafted)
        good = drafted == plain and margin > oracle.MIN_MARGIN
        return tensors, {"margin": margin, "speculative_equals_greedy": drafted == plain, "good": good}

    seed, drafter, tensors, figures = search(
        lambda seed: oracle.randomise(tf.Gemma4AssistantForCausalLM(config), seed), run, first_seed
    )
    return drafter, tensors, {"seed": seed, "target": target_name} | figures


def draft_steps(target, drafter, ids):
    state = target(input_ids=ids, output_hidden_states=True, return_shared_kv_states=True, use_cache=False)
    hidden = state.hidden_states[-1][:, -1:]
    token = state.logits[:, -1:].argmax(-1)
    tensors = {"input_ids": ids, "target_last_hidden": hidden, "first_token": token}
    for kind, (keys, values) in state.shared_kv_states.items():
        tensors[f"kv.{kind}.k"], tensors[f"kv.{kind}.v"] = keys, values
    position = torch.tensor([[ids.shape[1]]])  # of first_token; constant for the whole burst
    margin = float("inf")
    for step in range(4):
        joined = torch.cat([target.get_input_embeddings()(token), hidden], -1)
        out = drafter(inputs_embeds=joined, position_ids=position, shared_kv_states=state.shared_kv_states)
        tensors[f"step{step}.in"], tensors[f"step{step}.logits"] = joined, out.logits
        tensors[f"step{step}.hidden"] = out.last_hidden_state
        best, second = out.logits[0, 0].topk(2).values.tolist()
        margin = min(margin, best - second)
        token, hidden = out.logits.argmax(-1), out.last_hidden_state
    return tensors, margin


def generate_speculative(target, drafter, ids):
    if drafter is None:
        return oracle.generate(target, Prompt(ids))
    drafter.generation_config.num_assistant_tokens = 3
    return oracle.generate(target, Prompt(ids), assistant_model=drafter)


def drafter_config(target_name, pattern, **keys):
    """Attention shapes follow the target, whose keys and values the drafter reads."""
    target = TEXT[target_name]()
    sliding, full = (target.per_layer_config[target.layer_types.index(kind)] for kind in (S, F))
    text = gemma4_text(
        pattern, vocab_size=target.vocab_size, vocab_size_per_layer_input=0, hidden_size=32, intermediate_size=40,
        num_attention_heads=4, num_key_value_heads=sliding.num_key_value_heads, head_dim=sliding.head_dim,
        global_head_dim=full.head_dim, num_global_key_value_heads=full.num_key_value_heads,
        attention_k_eq_v=target.attention_k_eq_v, sliding_window=target.sliding_window,
        num_kv_shared_layers=len(pattern),
    )  # fmt: skip
    return tf.Gemma4AssistantConfig(text_config=text.to_dict(), backbone_hidden_size=target.hidden_size, **keys)


def make_gemma4_assistant(name):
    """Full output head, as the drafters of the large models."""
    return make_drafter("gemma4_text_dense", drafter_config("gemma4_text_dense", "ssf"), 15_000)


def make_gemma4_assistant_e(name):
    """Centroid output head, as the drafters of E2B and E4B: 25 centroids of 11 tokens, 4 looked at."""
    config = drafter_config(
        "gemma4_text_e", "sssf", use_ordered_embeddings=True, num_centroids=25, centroid_intermediate_top_k=4
    )
    return make_drafter("gemma4_text_e", config, 16_000)


# ---------------------------------------------------------------------------------------------- main

FAMILIES = {name: make_text for name in TEXT} | {
    "gemma3_mm": make_gemma3_mm,
    "gemma4_mm_large": make_gemma4_mm_large,
    "gemma4_mm_e": make_gemma4_mm_e,
    "gemma4_unified": make_gemma4_unified,
    "gemma4_assistant": make_gemma4_assistant,
    "gemma4_assistant_e": make_gemma4_assistant_e,
}


def unused_weights(name, model, seed):
    """K/V tensors of the layers that share KV: published files carry them, and a loader must not use them."""
    text = model.config.get_text_config()
    rng = torch.Generator().manual_seed(seed)
    out = {}
    for layer in range(text.num_hidden_layers - text.num_kv_shared_layers, text.num_hidden_layers):
        shape = text.per_layer_config[layer]
        prefix = f"model.language_model.layers.{layer}.self_attn"
        rows = shape.num_key_value_heads * shape.head_dim
        sizes = {"k_proj": (rows, text.hidden_size), "v_proj": (rows, text.hidden_size), "k_norm": (shape.head_dim,)}
        for part, size in sizes.items():
            weight = torch.randn(size, generator=rng) * 100
            out[f"{prefix}.{part}.weight"] = weight.to(STORED[name]["dtype"])
    return out


def make(name):
    model, tensors, notes = FAMILIES[name](name)
    generation = tf.GenerationConfig(**SAMPLING, eos_token_id=EOS[name[:6]])
    generation.suppress_tokens = model.generation_config.suppress_tokens
    model.generation_config = generation
    extra = unused_weights(name, model, 27) if name == "gemma4_mm_e" else None
    notes = oracle.rounded(notes)
    oracle.save(OUT / name, model, tensors, notes, extra_weights=extra, **STORED.get(name, {}))
    n_params = sum(p.numel() for p in model.parameters())
    print(f"{name}: {n_params} parameters, {oracle.size_of(OUT / name) / 1e3:.0f} kB, {notes}", flush=True)


if __name__ == "__main__":
    OUT = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "tiny"
    for name in sys.argv[2:] or FAMILIES:
        make(name)
