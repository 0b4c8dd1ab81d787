"""The endpoints that call a model, one record each. `policies.endpoints` has their order and paths."""

from __future__ import annotations

from functools import partial

from gateway.anthropic.errors import ANTHROPIC_ERRORS
from gateway.anthropic.messages import MessagesCounting, MessagesTranslation
from gateway.endpoints.rerank.answer import ask_to_rank, ranking
from gateway.endpoints.rerank.request import RerankRequest
from gateway.endpoints.responses.create import ResponsesCounting, ResponsesTranslation
from gateway.endpoints.responses.endpoint import ResponsesEndpoint
from gateway.endpoints.spec import CountPath, EndpointParts, EndpointSpec
from gateway.exchange.endpoint import CHAT as ASKED_CHAT
from gateway.exchange.endpoint import ask_chat
from gateway.openai.chat import chat_shape
from gateway.openai.completions import completion_shape
from gateway.openai.embeddings import embeddings_answer
from gateway.requests.types import ChatRequest, CompletionRequest, EmbeddingRequest
from gateway.stored.chat_storing import ChatStoring
from gateway.stored.chats import StoredChatsEndpoint
from gateway.web.asgi_endpoint import Handler


def _responses(parts: EndpointParts, now: Handler) -> Handler:
    return ResponsesEndpoint(
        *(parts.keys, parts.objects, parts.background, now, parts.pipeline.admission),
        max_body_bytes=parts.max_body_bytes,
        drops_hosted=parts.drops_hosted,
    )


CHAT = EndpointSpec(
    name=ASKED_CHAT.name,
    request=ASKED_CHAT.request,
    ask=ASKED_CHAT.ask,
    shape=chat_shape,
    translation=lambda parts: lambda _: ChatStoring(parts.objects),
    others=lambda parts: {"GET": StoredChatsEndpoint(parts.keys, parts.objects).list},
)
RESPONSES = EndpointSpec(
    name="responses",
    request=ChatRequest,
    ask=ask_chat,
    is_translated=True,
    translation=lambda parts: partial(
        ResponsesTranslation, store=parts.objects, drops_hosted=parts.drops_hosted
    ),
    wrap=_responses,
    counts=CountPath(
        "/v1/responses/input_tokens",
        lambda parts: partial(ResponsesCounting, store=parts.objects, drops_hosted=parts.drops_hosted),
    ),
)
MESSAGES = EndpointSpec(
    name="messages",
    request=ChatRequest,
    ask=ask_chat,
    is_translated=True,
    clips_limit=True,
    translation=lambda parts: partial(MessagesTranslation, drops_hosted=parts.drops_hosted),
    errors=ANTHROPIC_ERRORS,
    counts=CountPath(
        "/v1/messages/count_tokens",
        lambda parts: partial(MessagesCounting, drops_hosted=parts.drops_hosted),
    ),
)
COMPLETIONS = EndpointSpec(
    name="completions",
    request=CompletionRequest,
    ask=lambda provider, call: provider.complete(call),
    shape=completion_shape,
)
EMBEDDINGS = EndpointSpec(
    name="embeddings",
    request=EmbeddingRequest,
    ask=lambda provider, call: provider.embed(call),
    encode=embeddings_answer,
)
RERANK = EndpointSpec(name="rerank", request=RerankRequest, ask=ask_to_rank, encode=ranking)

SPECS = (CHAT, RESPONSES, MESSAGES, COMPLETIONS, EMBEDDINGS, RERANK)


def spec_of(body: dict[str, object]) -> EndpointSpec:
    """The endpoint whose required fields a body without a URL has; else chat."""
    untranslated = (spec for spec in reversed(SPECS) if not spec.is_translated)
    return next((spec for spec in untranslated if spec.required_fields <= body.keys()), CHAT)
