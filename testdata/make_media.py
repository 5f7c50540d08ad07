#!/usr/bin/env python3
"""Write media/: small files of pictures and sound, with what transformers' own processors make of them.

    python make_media.py [OUT]

media/pictures/, media/sounds/   the files
media/pictures.safetensors       `decoded.<file>` [h,w,3] U8: upright, as Gemma's image processors make RGB of it
                                 `frames.<file>` [n,h,w,3] U8 of an animation, `ms.<file>` [n] when each begins
media/patches.safetensors        what the processors feed, of `source.*` pictures [h,w,3] U8, as levels of 0…255:
                                 `<processor>.<budget>.<source>.{patches,levels,positions,size}`; `patches` says which
                                 patches (row-major) are stored; plus tables of sizes and crops
media/sound.safetensors          `decoded.<file>` samples; mel spectra and raw frames of `tone(n)`; counts; resampling
"""
import io
import struct
import sys
import zlib
from pathlib import Path

import oracle  # noqa: F401  (before torch: it pins the instruction set that torch may use)
import lameenc
import numpy as np
import soundfile
import soxr
import torch
from PIL import Image, ImageOps, ImageSequence
from safetensors.torch import save_file
from transformers.image_transforms import convert_to_rgb
from transformers.models.gemma3.image_processing_gemma3 import Gemma3ImageProcessor
from transformers.models.gemma4.feature_extraction_gemma4 import Gemma4AudioFeatureExtractor
from transformers.models.gemma4.image_processing_gemma4 import Gemma4ImageProcessor, get_aspect_ratio_preserving_size
from transformers.models.gemma4.video_processing_gemma4 import Gemma4VideoProcessor
from transformers.models.gemma4_unified.feature_extraction_gemma4_unified import Gemma4UnifiedAudioFeatureExtractor
from transformers.models.gemma4_unified.image_processing_gemma4_unified import Gemma4UnifiedImageProcessor
from transformers.video_utils import VideoMetadata

OUT = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent / "media"
RANDOM = np.random.default_rng(7)
BUDGETS = (70, 140, 280, 560, 1120)
RATE = 16_000


def scene(width, height, noise=24):
    """Gradients, waves and some noise: neither flat nor all noise."""
    y, x = np.mgrid[0:height, 0:width]
    waves = (np.sin(x / 7) + np.cos(y / 5)) * 60 + 128
    rgb = np.stack([x * 255 / max(width - 1, 1), y * 255 / max(height - 1, 1), waves], -1)
    return (rgb + RANDOM.integers(-noise, noise + 1, rgb.shape)).clip(0, 255).astype(np.uint8)


def tensor(array, dtype=None):
    return torch.from_numpy(np.ascontiguousarray(array, dtype))


# ---------------------------------------------------------------------------------------------- files of pictures


def png16(path, array):
    """A PNG of 16 bits: [h,w,c], c = 1 grey, 2 grey and alpha, 3 RGB, 4 RGBA. Pillow writes only grey ones."""
    height, width, channels = array.shape
    kind = {1: 0, 2: 4, 3: 2, 4: 6}[channels]
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in array)

    def chunk(name, body):
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    header = struct.pack(">IIBBBBB", width, height, 16, kind, 0, 0, 0)
    parts = chunk(b"IHDR", header), chunk(b"IDAT", zlib.compress(rows)), chunk(b"IEND", b"")
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(parts))


