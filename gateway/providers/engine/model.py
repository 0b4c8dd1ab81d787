"""One name that an engine answers to: its base model or a LoRA adapter on it."""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from dataclasses import dataclass, replace

from backend.server.engine_client import EngineClient
from backend.server.engine_messages import Hello
from gateway.errors import NotFound, Unavailable, retry_after

RETRY_S = 2.0
"""What a client is told to wait while the engine starts or restarts."""


@dataclass(frozen=True, slots=True)
class EngineModel:
    """Which weights of the engine answer, whether they are loaded, and the errors while they are not."""

    client: EngineClient
    name: str  # as callers know it
    adapter: str = ""  # the adapter's name in the engine; "": the base model
    peers: Collection[EngineClient] = ()  # all engines, of these and other weights; `client` may be one

    @property
    def is_loaded(self) -> bool:
        """False when the engine has listed its adapters and this one is not among them."""
        return not self.adapter or self.client.has_adapter(self.adapter)

    def check_loaded(self) -> None:
        """Raise NotFound unless `is_loaded`."""
        if not self.is_loaded:
            raise self.not_loaded()

    def hello(self) -> Hello:
        """What the engine serves. Raises Unavailable when it does not answer."""
        hello = self.client.hello
        if hello is None or not self.client.ready:
            raise self.unavailable()
        return hello

    def adapter_digest(self) -> str:
        """SHA-256 of the adapter's weights, "" for the base model. Raises NotFound or Unavailable."""
        if not self.adapter:
            return ""
        self.check_loaded()
        info = self.client.adapters.get(self.adapter)
        if info is None:
            raise self.unavailable()
        return info.digest

    def weights(self) -> tuple[str, ...]:
        """What must be equal for another engine to go on with a text. Raises NotFound or Unavailable."""
        hello, digest = self.client.hello, self.adapter_digest()
        if hello is None:
            return ("", digest)
        numbers = (hello.dtype, hello.kv_dtype, hello.device, str(hello.max_model_tokens))
        return (hello.revision, digest, *numbers)

    def elsewhere(self, weights: tuple[str, ...]) -> EngineModel | None:
        """The same weights on another engine that is ready; None if there is none."""
        others = [client for client in self.peers if client.ready and client is not self.client]
        for client in sorted(others, key=_load):
            names = [name for name, info in client.adapters.items() if info.digest == weights[1]]
            other = replace(self, client=client, adapter=names[0] if names else "")
            if other.weights() == weights:
                return other
        return None

    @property
    def fingerprint(self) -> str | None:
        """Identifies weights and arithmetic in answers; None while the engine is away."""
        hello, info = self.client.hello, self.client.adapters.get(self.adapter)
        if hello is None or not hello.revision:
            return None
        facts = hello.revision, "" if info is None else info.digest, hello.dtype, hello.kv_dtype, hello.device
        return f"fp_{hashlib.sha256(' '.join(facts).encode()).hexdigest()[:12]}"

    def not_loaded(self) -> NotFound:
        """The error for an adapter that is not loaded."""
        why = "its adapter is not loaded"
        if self.adapter in self.client.adapter_names:
            why = "its adapter's files are gone, or have changed since it was loaded. Load it again"
        message = f"The model {self.name!r} does not exist: {why}."
        return NotFound(message, param="model", code="model_not_found")

    def unavailable(self) -> Unavailable:
        """The error while the engine does not answer."""
        # The engine client's own message names a socket path, which is no business of callers.
        return Unavailable(
            f"The model {self.name!r} cannot answer now: its engine is starting or restarting. Try again.",
            headers=retry_after(RETRY_S),
        )


def _load(client: EngineClient) -> int:
    """Its sequences, with those of this process that its last heartbeat has not counted yet."""
    return max(client.stats.num_waiting + client.stats.num_running, client.num_streams)
