#!/usr/bin/env python3
"""Write the tiny multimodal checkpoints of tiny/ as GGUF files into gguf/<family>/ (or OUT/<family>/).

    python make_mmproj.py [OUT]

  model.gguf               the text side, with a made-up tokenizer that has the media tokens
  mmproj.gguf              the towers, with the names, orders and types that llama.cpp's converter gives them
  reference.safetensors    one prompt with media: transformers with the same weights, embedding scale in float32

The names of tower tensors are gguf-py's own, but for the encoder-free model, which its release does not know yet.
Gemma 3 differs from tiny/ in query_pre_attn_scalar, which a GGUF file does not hold: it is the head size here.
"""
import json
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "gguf"))

import oracle  # isort: skip  (first: it pins the instruction set that torch may use)
import gguf
import make
import make_gguf
import media_cases
import numpy as np
import tiny_tokenizer
import torch
import transformers as tf
from gguf import GGMLQuantizationType as Q
from safetensors.torch import load_file

CLASSES = {
    "gemma3_mm": tf.Gemma3ForConditionalGeneration,
    "gemma4_mm_large": tf.Gemma4ForConditionalGeneration,
    "gemma4_mm_e": tf.Gemma4ForConditionalGeneration,
    "gemma4_unified": tf.Gemma4UnifiedForConditionalGeneration,
}
SUFFIXES = (".weight", ".bias", ".input_max", ".input_min", ".output_max", ".output_min")
NAMES = gguf.get_tensor_name_map(gguf.MODEL_ARCH.MMPROJ, 128)
UNIFIED_NAMES = {
    "model.vision_embedder.patch_ln1": "v.patch_norm.1",
    "model.vision_embedder.patch_ln2": "v.patch_norm.2",
    "model.vision_embedder.pos_norm": "v.patch_norm.3",
    "model.vision_embedder.patch_dense": "v.patch_embd",
    "model.vision_embedder.pos_embedding": "v.position_embd",
}
MEDIA_TOKENS = {
    "gemma3": {"boi_token_index": "<start_of_image>", "eoi_token_index": "<end_of_image>",
               "image_token_index": "<image_soft_token>"},
    "gemma4": {"boi_token_id": "<|image>", "eoi_token_id": "<image|>", "image_token_id": "<|image|>",
               "video_token_id": "<|video|>", "boa_token_id": "<|audio>", "eoa_token_index": "<audio|>",
               "audio_token_id": "<|audio|>"},
}  # fmt: skip


# ---------------------------------------------------------------------------------------------- towers


def tower_tensors(family, config, weights):
    """(GGUF name, values) of every tower tensor, as the converter lays them out."""
    for name, values in sorted(weights.items()):
        if "language_model." in name:
            continue
        values = values.float()
        if values.dim() == 0:
            values = values[None]
        if family == "gemma3_mm":
            yield gemma3_tensor(name, values)
        elif family == "gemma4_unified":
            yield unified_tensor(config, name, values)
        else:
            yield gemma4_tensor(config, name, values)


def mapped(name):
    new_name = NAMES.get_name(name, try_suffixes=SUFFIXES)
    assert new_name, name
    return new_name


def gemma3_tensor(name, values):
    if name.startswith("vision_tower."):
        name = name.replace("vision_tower.", "vision_tower.vision_model.")
    if name.endswith("mm_soft_emb_norm.weight"):
        values = values + 1
    return mapped(name.replace("_weight", ".weight")), values


def gemma4_tensor(config, name, values):
    if "audio" in name:
        name = name.replace("model.audio_tower.", "conformer.").replace(".linear.", ".")
        if name.endswith("per_dim_scale"):
            name, values = name + ".weight", torch.nn.functional.softplus(values)
        if "depthwise_conv1d" in name:
            values = values[:, 0]
        return mapped(name), values
    name = name.replace("model.vision_tower.encoder.", "vision_model.model.").replace(".linear.weight", ".weight")
    if name.endswith("position_embedding_table"):
        name += ".weight"
    if name.endswith("input_proj.weight"):
        side = config.vision_config.patch_size
        values = values.reshape(len(values), side, side, 3).permute(0, 3, 1, 2)
    return mapped(name), values


