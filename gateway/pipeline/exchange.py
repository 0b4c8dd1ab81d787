"""The one object that travels through the pipeline: what was asked, by whom, and what came of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from gateway.auth import ANONYMOUS, Principal
from gateway.providers.base import Usage

if TYPE_CHECKING:
    from gateway.errors import ApiError
    from gateway.pipeline.models import ServedModel
    from gateway.providers.base import Generated, Relayed
    from gateway.requests.types import ChatRequest, CompletionRequest, EmbeddingRequest
    from gateway.telemetry.request import RequestTelemetry
    from gateway.web.deadlines import Watch

Endpoint = Literal["chat", "completions", "embeddings"]


@dataclass(slots=True, eq=False)
class Exchange:
    """One request to a model and its answer. Each field says who fills it."""

    request_id: str  # from `x-request-id`, or made
    endpoint: Endpoint
    telemetry: RequestTelemetry
    read_body: Callable[[], Awaitable[bytes]]  # read_request calls it once; raises BodyTooLarge or ClientGone
    watch: Watch  # call_model hands it the model's limits
    authorization: str = ""  # the header's value; authorize reads it, nobody logs it
    principal: Principal = ANONYMOUS  # authorize
    body: dict[str, Any] = field(default_factory=dict)  # read_request: the one JSON parse
    request: ChatRequest | CompletionRequest | EmbeddingRequest | None = None  # read_request: body, typed
    model: ServedModel | None = None  # choose_model
    answer: Generated | Relayed | None = None  # call_model
    usage: Usage = field(default_factory=Usage)  # call_model: the answer's own record, complete at the end
    finish_reasons: list[str] = field(default_factory=list)  # one per choice that ended; filled as it is sent
    response_id: str = ""  # set when the answer is shaped; "" for relayed ones
    error: ApiError | None = None  # what the caller was told instead of, or in the middle of, an answer
    response_headers: dict[str, str] = field(default_factory=dict)  # stages may add their own
