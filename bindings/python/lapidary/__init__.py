"""Gemma models in your program: text, images and audio, on the CPU or a GPU.

    import lapidary

    model = lapidary.Model("pebble")
    print(model.chat("Tell me a story about a brave fox."))
"""

from ._compat import (
    LLM,
    CompletionOutput,
    RequestOutput,
    SamplingParams,
    Tokenizer,
    batch_generate,
    generate,
    load,
    stream_generate,
)
from ._errors import (
    BusyError,
    CancelledError,
    ContextLengthError,
    DeviceError,
    FileError,
    InvalidArgumentError,
    InvalidModelError,
    LapidaryError,
    NetworkError,
    NotFoundError,
    OutOfMemoryError,
    UnloadedError,
    UnsupportedError,
)
from ._hub import backends, is_downloaded, ls, models, pull, rm
from ._messages import audio, image, video
from ._model import Conversation, Model, plan
from ._native import Media, version
from ._options import LoadOptions, Options
from ._stream import AsyncStream, Stream
from ._types import (
    Backend,
    Chunk,
    DownloadedModel,
    KnownModel,
    KnownVariant,
    Logprob,
    Metrics,
    ModelInfo,
    Plan,
    Reply,
    Stats,
    ToolCall,
)

__version__ = version()

__all__ = [
    "LLM",
    "AsyncStream",
    "Backend",
    "BusyError",
    "CancelledError",
    "Chunk",
    "CompletionOutput",
    "ContextLengthError",
    "Conversation",
    "DeviceError",
    "DownloadedModel",
    "FileError",
    "InvalidArgumentError",
    "InvalidModelError",
    "KnownModel",
    "KnownVariant",
    "LapidaryError",
    "LoadOptions",
    "Logprob",
    "Media",
    "Metrics",
    "Model",
    "ModelInfo",
    "NetworkError",
    "NotFoundError",
    "Options",
    "OutOfMemoryError",
    "Plan",
    "Reply",
    "RequestOutput",
    "SamplingParams",
    "Stats",
    "Stream",
    "Tokenizer",
    "ToolCall",
    "UnloadedError",
    "UnsupportedError",
    "audio",
    "backends",
    "batch_generate",
    "generate",
    "image",
    "is_downloaded",
    "load",
    "ls",
    "models",
    "plan",
    "pull",
    "rm",
    "stream_generate",
    "version",
    "video",
]