def write_pictures(folder):
    rgb, small = scene(37, 23), scene(5, 3)
    alpha = RANDOM.integers(0, 256, (23, 37, 1), dtype=np.uint8)
    alpha[:4] = [[0], [255]] * 18 + [[0]]
    rgba = np.concatenate([rgb, alpha], -1)
    image, clear = Image.fromarray(rgb), Image.fromarray(rgba)
    palette = image.quantize(11)
    image.save(folder / "rgb.png")
    clear.save(folder / "rgba.png")
    image.convert("L").save(folder / "grey.png")
    image.convert("L").save(folder / "grey_key.png", transparency=100)
    image.convert("1").save(folder / "one_bit.png")
    Image.merge("LA", (image.convert("L"), clear.getchannel("A"))).save(folder / "grey_alpha.png")
    palette.save(folder / "palette.png")
    palette.save(folder / "palette_clear.png", transparency=2)
    image.save(folder / "rgb_key.png", transparency=tuple(int(v) for v in rgb[3, 3]))
    wide = (rgba.astype(np.uint16) << 8) + RANDOM.integers(0, 256, rgba.shape, dtype=np.uint16)
    for channels, name in ((1, "grey16"), (2, "grey_alpha16"), (3, "rgb16"), (4, "rgba16")):
        png16(folder / f"{name}.png", wide[..., 4 - channels :] if channels % 2 == 0 else wide[..., :channels])
    for turn in range(1, 9):
        exif = Image.Exif()
        exif[0x112] = turn
        Image.fromarray(small).save(folder / f"turned{turn}.png", exif=exif)
    exif[0x112] = 6
    image.save(folder / "turned.jpg", exif=exif, quality=92, subsampling=0)
    image.save(folder / "turned.webp", exif=exif, lossless=True)
    image.save(folder / "rgb444.jpg", quality=95, subsampling=0)
    Image.fromarray(scene(61, 45, 6)).save(folder / "rgb420.jpg", quality=90, subsampling=2)
    Image.fromarray(scene(61, 45, 6)).save(folder / "progressive.jpg", quality=90, progressive=True, subsampling=0)
    image.convert("L").save(folder / "grey.jpg", quality=95)
    Image.fromarray(rgba, "CMYK").save(folder / "cmyk.jpg", quality=95, subsampling=0)
    image.save(folder / "lossless.webp", lossless=True)
    clear.save(folder / "clear.webp", lossless=True, exact=True)
    Image.fromarray(scene(61, 45, 6)).save(folder / "lossy.webp", quality=80)
    palette.save(folder / "still.gif")
    palette.save(folder / "clear.gif", transparency=3)
    image.save(folder / "rgb.bmp")
    palette.save(folder / "palette.bmp")
    image.convert("L").save(folder / "grey.bmp")
    Image.fromarray(scene(1, 1)).save(folder / "one_pixel.png")
    film = [Image.fromarray(scene(24, 16)) for _ in range(40)]
    gif = [frame.quantize(16) for frame in film]
    gif[0].save(folder / "film.gif", save_all=True, append_images=gif[1:], duration=[200, 100] * 20, loop=0)
    film[0].save(folder / "film.webp", save_all=True, append_images=film[1:36], duration=250, lossless=True)


def decoded(path):
    """As transformers makes RGB of a picture (do_convert_rgb), upright as its load_image() turns it."""
    image = Image.open(path)
    if image.mode == "I;16":
        # Pillow clips 16-bit greys at 255, while it takes the high byte of 16-bit colours and of greys with alpha.
        return np.repeat((np.array(image) >> 8).astype(np.uint8)[..., None], 3, -1)
    return convert_to_rgb(ImageOps.exif_transpose(image), return_numpy=True)


def film_frames(path):
    frames, begins, now = [], [], 0
    for frame in ImageSequence.Iterator(Image.open(path)):
        frames.append(convert_to_rgb(frame, return_numpy=True))
        begins.append(now)
        now += frame.info["duration"]
    return np.stack(frames), np.array(begins)


def pictures():
    folder = OUT / "pictures"
    folder.mkdir(parents=True, exist_ok=True)
    write_pictures(folder)
    stored = {f"decoded.{path.name}": tensor(decoded(path)) for path in sorted(folder.iterdir())}
    for name in ("film.gif", "film.webp"):
        frames, begins = film_frames(folder / name)
        stored[f"frames.{name}"], stored[f"ms.{name}"] = tensor(frames), tensor(begins, np.int32)
    save_file(stored, OUT / "pictures.safetensors")


# ---------------------------------------------------------------------------------------------- patches


def some(n, most=20):
    return np.unique(np.linspace(0, n - 1, min(n, most)).astype(np.int32))


def patch_cases(stored, sources):
    for name, source in sources.items():
        for budget in (70, 280) if name == "middle" else (140,):
            for kind, processor in (("gemma4", Gemma4ImageProcessor), ("unified", Gemma4UnifiedImageProcessor)):
                made = processor(max_soft_tokens=budget)(Image.fromarray(source), return_tensors="pt")
                n_soft = int(made["num_soft_tokens_per_image"][0])
                n = n_soft * 9 if kind == "gemma4" else n_soft
                patches, positions = made["pixel_values"][0, :n], made["image_position_ids"][0, :n]
                width, height = get_aspect_ratio_preserving_size(*source.shape[:2], 16, budget * 9, 3)[::-1]
                keep = some(n, 20 if kind == "gemma4" else 4)
                key = f"{kind}.{budget}.{name}"
                stored[f"{key}.patches"] = tensor(keep)
                stored[f"{key}.levels"] = (patches[keep] * 255).round().to(torch.uint8)
                stored[f"{key}.positions"] = positions.to(torch.int32).contiguous()
                stored[f"{key}.size"] = tensor([width, height, n_soft], np.int32)
        made = gemma3()(Image.fromarray(source), return_tensors="pt")["pixel_values"][0]
        stored[f"gemma3.256.{name}.patches"], stored[f"gemma3.256.{name}.levels"] = planar(made)


