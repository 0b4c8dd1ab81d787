"""The one object that travels through the pipeline: what was asked, by whom, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from gateway.auth import ANONYMOUS, Principal
from gateway.providers.base import Usage

if TYPE_CHECKING:
    from gateway.errors import ApiError
    from gateway.openai.chat_request import ChatRequest
    from gateway.openai.completion_request import CompletionRequest
    from gateway.openai.embedding_request import EmbeddingRequest
    from gateway.pipeline.models import ServedModel
    from gateway.providers.base import Generated, Relayed

Endpoint = Literal["chat", "completions", "embeddings"]


@dataclass(slots=True, eq=False)
class Exchange:
    """One request to a model and its answer. Each field says which stage fills it.

    Times are time.perf_counter() seconds; 0.0: not yet.
    """

    request_id: str  # from `x-request-id`, or made
    endpoint: Endpoint
    received_s: float
    authorization: str = ""  # the header's value; read by authorize only, never logged
    traceparent: str = ""  # W3C header as received; "" when none
    tracestate: str = ""
    raw_body: bytes = b""
    body: dict[str, Any] = field(default_factory=dict)  # read_request: the one JSON parse; may be forwarded
    request: ChatRequest | CompletionRequest | EmbeddingRequest | None = None  # read_request: body, typed
    model_name: str = ""  # read_request: as asked for
    stream: bool = False  # read_request
    principal: Principal = ANONYMOUS  # authorize
    model: ServedModel | None = None  # choose_model
    answer: Generated | Relayed | None = None  # call_model
    usage: Usage = field(default_factory=Usage)  # call_model: the answer's own record, complete at the end
    span: Any = None  # telemetry's slot
    first_token_s: float = 0.0  # when the first piece of the answer was there
    finished_s: float = 0.0
    status: int = 200
    error: ApiError | None = None  # what the caller was told instead of, or in the middle of, an answer
    finish_reasons: list[str] = field(default_factory=list)  # one per choice that ended
    response_headers: dict[str, str] = field(default_factory=dict)  # stages may add their own
