"""Messages as people write them, and what they show and play."""

from __future__ import annotations

import base64
import binascii
import io
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from . import _native
from ._errors import make

Message: TypeAlias = Mapping[str, Any]
"""A message in OpenAI's words: ``{"role": "user", "content": "Hello."}``."""

Messages: TypeAlias = "str | Sequence[Any]"
"""What is answered: a text, the parts of one message, or messages."""

_KINDS = {
    "image": "image",
    "image_url": "image",
    "input_image": "image",
    "audio": "audio",
    "audio_url": "audio",
    "input_audio": "audio",
    "video": "video",
    "video_url": "video",
    "input_video": "video",
}


def _wrong(reason: str) -> Exception:
    return make("invalid_argument", reason)


def _of_text(kind: str, text: str) -> _native.Media:
    if text.startswith("data:"):
        try:
            return _native.Media.bytes(kind, base64.b64decode(text.partition(",")[2], validate=True))
        except binascii.Error as e:
            raise _wrong(f"{kind}: its data is not base64: {e}") from None
    if text.startswith(("http://", "https://")):
        raise _wrong(f"{kind}: nothing is fetched from {text}; give a path or bytes")
    return _native.Media.file(kind, text.removeprefix("file://"))


def _array(value: Any) -> Any:
    """A numpy array of whatever can be one."""
    import numpy

    if hasattr(value, "detach"):
        value = value.detach().cpu()
    return numpy.asarray(value)


def _is_array(value: Any) -> bool:
    return hasattr(value, "__array_interface__") or hasattr(value, "__array__")


def _pil(value: Any) -> _native.Media:
    from PIL import ImageOps

    value = ImageOps.exif_transpose(value)
    if value.mode == "RGB":
        return _native.Media.rgb(value.width, value.height, value.tobytes())
    # Other modes are read as from a file, so that they look the same.
    file = io.BytesIO()
    value.save(file, format="PNG", compress_level=1)
    return _native.Media.bytes("image", file.getvalue())


def _levels(value: Any) -> _native.Media:
    import numpy

    levels = _array(value)
    if levels.ndim == 2:
        levels = levels[:, :, None]
    if levels.ndim == 3 and levels.shape[2] not in (1, 3, 4) and levels.shape[0] in (1, 3, 4):
        levels = levels.transpose(1, 2, 0)
    if levels.ndim != 3 or levels.shape[2] not in (1, 3, 4):
        raise _wrong(f"an image is height x width x 3, not an array of {levels.shape}")
    if levels.dtype != numpy.uint8:
        if not numpy.issubdtype(levels.dtype, numpy.floating):
            raise _wrong(f"an image has levels of uint8 or floats from 0 to 1, not {levels.dtype}")
        levels = numpy.clip(numpy.rint(levels.astype(numpy.float64) * 255), 0, 255)
        levels = levels.astype(numpy.uint8)
    if levels.shape[2] == 4:
        from PIL import Image

        return _pil(Image.fromarray(levels, "RGBA"))
    if levels.shape[2] == 1:
        levels = levels.repeat(3, axis=2)
    height, width, _ = levels.shape
    return _native.Media.rgb(width, height, levels.tobytes())


def _samples(value: Any, rate: Any) -> _native.Media:
    import numpy

    samples = _array(value)
    if samples.ndim == 2:
        # Channels are the shorter side.
        samples = samples.mean(axis=0 if samples.shape[0] < samples.shape[1] else 1)
    if samples.ndim != 1:
        raise _wrong(f"audio is an array of samples, not one of {samples.shape}")
    if numpy.issubdtype(_array(value).dtype, numpy.integer):
        samples = samples / float(numpy.iinfo(_array(value).dtype).max + 1)
    return _native.Media.samples(int(rate), samples.astype(numpy.float32).tobytes())


def media(kind: str, value: Any) -> _native.Media:
    """Something that is shown or played, of whatever kind of thing it is given as."""
    if isinstance(value, _native.Media):
        return value
    if isinstance(value, (bytes, bytearray, memoryview)):
        return _native.Media.bytes(kind, bytes(value))
    if isinstance(value, str):
        return _of_text(kind, value)
    if isinstance(value, os.PathLike):
        return _native.Media.file(kind, value)
    if kind == "image" and type(value).__module__.startswith("PIL."):
        return _pil(value)
    if kind == "image" and _is_array(value):
        return _levels(value)
    if kind == "audio":
        if isinstance(value, tuple) and len(value) == 2:
            return _samples(*value)
        if isinstance(value, Mapping) and "array" in value and "sampling_rate" in value:
            return _samples(value["array"], value["sampling_rate"])
        if _is_array(value):
            raise _wrong("audio: samples need their rate; give (samples, rate)")
    raise _wrong(f"{kind}: {type(value).__name__} can't be read; give bytes or a path")