def unified_tensor(config, name, values):
    stem, _, leaf = name.rpartition(".")
    if name.endswith("pos_embedding"):
        return UNIFIED_NAMES[name] + ".weight", values.permute(1, 0, 2)
    if stem not in UNIFIED_NAMES:
        return mapped(name), values
    if "patch_ln1" in name or name.endswith("patch_dense.weight"):
        # Channels first, here and in what these take.
        side = config.vision_config.patch_size * config.vision_config.pooling_kernel_size
        order = torch.arange(3 * side * side).reshape(side, side, 3).permute(2, 0, 1).reshape(-1)
        values = values[..., order]
    return f"{UNIFIED_NAMES[stem]}.{leaf}", values


def tower_type(family, name, shape):
    """The converter keeps vectors, convolutions and tables in F32, Gemma 3's projection in F16."""
    if len(shape) == 1 or any(part in name for part in ("conv", "position_embd", "patch_embd")):
        return Q.F32
    if family == "gemma3_mm" and "input_projection" in name:
        return Q.F16
    return Q.BF16 if family in ("gemma3_mm", "gemma4_mm_e") else Q.F32


def write_mmproj(path, family, config, weights):
    writer = gguf.GGUFWriter(path, "clip")
    writer.add_type("mmproj")
    writer.add_name(f"tiny random {family}")
    hidden = config.get_text_config().hidden_size
    gemma3, unified = family == "gemma3_mm", family == "gemma4_unified"
    vision, audio = config.vision_config, getattr(config, "audio_config", None)
    writer.add_clip_has_vision_encoder(True)
    if gemma3:
        writer.add_clip_projector_type("gemma3")
        writer.add_vision_use_gelu(True)
        side = int(config.mm_tokens_per_image**0.5)
        writer.add_vision_projector_scale_factor(vision.image_size // vision.patch_size // side)
    else:
        writer.add_clip_vision_projector_type("gemma4uv" if unified else "gemma4v")
    writer.add_vision_projection_dim(hidden)
    writer.add_vision_image_size(vision.image_size if gemma3 else 224)
    writer.add_vision_patch_size(vision.patch_size)
    writer.add_vision_embedding_length(vision.mm_embed_dim if unified else vision.hidden_size)
    writer.add_vision_feed_forward_length(0 if unified else vision.intermediate_size)
    writer.add_vision_block_count(0 if unified else vision.num_hidden_layers)
    writer.add_vision_head_count(0 if unified else vision.num_attention_heads)
    writer.add_vision_attention_layernorm_eps(1e-6)
    writer.add_vision_image_mean([0.5] * 3 if gemma3 else [0.0] * 3)
    writer.add_vision_image_std([0.5] * 3 if gemma3 else [1.0] * 3)
    if audio is not None:
        writer.add_clip_has_audio_encoder(True)
        writer.add_clip_audio_projector_type("gemma4ua" if unified else "gemma4a")
        writer.add_audio_projection_dim(hidden)
        writer.add_audio_embedding_length(audio.hidden_size)
        writer.add_audio_feed_forward_length(0 if unified else 4 * audio.hidden_size)
        writer.add_audio_block_count(0 if unified else audio.num_hidden_layers)
        writer.add_audio_head_count(0 if unified else audio.num_attention_heads)
        writer.add_audio_num_mel_bins(128 if unified else audio.subsampling_conv_channels[0])
        writer.add_audio_attention_layernorm_eps(1e-6)
    for name, values in tower_tensors(family, config, weights):
        values = values.contiguous().numpy()
        kind = tower_type(family, name, values.shape)
        writer.add_tensor(name, gguf.quantize(values, kind), raw_dtype=kind)
    finish(writer)


def finish(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


# ---------------------------------------------------------------------------------------------- text


def write_text(path, family, config, weights):
    text = config.get_text_config()
    gemma3 = family == "gemma3_mm"
    writer = gguf.GGUFWriter(path, family[:6])
    make_gguf.add_metadata(writer, family, text)
    if gemma3:
        writer.add_sliding_window_pattern([kind == make.S for kind in text.layer_types])
    else:
        writer.add_tensor("rope_freqs.weight", make_gguf.rope_freqs(text))
    tokenizer(family, config).add_to(writer)
    prefix = "language_model.model." if gemma3 else "model.language_model."
    stored = Q.BF16 if family in ("gemma3_mm", "gemma4_mm_e") else Q.F32
    for name, values in sorted(weights.items()):
        if not name.startswith(prefix) or is_unused(text, name):
            continue
        target = make_gguf.gguf_name(name.removeprefix(prefix))
        values = values.float().numpy()
        if gemma3 and target.endswith("norm.weight"):
            values = values + np.float32(1)
        kind = stored if values.ndim > 1 else Q.F32
        writer.add_tensor(target, gguf.quantize(values, kind), raw_dtype=kind)
    finish(writer)


def is_unused(text, name):
    """Keys and values of layers that share those of others."""
    first_shared = text.num_hidden_layers - getattr(text, "num_kv_shared_layers", 0)
    parts = name.split(".layers.")
    own = ("k_proj", "v_proj", "k_norm")
    return len(parts) == 2 and int(parts[1].split(".")[0]) >= first_shared and any(p in name for p in own)


def tokenizer(family, config):
    """The made-up one, with the media tokens where the model has them: at the top of its vocabulary."""
    vocab_size = config.get_text_config().vocab_size
    made = tiny_tokenizer.TinyTokenizer(family[:6], vocab_size - make.N_SPECIAL)
    named = {getattr(config, key): token for key, token in MEDIA_TOKENS[family[:6]].items()}
    for id in range(vocab_size - make.N_SPECIAL, vocab_size):
        made.tokens.append(named.get(id, f"<media{id}>"))
        made.types.append(tiny_tokenizer.CONTROL)
        made.scores.append(-1000.0)
    return made


# ---------------------------------------------------------------------------------------------- reference


def reference(folder, family, model):
    """One prompt with media, on the media of tiny/."""
    stored = load_file(HERE / "tiny" / family / "reference.safetensors")
    config = model.config

    def media(kind):
        keys = sorted({key.split(".")[1] for key in stored if key.startswith(f"{kind}.")})
        items = [{k.split(".")[2]: v for k, v in stored.items() if k.startswith(f"{kind}.{n}.")} for n in keys]
        return [i | ({"frames": i["levels"].float() / 32} if "levels" in i else {}) for i in items]

    if family == "gemma3_mm":
        ids = (config.boi_token_index, config.image_token_index, config.eoi_token_index)
        markers = {"image": (*ids, 1)}
    else:
        markers = make.gemma4_markers(config.to_dict())
    masks = make.unified_masks if family == "gemma4_unified" else None
    sees = media_cases.Family(model, media("image"), media("sound"), markers, masks)
    case = "image_and_sound" if sees.sounds else "image_middle"
    layout = (media_cases.IMAGE_LAYOUTS | media_cases.SOUND_LAYOUTS)[case]
    vocab_size = config.get_text_config().vocab_size
    avoid = make.EOS[family[:6]] + list(range(vocab_size - make.N_SPECIAL, vocab_size))
    tensors, seeds = sees.tensors({case: layout}, avoid, 61_000)
    cases = {k: v.contiguous() for k, v in tensors.items() if k.startswith("case.")}
    oracle.save_file(cases, folder / "reference.safetensors", metadata={"notes": json.dumps({"seeds": seeds})})


def make_family(out, family):
    source, folder = HERE / "tiny" / family, out / family
    folder.mkdir(parents=True, exist_ok=True)
    config = CLASSES[family].config_class.from_pretrained(source)
    if family == "gemma3_mm":
        config.text_config.query_pre_attn_scalar = config.text_config.head_dim
    weights = load_file(source / "model.safetensors")
    write_text(folder / "model.gguf", family, config, weights)
    write_mmproj(folder / "mmproj.gguf", family, config, weights)
    model = CLASSES[family].from_pretrained(source, config=config, dtype=torch.float32).eval()
    reference(folder, family, model)
    for file in folder.iterdir():
        file.chmod(0o644)
    print(f"{family}: {oracle.size_of(folder) / 1e3:.0f} kB", flush=True)


if __name__ == "__main__":
    for family in CLASSES:
        make_family(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "gguf", family)
