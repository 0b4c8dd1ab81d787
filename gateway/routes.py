"""The routes of the endpoints that call models: OpenAI's APIs and Anthropic's, over one pipeline."""

from __future__ import annotations

from collections.abc import Callable

from starlette.routing import Route

from gateway.anthropic.errors import ANTHROPIC_ERRORS
from gateway.anthropic.messages import MessagesCounting, MessagesTranslation
from gateway.auth import KeyRing
from gateway.openai.count_tokens import Counting, CountTokensEndpoint
from gateway.openai.endpoint import ModelEndpoint, StartTranslation
from gateway.openai.responses.create import ResponsesCounting, ResponsesTranslation
from gateway.openai.responses.store import ResponseStore
from gateway.openai.responses.stored import StoredResponsesEndpoint
from gateway.pipeline.exchange import Endpoint
from gateway.pipeline.pipeline import Pipeline
from gateway.settings import Settings
from gateway.web.asgi_endpoint import RouteBuilder
from gateway.web.error_format import OPENAI_ERRORS, ErrorFormat
from gateway.web.http_call import HttpCall


def model_routes(
    endpoints: RouteBuilder, settings: Settings, pipeline: Pipeline, responses: ResponseStore
) -> list[Route]:
    """The endpoints that call a model, or count what it would be asked."""

    def route(
        path: str,
        endpoint: Endpoint,
        translation: StartTranslation | None = None,
        errors: ErrorFormat = OPENAI_ERRORS,
    ) -> Route:
        answer = ModelEndpoint(
            endpoint,
            pipeline,
            max_body_bytes=settings.max_body_bytes,
            total_timeout_s=settings.timeouts.total_s,
            translation=translation,
        )
        return endpoints.route("POST", path, endpoint, answer, errors)

    def count_route(
        path: str,
        endpoint: Endpoint,
        counting: Callable[[HttpCall], Counting],
        errors: ErrorFormat = OPENAI_ERRORS,
    ) -> Route:
        count = CountTokensEndpoint(
            endpoint,
            pipeline,
            max_body_bytes=settings.max_body_bytes,
            total_timeout_s=settings.timeouts.total_s,
            counting=counting,
        )
        return endpoints.route("POST", path, "tokenize", count, errors)

    return [
        count_route("/v1/messages/count_tokens", "messages", MessagesCounting, ANTHROPIC_ERRORS),
        count_route("/v1/responses/input_tokens", "responses", lambda call: ResponsesCounting(responses)),
        route("/v1/messages", "messages", MessagesTranslation, ANTHROPIC_ERRORS),
        route("/v1/responses", "responses", lambda call: ResponsesTranslation(call, responses)),
        route("/v1/chat/completions", "chat"),
        route("/v1/completions", "completions"),
        route("/v1/embeddings", "embeddings"),
    ]


def response_routes(endpoints: RouteBuilder, settings: Settings, responses: ResponseStore) -> list[Route]:
    """What a tenant may do with its stored responses."""
    stored = StoredResponsesEndpoint(KeyRing(settings.api_keys), responses)
    path = "/v1/responses/{id}"
    return [
        endpoints.methods(path, "other", {"GET": stored.show, "DELETE": stored.delete}),
        endpoints.route("GET", f"{path}/input_items", "other", stored.list_items),
        endpoints.route("POST", f"{path}/cancel", "other", stored.cancel),
    ]