def image(value: Any) -> _native.Media:
    """An image: a path, bytes, a PIL image, or an array of height x width x 3."""
    return media("image", value)


def audio(value: Any, rate: int | None = None) -> _native.Media:
    """Audio: a path, bytes, or samples with their rate."""
    return media("audio", value if rate is None else (value, rate))


def video(value: Any) -> _native.Media:
    """A video: a path, a folder of images, or bytes."""
    return media("video", value)


class Shown:
    """Media in the order of the parts that show them."""

    def __init__(self) -> None:
        self.media: list[_native.Media] = []

    def part(self, value: Any) -> Any:
        """A part, with a number in place of what it shows."""
        if isinstance(value, str):
            return {"type": "text", "text": value}
        if isinstance(value, _native.Media):
            return self._number(value.kind, value)
        if isinstance(value, tuple) or isinstance(value, Mapping) and "array" in value:
            return self._number("audio", value)
        if not isinstance(value, Mapping):
            return self._number("image", value)
        kind = _KINDS.get(value.get("type", ""))
        if kind is None:
            return dict(value)
        given: Any = next((value[key] for key in (value["type"], kind) if key in value), None)
        if given is None:
            given = next((value[key] for key in ("url", "path", "data") if key in value), None)
        if isinstance(given, Mapping) and "url" in given:
            given = given["url"]
        elif isinstance(given, Mapping) and "data" in given:
            given = f"data:;base64,{given['data']}"
        if given is None:
            raise _wrong(f'a part of type `{value["type"]}` shows nothing')
        if kind == "audio" and "rate" in value:
            given = (given, value["rate"])
        return self._number(kind, given)

    def _number(self, kind: str, value: Any) -> dict[str, Any]:
        self.media.append(media(kind, value))
        return {"type": kind, "media": len(self.media) - 1}

    def message(self, message: Message) -> dict[str, Any]:
        """A message, with numbers in place of what it shows."""
        content = message.get("content")
        if content is None or isinstance(content, str):
            return dict(message)
        parts = content if isinstance(content, Sequence) else [content]
        return {**message, "content": [self.part(part) for part in parts]}

    def json(self, messages: Iterable[Message]) -> str:
        """All messages, as the library reads them."""
        return dumps([self.message(message) for message in messages])


def _is_message(value: Any) -> bool:
    return isinstance(value, Mapping) and "role" in value


def messages(
    given: Messages,
    images: Sequence[Any] | None = None,
    audio: Sequence[Any] | None = None,
    video: Sequence[Any] | None = None,
) -> list[dict[str, Any]]:
    """Messages of what was given. Media that stand beside are shown with the last thing said."""
    if _is_message(given):
        given = [given]
    if isinstance(given, str):
        said: list[dict[str, Any]] = [{"role": "user", "content": given}]
    elif isinstance(given, Sequence) and given and all(map(_is_message, given)):
        listed: Sequence[Any] = given
        said = [dict(message) for message in listed]
    elif isinstance(given, Sequence) and not any(map(_is_message, given)):
        said = [{"role": "user", "content": list(given)}] if given else []
    else:
        raise _wrong("give a text, the parts of one message, or messages with a role each")
    beside = [
        {"type": kind, kind: value}
        for kind, values in (("image", images), ("audio", audio), ("video", video))
        for value in values or ()
    ]
    if beside:
        if not said:
            said = [{"role": "user", "content": []}]
        content = said[-1].get("content") or []
        parts = [content] if isinstance(content, str) else list(content)
        said[-1]["content"] = [*beside, *parts]
    return said


def dumps(value: Any) -> str:
    """JSON, in which there is neither NaN nor infinity."""
    try:
        return json.dumps(value, allow_nan=False, ensure_ascii=False)
    except (TypeError, ValueError) as e:
        raise _wrong(f"it can't be written as JSON: {e}") from None
