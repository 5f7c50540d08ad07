"""The exceptions, one class for each code that programs tell apart."""

from __future__ import annotations


class LapidaryError(Exception):
    """Something went wrong. ``code`` is the stable word for it that the HTTP API uses, too."""

    code: str = "internal_error"


class InvalidArgumentError(LapidaryError, ValueError):
    """A parameter is out of range or malformed."""


class ContextLengthError(InvalidArgumentError):
    """The prompt does not fit in the context."""


class NotFoundError(LapidaryError, FileNotFoundError):
    """A file or a model does not exist, or was not downloaded."""


class NetworkError(LapidaryError, ConnectionError):
    """The network failed."""


class FileError(LapidaryError, OSError):
    """A file could not be read or written."""


class InvalidModelError(LapidaryError, ValueError):
    """The model's file, its tokenizer or its chat template is invalid."""


class OutOfMemoryError(LapidaryError, MemoryError):
    """The model does not fit in memory."""


class DeviceError(LapidaryError, RuntimeError):
    """The device or its driver failed, or can't be used."""


class UnsupportedError(LapidaryError, NotImplementedError):
    """The model, the backend or this build can't do that."""


class BusyError(LapidaryError, RuntimeError):
    """The conversation is being answered, or too many requests wait."""


class CancelledError(LapidaryError):
    """It was cancelled."""


class UnloadedError(LapidaryError, RuntimeError):
    """The model was closed."""


_CLASSES: dict[str, type[LapidaryError]] = {
    "invalid_argument": InvalidArgumentError,
    "context_length_exceeded": ContextLengthError,
    "chat_template_refused": InvalidArgumentError,
    "all_tokens_masked": InvalidArgumentError,
    "invalid_prefix_file": InvalidArgumentError,
    "invalid_program": InvalidModelError,
    "invalid_tokenizer": InvalidModelError,
    "invalid_chat_template": InvalidModelError,
    "not_found": NotFoundError,
    "network_error": NetworkError,
    "io_error": FileError,
    "out_of_memory": OutOfMemoryError,
    "device_error": DeviceError,
    "unsupported": UnsupportedError,
    "busy": BusyError,
    "queue_full": BusyError,
    "cancelled": CancelledError,
    "slow_reader": CancelledError,
    "model_unloaded": UnloadedError,
}


def make(code: str, reason: str) -> LapidaryError:
    """The exception of a code."""
    error = _CLASSES.get(code, LapidaryError)(reason)
    error.code = code
    return error
