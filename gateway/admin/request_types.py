"""What /openapi.json knows of requests and answers beside the routes themselves, by path."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec

from gateway.accounting.admission import SOFT_HEADER
from gateway.admin.adapters import LoadRequest, UnloadRequest
from gateway.admin.cache import FeedbackRequest, InvalidateRequest
from gateway.admin.feedback import Feedback
from gateway.anthropic.batches import CreateMessageBatch
from gateway.anthropic.request import CountRequest, MessagesRequest
from gateway.endpoints.model_endpoint import IGNORED_FIELDS_HEADER
from gateway.endpoints.rerank.request import RERANK, RerankRequest
from gateway.openai.batches import CreateBatch
from gateway.openai.responses.request import ResponsesRequest
from gateway.pipeline.stages import screen_request
from gateway.requests import field_support
from gateway.requests.types import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    EmbeddingRequest,
    ModerationRequest,
    TokenizeRequest,
)
from gateway.response_cache import directives, hit_token
from gateway.routing import decision_token, exposed
from gateway.stored.conversations import NewConversation, NewItems
from gateway.stored.objects_endpoint import NewMetadata
from policies.endpoints import ENDPOINTS

_QUESTION = "What is 17 + 25?"
_ASKED = [{"role": "user", "content": _QUESTION}]
_RANKED = {"query": "a mill", "documents": ["a river turns it", "a bank lends"]}


class Body(NamedTuple):
    """The body of a POST; where a model is called also what for, and an example beside `model`."""

    kind: type[msgspec.Struct]
    summary: str = ""
    example: Mapping[str, Any] = MappingProxyType({})


BODIES: Mapping[str, Body] = {
    "/v1/chat/completions": Body(ChatRequest, "Answer a conversation.", {"messages": _ASKED}),
    "/v1/chat/completions/{id}": Body(NewMetadata),
    "/v1/responses": Body(ResponsesRequest, "Answer a request of the Responses API.", {"input": _QUESTION}),
    "/v1/responses/input_tokens": Body(ResponsesRequest, "Count a request's tokens.", {"input": _QUESTION}),
    "/v1/conversations": Body(NewConversation),
    "/v1/conversations/{id}": Body(NewMetadata),
    "/v1/conversations/{id}/items": Body(NewItems),
    "/v1/messages": Body(
        MessagesRequest, "Answer a conversation of Anthropic's API.", {"max_tokens": 256, "messages": _ASKED}
    ),
    "/v1/messages/count_tokens": Body(CountRequest, "Count a request's tokens.", {"messages": _ASKED}),
    "/v1/messages/batches": Body(CreateMessageBatch),
    "/v1/completions": Body(CompletionRequest, "Continue a text.", {"prompt": "17 + 25 =", "max_tokens": 8}),
    "/v1/embeddings": Body(EmbeddingRequest, "Turn texts into vectors.", {"input": "a mill by the river"}),
    **dict.fromkeys(
        ENDPOINTS["rerank"].paths, Body(RerankRequest, "Sort documents by how well they answer.", _RANKED)
    ),
    "/v1/moderations": Body(ModerationRequest),
    "/v1/batches": Body(CreateBatch),
    "/v1/load_lora_adapter": Body(LoadRequest),
    "/v1/unload_lora_adapter": Body(UnloadRequest),
    "/v1/feedback": Body(Feedback),
    "/v1/cache/invalidate": Body(InvalidateRequest),
    "/v1/cache/feedback": Body(FeedbackRequest),
    "/tokenize": Body(TokenizeRequest),
    "/detokenize": Body(DetokenizeRequest),
}
"""Other paths take none, or a JSON object of their own."""

RULES: Mapping[type[msgspec.Struct], Mapping[str, field_support.Rule]] = {
    ChatRequest: field_support.CHAT,
    CompletionRequest: field_support.COMPLETIONS,
    EmbeddingRequest: field_support.EMBEDDINGS,
    RerankRequest: RERANK,
}
"""What our own engines do with each field."""

MEDIA = {
    "/metrics": "text/plain",
    "/v1/files/{id}/content": "application/octet-stream",
    "/v1/messages/batches/{id}/results": "application/x-jsonl",
}
"""Answers of GET that are not JSON."""

REQUEST_HEADERS = {
    "x-request-id": "An id of your own for this request, in logs and traces.",
    "traceparent": "W3C trace context: the gateway's spans become its children.",
    directives.HEADER: "What the response cache may not do: no-cache, no-store, only, max-age=SECONDS.",
}
RESPONSE_HEADERS = {
    "x-request-id": "The request's id.",
    "x-penstock-policy": "The version of the policies that decided.",
    exposed.ROUTE_HEADER: "The route that was asked for, where the policies say `routing.expose`.",
    exposed.MODEL_HEADER: "The model that answers.",
    exposed.REASON_HEADER: "Why that one.",
    exposed.ATTEMPTS_HEADER: "How many calls of models there were.",
    directives.HEADER: "What the cache did.",
    "x-penstock-cache-entry": "The stored answer, to invalidate or judge it.",
    hit_token.HEADER: "The question of a semantic hit, to judge it.",
    decision_token.HEADER: "The router's decision, to judge the answer.",
    screen_request.HEADER: "What the guardrails found: categories, never the text.",
    IGNORED_FIELDS_HEADER: "Fields that had no effect.",
    SOFT_HEADER: "A limit that warns and has been passed.",
}