def gemma3(**options):
    return Gemma3ImageProcessor(size={"height": 896, "width": 896}, image_mean=[0.5] * 3, image_std=[0.5] * 3, **options)


def planar(picture):
    """Patches of 14: channel, row, column inside."""
    patches = picture.reshape(3, 64, 14, 64, 14).permute(1, 3, 0, 2, 4).reshape(4096, 588)
    keep = some(4096)
    return tensor(keep), ((patches[keep] * 0.5 + 0.5) * 255).round().to(torch.uint8)


def sizes():
    """Rows of width, height, budget, fitted width, fitted height."""
    sides = [1, 2, 3, 10, 47, 48, 49, 224, 480, 640, 768, 769, 1080, 1920, 3000, 4000, 12_000, 65_535]
    pairs = [(w, h) for w in sides for h in sides if w * h <= 50_000_000]
    pairs += [tuple(int(v) for v in RANDOM.integers(1, 5000, 2)) for _ in range(400)]
    rows = []
    for width, height in pairs:
        for budget in BUDGETS:
            fitted = get_aspect_ratio_preserving_size(height, width, 16, budget * 9, 3)
            rows.append((width, height, budget, fitted[1], fitted[0]))
    return tensor(rows, np.int32)


def crops(stored):
    """`crops.sizes`: rows of width, height, number of crops; `crops.all`: all crops in turn as x, y, width, height."""
    sides = [100, 256, 300, 511, 512, 513, 600, 720, 1000, 1200, 1280, 1920, 2500, 5000]
    pairs = [(w, h) for w in sides for h in sides] + [(1200, 1000), (1000, 1200), (1199, 1000), (769, 257), (257, 1025)]
    rows, all_crops = [], []
    for width, height in pairs:
        places = torch.stack([torch.arange(width).expand(height, width), torch.arange(height)[:, None].expand(height, width)])
        found = gemma3().pan_and_scan_batched(places, 256, 4, 1.2)
        rows.append((width, height, len(found)))
        all_crops += [(*(int(v) for v in crop[:, 0, 0]), crop.shape[2], crop.shape[1]) for crop in found]
    stored["crops.sizes"], stored["crops.all"] = tensor(rows, np.int32), tensor(all_crops, np.int32)


