"""The seam between the pipeline and whatever answers: what a provider is asked, and its protocol."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

import msgspec

from gateway.answer import Embedded, Generated, Relayed, Usage
from gateway.requests.types import ChatRequest, CompletionRequest, EmbeddingRequest, ModelRequest
from gateway.telemetry.request import Computed
from router.log import Placement

RequestT = TypeVar("RequestT", bound=ModelRequest)


@dataclass(slots=True)
class Deaths:
    """How often engines have died or hung while they computed one request, whichever models it asked."""

    num: int = 0


class ModelCall(msgspec.Struct, Generic[RequestT], frozen=True, eq=False):
    """One request to one model: all that a provider learns of an exchange."""

    request: RequestT
    body: Mapping[str, Any]  # the same as JSON; an upstream gets it with `model` replaced
    request_id: str
    tenant_salt: str = ""  # keeps one tenant's KV pages from another's
    trace_headers: Mapping[str, str] = msgspec.field(default_factory=dict)  # W3C; empty when not traced
    priority: int = 0  # in the engine's queue and steps; 1: only what requests with 0 leave over
    is_translated: bool = False  # another API's request
    # The provider's, where it has begun and gives no answer.
    lost: list[Usage] = msgspec.field(default_factory=list)
    placements: list[Placement] | None = None  # the provider's, among replicas; None: not recorded
    computed: list[Computed] | None = None  # the provider's, of engines; None: not recorded
    deaths: Deaths = msgspec.field(default_factory=Deaths)
    clips_limit: bool = False  # a token limit beyond the context is as good as none, as in Anthropic's API

    @property
    def traceparent(self) -> str:
        """W3C parent of spans made elsewhere; "" when not traced."""
        return self.trace_headers.get("traceparent", "")


class Provider(Protocol):
    """What can answer. Raises `gateway.errors.ApiError` (never a bare exception) when it cannot."""

    async def chat(self, call: ModelCall[ChatRequest]) -> Generated | Relayed:
        """Answer /v1/chat/completions."""
        ...

    async def complete(self, call: ModelCall[CompletionRequest]) -> Generated | Relayed:
        """Answer /v1/completions."""
        ...

    async def embed(self, call: ModelCall[EmbeddingRequest]) -> Embedded | Relayed:
        """Answer /v1/embeddings."""
        ...


@runtime_checkable
class TokenCounter(Protocol):
    """A provider whose API counts the tokens of a prompt."""

    async def count_tokens(self, call: ModelCall[ChatRequest]) -> int:
        """The tokens of a chat's prompt. Raises `gateway.errors.ApiError`."""
        ...
