"""Prompts with media for the tiny multimodal models: where images and sounds stand, one by one.

Media are drawn first and stored once; each case is a prompt that uses some of them. The weights are given, so the
search is for a prompt: ordinary ids are drawn until the checks of oracle.reference() pass.
"""
import oracle  # first: it pins the instruction set that torch may use
import torch
from oracle import Prompt, reference, search

MIN_DISTINCT = 4  # different ids in a greedy continuation


class Family:
    """How one model takes media."""

    def __init__(self, model, images, sounds, markers, masks=None):
        self.model = model
        self.images, self.sounds = images, sounds  # lists of dictionaries, see image() and sound()
        self.markers = markers  # kind -> (begin id, soft id, end id, token type)
        self.masks = masks

    def prompt(self, layout, seed):
        """`layout` holds numbers of ordinary tokens, ("image", k) and ("sound", k)."""
        text = self.model.config.get_text_config()
        n_text = sum(part for part in layout if isinstance(part, int))
        ordinary = iter(oracle.random_ids(n_text + 1, text.vocab_size, seed, reserved=20)[0, 1:].tolist())
        ids, types, used = [2], [0], {"image": [], "sound": []}
        for part in layout:
            if isinstance(part, int):
                ids += [next(ordinary) for _ in range(part)]
                types += [0] * part
                continue
            kind, k = part
            begin, soft, end, token_type = self.markers[kind]
            item = (self.images if kind == "image" else self.sounds)[k]
            n = len(item["features"])
            ids += [begin] + [soft] * n + [end]
            types += [0] + [token_type] * n + [0]
            used[kind].append(k)
        key = "token_type_ids" if self.model.config.model_type == "gemma3" else "mm_token_type_ids"
        media = self.stacked_images(used["image"]) | self.stacked_sounds(used["sound"])
        return Prompt(torch.tensor([ids]), {key: torch.tensor([types])}, media, self.masks), used

    def stacked_images(self, numbers):
        if not numbers:
            return {}
        images = [self.images[k] for k in numbers]
        if "positions" not in images[0]:
            return {"pixel_values": torch.stack([i["pixels"] for i in images])}
        longest = max(len(i["pixels"]) for i in images)
        pad = torch.nn.functional.pad
        pixels = [pad(i["pixels"], (0, 0, 0, longest - len(i["pixels"]))) for i in images]
        where = [pad(i["positions"], (0, 0, 0, longest - len(i["positions"])), value=-1) for i in images]
        return {"pixel_values": torch.stack(pixels), "image_position_ids": torch.stack(where)}

    def stacked_sounds(self, numbers):
        if not numbers:
            return {}
        frames = [self.sounds[k]["frames"] for k in numbers]
        longest = max(len(f) for f in frames)
        padded = [torch.nn.functional.pad(f, (0, 0, 0, longest - len(f))) for f in frames]
        mask = torch.arange(longest) < torch.tensor([len(f) for f in frames])[:, None]
        return {"input_features": torch.stack(padded), "input_features_mask": mask}

    def tensors(self, layouts, avoid, first_seed):
        """Everything that a test needs: media with their features, and a reference for each layout."""
        out, seeds = {}, {}
        for kind, items in (("image", self.images), ("sound", self.sounds)):
            for k, item in enumerate(items):
                out |= {f"{kind}.{k}.{name}": tensor for name, tensor in item.items() if name != "frames"}
        for name, layout in layouts.items():
            seed, _, found, _ = search(
                lambda seed: seed,
                lambda seed: reference(self.model, self.prompt(layout, seed)[0], avoid, MIN_DISTINCT),
                first_seed,
            )
            prompt, used = self.prompt(layout, seed)
            found |= prompt.token_types
            for kind, numbers in used.items():
                found[f"{kind}s"] = torch.tensor(numbers, dtype=torch.long)
            out |= {f"case.{name}.{key}": tensor for key, tensor in found.items()}
            seeds[name] = seed
        return out, seeds


# ---------------------------------------------------------------------------------------------- media


def gemma3_images(model, count, seed):
    """Normalised pixels [3, size, size] and the rows that replace placeholders."""
    size = model.config.vision_config.image_size
    rng = torch.Generator().manual_seed(seed)
    images = []
    for _ in range(count):
        pixels = torch.rand(3, size, size, generator=rng) * 2 - 1
        seen = model.model.get_image_features(pixels[None], return_dict=True).pooler_output[0]
        images.append({"pixels": pixels, "features": seen})
    return images


def gemma4_images(model, grids, values, seed):
    """Patch values in [0, 1] row by row, their (x, y), and the rows that replace placeholders.

    `grids` are in patches.
    """
    rng = torch.Generator().manual_seed(seed)
    images = []
    for rows, columns in grids:
        y, x = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
        positions = torch.stack([x, y], -1).reshape(-1, 2)
        pixels = torch.rand(len(positions), values, generator=rng)
        seen = model.model.get_image_features(pixels[None], positions[None], return_dict=True).pooler_output
        images.append({"pixels": pixels, "positions": positions, "features": torch.cat(list(seen))})
    return images


def sounds(model, lengths, values, seed):
    """Frames, all of them valid, and the rows that replace placeholders.

    Frames are `levels` / 32, to keep files small.
    """
    rng = torch.Generator().manual_seed(seed)
    out = []
    for length in lengths:
        levels = torch.randint(-64, 65, (length, values), generator=rng).to(torch.int8)
        frames = levels.float() / 32
        mask = torch.ones(1, length, dtype=torch.bool)
        heard = model.model.get_audio_features(frames[None], mask, return_dict=True).pooler_output
        out.append({"levels": levels, "frames": frames, "features": heard.reshape(-1, heard.shape[-1])})
    return out


# Places of one image, and two images one after the other.
IMAGE_LAYOUTS = {
    "image_first": [("image", 0), 6],
    "image_middle": [7, ("image", 0), 6],
    "image_last": [9, ("image", 1)],
    "images_in_a_row": [3, ("image", 0), ("image", 1), 4],
}
SOUND_LAYOUTS = {
    "sound_short": [4, ("sound", 0), 5],
    "sound_long": [("sound", 1), 5],
    "image_and_sound": [3, ("image", 0), 2, ("sound", 0), 4],
}