def video(stored):
    """40 frames at 5 in a second, of which the processor takes 32."""
    film = np.stack([scene(50, 30) for _ in range(40)])
    metadata = VideoMetadata(total_num_frames=40, fps=5.0)
    processor = Gemma4VideoProcessor()
    made = processor([film], video_metadata=[metadata], return_metadata=True, return_tensors="pt")
    n = int(made["num_soft_tokens_per_video"][0]) * 9
    taken = made["video_metadata"][0]
    keep = some(n, 4)
    stored["video.film"] = tensor(film)
    stored["video.frames"] = tensor(taken.frames_indices, np.int32)
    stored["video.patches"] = tensor(keep)
    stored["video.levels"] = (made["pixel_values_videos"][:, :n][:, keep] * 255).round().to(torch.uint8)
    stored["video.n_soft"] = tensor([n // 9], np.int32)
    # The text is written as Gemma4Processor.replace_video_token() writes it.
    times = [f"{int(s // 60):02d}:{int(s % 60):02d}" for s in taken.timestamps]
    stored["video.times"] = tensor(np.frombuffer(" ".join(times).encode(), np.uint8).copy())
    totals = [32, 33, 40, 63, 64, 65, 100, 999, 1000, 24_000, 123_457]
    picked = [processor.sample_frames(metadata=VideoMetadata(total_num_frames=n, fps=24.0)) for n in totals]
    stored["video.totals"], stored["video.picked"] = tensor(totals, np.int32), tensor(np.stack(picked), np.int32)


def patches():
    sources = {"middle": scene(333, 200), "tiny": scene(1, 1), "square": scene(10, 10), "wide": scene(12_000, 3), "tall": scene(9, 1000)}
    stored = {f"source.{name}": tensor(source) for name, source in sources.items()}
    patch_cases(stored, sources)
    # One that shrinks. Its source is stored as a file, where it is small.
    large = np.array(Image.fromarray(scene(40, 30, 90)).resize((1600, 1200), Image.Resampling.NEAREST))
    Image.fromarray(large).save(OUT / "large.png", optimize=True)
    patch_cases(stored, {"large": large})
    stored["sizes"] = sizes()
    crops(stored)
    long = scene(600, 130)
    made = gemma3(
        do_pan_and_scan=True, pan_and_scan_min_crop_size=64, pan_and_scan_max_num_crops=4, pan_and_scan_min_ratio_to_activate=1.2
    )(Image.fromarray(long), return_tensors="pt")["pixel_values"]
    stored["source.long"] = tensor(long)
    stored["cropped.patches"] = planar(made[0])[0]
    stored["cropped.levels"] = torch.stack([planar(picture)[1] for picture in made])
    video(stored)
    save_file({key: value.contiguous() for key, value in stored.items()}, OUT / "patches.safetensors")


# ---------------------------------------------------------------------------------------------- sound


def tone(n):
    """Numbers that float32 holds exactly, the same wherever they are made."""
    i = np.arange(n, dtype=np.int64)
    return (((i * i * 7 // 64 + i * 13) % 4001 - 2000) / 4096).astype(np.float32)


def chirp(rate, seconds):
    t = np.arange(int(rate * seconds)) / rate
    return 0.5 * np.sin(2 * np.pi * (150 * t + 2500 * t * t)) + 0.05 * np.sin(2 * np.pi * 3000 * t)


def write_sounds(folder):
    mono, stereo = chirp(RATE, 0.2), np.stack([chirp(44_100, 0.12), chirp(44_100, 0.12)[::-1]], -1)
    for kind in ("PCM_U8", "PCM_16", "PCM_24", "PCM_32", "FLOAT", "DOUBLE", "ALAW", "ULAW"):
        soundfile.write(folder / f"{kind.lower()}.wav", mono, RATE, subtype=kind)
    soundfile.write(folder / "extensible.wav", stereo, 44_100, subtype="PCM_24", format="WAVEX")
    soundfile.write(folder / "stereo.flac", stereo, 44_100, subtype="PCM_24")
    soundfile.write(folder / "mono.flac", mono, RATE, subtype="PCM_16")
    soundfile.write(folder / "stereo.ogg", stereo, 44_100, format="OGG", subtype="VORBIS")
    encoder = lameenc.Encoder()
    encoder.set_bit_rate(128)
    encoder.set_in_sample_rate(44_100)
    encoder.set_channels(2)
    encoder.silence()
    pcm = (np.clip(stereo, -1, 1) * 32767).astype("<i2").tobytes()
    (folder / "stereo.mp3").write_bytes(bytes(encoder.encode(pcm) + encoder.flush()))


def mel(stored):
    """`mel.<n>.rows` says which frames are stored; `counts`: rows of samples, frames, soft tokens."""
    extractor, rows = Gemma4AudioFeatureExtractor(), []
    for n in (161, 320, 321, 1000, 1279, 1280, 1281, 15_321, 16_000, 100_000, 479_999, 480_000, 480_001, 600_000):
        made = extractor([tone(n)], return_tensors="np")
        features, mask = made["input_features"][0], made["input_features_mask"][0]
        valid = int(mask.sum())
        assert mask[:valid].all()
        rows.append((n, valid, int(mask[::2][::2].sum())))
        if n in (161, 1281, 15_321, 600_000):
            stored[f"mel.{n}.rows"] = tensor(some(valid, 12))
            stored[f"mel.{n}"] = tensor(features[some(valid, 12)], np.float32)
    stored["counts.mel"] = tensor(rows, np.int32)


def raw(stored):
    extractor, rows = Gemma4UnifiedAudioFeatureExtractor(), []
    for n in (1, 639, 640, 641, 15_321, 480_000):
        made = extractor([tone(n)], return_tensors="np")
        features, mask = made["input_features"][0], made["input_features_mask"][0]
        rows.append((n, int(mask.sum()), int(mask.sum())))
        if n in (641, 15_321):
            stored[f"raw.{n}"] = tensor(features[-2:], np.float32)
    stored["counts.raw"] = tensor(rows, np.int32)


def sound():
    folder = OUT / "sounds"
    folder.mkdir(parents=True, exist_ok=True)
    write_sounds(folder)
    stored = {}
    for path in sorted(folder.iterdir()):
        samples, rate = soundfile.read(io.BytesIO(path.read_bytes()), dtype="float32", always_2d=True)
        stored[f"decoded.{path.name}"] = tensor(samples.mean(1), np.float32)
        stored[f"rate.{path.name}"] = tensor([rate], np.int32)
    mel(stored)
    raw(stored)
    for rate in (8_000, 22_050, 44_100, 48_000):
        source = chirp(rate, 0.25).astype(np.float32)
        stored[f"resampled.{rate}.from"] = tensor(source)
        stored[f"resampled.{rate}"] = tensor(soxr.resample(source, rate, RATE, quality="VHQ"), np.float32)
    save_file(stored, OUT / "sound.safetensors")


pictures()
patches()
sound()
total = sum(path.stat().st_size for path in OUT.rglob("*") if path.is_file())
print(f"{OUT}: {total / 1e6:.2f} MB")
