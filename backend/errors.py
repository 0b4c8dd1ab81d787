"""The engine's errors.

EngineError
├── CheckpointError        a checkpoint cannot be served: missing, broken or unsupported (at start)
├── RequestError           this request cannot be served; the sentence goes to the user
│   ├── PromptTooLong      prompt + max_tokens exceed the context or the KV memory
│   ├── AdapterGone        the adapter that a request names has no name any more
│   └── TemplateError      the chat template refused the messages
├── AdapterError           an adapter cannot be served: missing, broken, or made for another base
│   └── AdapterExists      a name is an adapter's already, and was not to be given to another
├── QueueFull              the queue bound is reached: try again later
├── EngineUnavailable      no engine process answers: starting, dead or hung
├── FrameError             bytes on a socket that are no frame or no known message; the connection ends
└── PageShortage           no free page and nothing evictable (inside the engine only)
"""

from __future__ import annotations


class EngineError(Exception):
    """Base of everything that the engine raises on purpose."""


class CheckpointError(EngineError):
    """A checkpoint that cannot be served; the message is one sentence with the path and the remedy."""


class RequestError(EngineError):
    """A request that can never be served; `param` names the API field at fault, when there is one."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class PromptTooLong(RequestError):
    """The prompt, or prompt + max_tokens, exceeds the model's context or the whole KV memory."""


class AdapterGone(RequestError):
    """The adapter is not, or no longer, loaded; what has its name now may be another."""


class TemplateError(RequestError):
    """The chat template refused these messages."""


class AdapterError(EngineError):
    """An adapter that cannot be served, or is not known; the message names what is wrong and the remedy."""


class AdapterExists(AdapterError):
    """The name is an adapter's already, and who loaded asked not to replace it."""


class QueueFull(EngineError):
    """The waiting queue is at its bound."""

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class EngineUnavailable(EngineError):
    """The engine's process is starting, dead or hung."""


class FrameError(EngineError):
    """Bytes on a socket between processes that are no frame, or a frame that holds no known message."""


class PageShortage(EngineError):
    """No free page and nothing evictable: the sequence waits or is preempted."""
