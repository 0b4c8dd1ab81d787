"""The record of one endpoint that calls a model, and what all of them share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol

from msgspec.structs import fields

from gateway.answer import Embedded, Generated
from gateway.auth import KeyRing, Principal
from gateway.exchange.endpoint import Endpoint
from gateway.exchange.exchange import Asked, Exchange
from gateway.exchange.shape import Shape
from gateway.exchange.translation import StartTranslation, Translation
from gateway.pipeline.pipeline import Pipeline
from gateway.stored.background import BackgroundResponses
from gateway.stored.object_store import ObjectStore
from gateway.web.asgi_endpoint import Handler
from gateway.web.deadlines import Deadlines
from gateway.web.error_format import OPENAI_ERRORS, ApiFormat
from gateway.web.http_call import HttpCall
from policies.endpoints import ENDPOINTS


@dataclass(frozen=True, slots=True)
class EndpointParts:
    """What endpoints need of the rest of a worker, under one version of the policies."""

    keys: KeyRing
    pipeline: Pipeline
    objects: ObjectStore
    background: BackgroundResponses
    max_body_bytes: int
    total_timeout_s: float  # until a model is chosen, then that model's limits apply
    drops_hosted: bool = False  # leave out tools that nothing runs here


class Counting(Protocol):
    """One request to count tokens in another API's shape."""

    async def to_chat(self, body: dict[str, Any], principal: Principal) -> dict[str, Any]:
        """The body of the chat whose prompt is counted. Raises ApiError."""
        ...

    def counted(self, num_tokens: int) -> dict[str, Any]:
        """The answer."""
        ...


@dataclass(frozen=True, slots=True)
class CountPath:
    """Where an endpoint's prompts are counted; `start` makes the translation of one call."""

    path: str
    start: Callable[[EndpointParts], Callable[[HttpCall], Counting]]


@dataclass(frozen=True, kw_only=True)
class EndpointSpec(Endpoint):
    """All that is known of one endpoint; its paths and its operation's name are in `policies.endpoints`."""

    shape: Callable[[Exchange, Generated], Shape] | None = None  # of text; a translation brings its own
    encode: Callable[[Exchange, Embedded], bytes] | None = None  # an answer of vectors as a body
    translation: Callable[[EndpointParts], StartTranslation] | None = None
    errors: ApiFormat = OPENAI_ERRORS
    wrap: Callable[[EndpointParts, Handler], Handler] | None = None  # what answers some calls in its place
    others: Callable[[EndpointParts], dict[str, Handler]] | None = None  # handlers of other methods
    counts: CountPath | None = None

    @property
    def paths(self) -> tuple[str, ...]:
        """Where clients find it."""
        return ENDPOINTS[self.name].paths

    @property
    def required_fields(self) -> frozenset[str]:
        """Fields that a body must have, `model` aside."""
        return frozenset(each.name for each in fields(self.request) if each.required) - {"model"}


def new_exchange(
    endpoint: Endpoint,
    call: HttpCall,
    read_body: Callable[[], Awaitable[bytes]],
    deadlines: Deadlines,
    translation: Translation | Counting | None,
) -> Exchange:
    """The exchange of a call that begins."""
    asked = Asked(
        request_id=call.request_id,
        endpoint=endpoint,
        telemetry=call.telemetry,
        read_body=read_body,
        deadlines=deadlines,
        authorization=call.authorization,
        cache_headers=call.cache_headers,
        read_header=call.read_header,
        caller=call.internal_caller,
        translate=None if translation is None else translation.to_chat,
        truncates=translation.truncates if isinstance(translation, Translation) else lambda: False,
    )
    return Exchange(asked)
