"""The engine's errors.

EngineError
├── CheckpointError        a checkpoint is missing, broken or unsupported (at start)
├── ConfigError            a setting of the engine cannot work (at start)
├── RequestError           this request can never be served; the message goes to the user
│   ├── PromptTooLong      prompt + max_tokens exceed the context length or the KV memory
│   ├── AdapterGone        the request's adapter is no longer loaded
│   └── TemplateError      the chat template rejected the messages
├── AdapterError           an adapter is missing, broken or made for another base model
│   └── AdapterExists      the name is taken and the caller did not allow replacement
├── QueueFull              the queue is at its bound: retry later
├── EngineUnavailable      the engine process is starting, dead or hung
├── FrameError             malformed frame or unknown message on a socket; the connection is closed
├── PageShortage           no free page and nothing evictable (inside the engine only)
└── StepTooLarge           the device has no memory for a step of this size (inside the engine only)
"""

from __future__ import annotations

from typing import ClassVar, Literal

RejectReason = Literal[
    "invalid", "prompt_too_long", "adapter_gone", "queue_full", "adapter_invalid", "adapter_exists"
]
"""Why an engine or encoder process rejects a request: how the error is named on the wire."""


class EngineError(Exception):
    """Base class of the engine's errors."""


class CheckpointError(EngineError):
    """A checkpoint that cannot be served; the message names the path and the remedy."""


class ConfigError(EngineError, ValueError):
    """A setting of the engine that cannot work; the message names it and the remedy."""


class RequestError(EngineError):
    """A request that can never be served; `param` is the API field that caused it, if any."""

    reason: ClassVar[RejectReason] = "invalid"

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class PromptTooLong(RequestError):
    """The prompt, or prompt + max_tokens, exceeds the model's context length or the whole KV memory."""

    reason = "prompt_too_long"


class AdapterGone(RequestError):
    """The adapter with this content hash is not loaded (any more); its name may now mean another."""

    reason = "adapter_gone"


class TemplateError(RequestError):
    """The chat template rejected these messages."""


class AdapterError(EngineError):
    """An adapter that is unknown or cannot be served; the message names the cause and the remedy."""

    reason: ClassVar[RejectReason] = "adapter_invalid"


class AdapterExists(AdapterError):
    """The name belongs to another adapter and the caller did not allow replacement."""

    reason = "adapter_exists"


class QueueFull(EngineError):
    """The waiting queue is at its bound; `retry_after_s` estimates when it will have room."""

    reason: ClassVar[RejectReason] = "queue_full"

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class TryAgain(EngineError):
    """What a request needs failed by no fault of its own; it may be sent again after `retry_after_s`."""

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class EngineUnavailable(EngineError):
    """The engine process is starting, dead or hung."""


class HandedBack(EngineUnavailable):
    """The engine drains, and has dropped the request before its end: it can go on elsewhere."""


class FrameError(EngineError):
    """A malformed frame, or an unknown message, on a socket between processes."""


class PageShortage(EngineError):
    """No free page and nothing evictable: the sequence waits or is preempted."""


class StepTooLarge(EngineError):
    """The device has no memory for what this step computes: fewer tokens at a time may fit."""


class DeviceLost(EngineError):
    """The device fails whatever it is asked from now on: the process has to end."""
