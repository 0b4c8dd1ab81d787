"""The routes of the endpoints that call models: OpenAI's APIs and Anthropic's, over one pipeline."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from starlette.routing import Route

from gateway.anthropic.batches import MessageBatchesEndpoint
from gateway.anthropic.errors import ANTHROPIC_ERRORS
from gateway.anthropic.messages import MessagesCounting, MessagesTranslation
from gateway.auth import key_ring
from gateway.batches.service import BatchService
from gateway.endpoints.count_tokens import Counting, CountTokensEndpoint
from gateway.endpoints.model_endpoint import ModelEndpoint
from gateway.endpoints.passthrough import PASSTHROUGH_METHODS, PassthroughEndpoint
from gateway.endpoints.responses.create import ResponsesCounting, ResponsesTranslation
from gateway.endpoints.responses.endpoint import ResponsesEndpoint
from gateway.exchange.exchange import Endpoint
from gateway.exchange.translation import StartTranslation
from gateway.openai.batches import BatchesEndpoint
from gateway.openai.files import FilesEndpoint
from gateway.openai.moderations import ModerationsEndpoint
from gateway.pipeline.pipeline import Pipeline
from gateway.pipeline.stages.admit import Admit
from gateway.providers.upstream.forwarding import Forwarder
from gateway.screening.guard import Guards
from gateway.settings import Settings
from gateway.stored.background import BackgroundResponses
from gateway.stored.chat_storing import ChatStoring
from gateway.stored.chats import StoredChatsEndpoint
from gateway.stored.conversations import ConversationsEndpoint
from gateway.stored.object_store import ObjectStore
from gateway.stored.objects_endpoint import ObjectsEndpoint
from gateway.stored.responses import StoredResponsesEndpoint
from gateway.web.asgi_endpoint import Handler, RouteBuilder
from gateway.web.error_format import OPENAI_ERRORS, ApiFormat
from gateway.web.http_call import HttpCall
from policies.batches import BatchesSection
from policies.document import Policies
from policies.passthrough import PassthroughRule

MODERATIONS = "/v1/moderations"


def model_routes(
    endpoints: RouteBuilder,
    settings: Settings,
    pipeline: Pipeline,
    objects: ObjectStore,
    background: BackgroundResponses,
    *,
    drops_hosted: bool = False,
) -> list[Route]:
    """The endpoints that call a model or count; `drops_hosted`: leave out tools that nothing runs here."""
    keys, max_body_bytes = key_ring(settings), settings.max_body_bytes
    chats = StoredChatsEndpoint(keys, objects)
    bounded = partial(ModelEndpoint, max_body_bytes=max_body_bytes, total_timeout_s=settings.timeouts.total_s)

    def route(
        path: str,
        endpoint: Endpoint,
        translation: StartTranslation | None = None,
        errors: ApiFormat = OPENAI_ERRORS,
        **others: Handler,
    ) -> Route:
        answer: Handler = bounded(endpoint, pipeline, translation=translation)
        if endpoint == "responses":
            answer = ResponsesEndpoint(
                *(keys, objects, background, answer, pipeline.admit),
                max_body_bytes=max_body_bytes,
                drops_hosted=drops_hosted,
            )
        return endpoints.methods(path, endpoint, {"POST": answer, **others}, errors, labelled="POST")

    def count_route(
        path: str,
        endpoint: Endpoint,
        counting: Callable[[HttpCall], Counting],
        errors: ApiFormat = OPENAI_ERRORS,
    ) -> Route:
        count = CountTokensEndpoint(
            endpoint,
            pipeline,
            max_body_bytes=settings.max_body_bytes,
            total_timeout_s=settings.timeouts.total_s,
            counting=counting,
        )
        return endpoints.route("POST", path, "tokenize", count, errors)

    messages = partial(MessagesTranslation, drops_hosted=drops_hosted)
    counting_messages = partial(MessagesCounting, drops_hosted=drops_hosted)
    responses = partial(ResponsesTranslation, store=objects, drops_hosted=drops_hosted)
    counting = partial(ResponsesCounting, store=objects, drops_hosted=drops_hosted)
    # Those that are called most come first: every route before costs half a microsecond.
    return [
        route("/v1/chat/completions", "chat", lambda _: ChatStoring(objects), GET=chats.list),
        route("/v1/responses", "responses", responses),
        route("/v1/messages", "messages", messages, ANTHROPIC_ERRORS),
        route("/v1/completions", "completions"),
        route("/v1/embeddings", "embeddings"),
        count_route("/v1/messages/count_tokens", "messages", counting_messages, ANTHROPIC_ERRORS),
        count_route("/v1/responses/input_tokens", "responses", counting),
    ]


def object_routes(
    endpoints: RouteBuilder, settings: Settings, objects: ObjectStore, background: BackgroundResponses
) -> list[Route]:
    """What a tenant may do with its stored responses, conversations and chats."""
    keys = key_ring(settings)
    stored, chats = StoredResponsesEndpoint(keys, objects, background), StoredChatsEndpoint(keys, objects)
    talks = ConversationsEndpoint(keys, objects, max_body_bytes=settings.max_body_bytes)
    path, chat, talk = "/v1/responses/{id}", "/v1/chat/completions/{id}", "/v1/conversations/{id}"

    def crud(of: ObjectsEndpoint) -> dict[str, Handler]:
        return {"GET": of.show, "POST": of.update, "DELETE": of.delete}

    return [
        endpoints.route("POST", "/v1/conversations", "other", talks.create),
        endpoints.methods(talk, "other", crud(talks)),
        endpoints.methods(f"{talk}/items", "other", {"GET": talks.list_items, "POST": talks.add_items}),
        endpoints.methods(
            f"{talk}/items/{{item_id}}", "other", {"GET": talks.show_item, "DELETE": talks.delete_item}
        ),
        endpoints.methods(chat, "other", crud(chats)),
        endpoints.route("GET", f"{chat}/messages", "other", chats.list_messages),
        endpoints.methods(path, "other", {"GET": stored.show, "DELETE": stored.delete}),
        endpoints.route("GET", f"{path}/input_items", "other", stored.list_items),
        endpoints.route("POST", f"{path}/cancel", "other", stored.cancel),
    ]


def moderation_routes(
    endpoints: RouteBuilder, settings: Settings, policies: Policies, guards: Guards, admit: Admit
) -> list[Route]:
    """/v1/moderations, where no upstream answers it."""
    if MODERATIONS in policies.passthrough:
        return []
    moderations = ModerationsEndpoint(
        key_ring(settings),
        guards.moderation,
        admit,
        policies.guardrails.moderations,
        max_body_bytes=settings.max_body_bytes,
        total_timeout_s=settings.timeouts.total_s,
    )
    return [endpoints.route("POST", MODERATIONS, "other", moderations.create)]


def passthrough_routes(
    endpoints: RouteBuilder,
    settings: Settings,
    rules: Mapping[str, PassthroughRule],
    admit: Admit,
    forwarder: Callable[[str], Forwarder],
) -> list[Route]:
    """Paths that go to an upstream as they are; the longer of two that match comes first."""
    routes = []
    for path in sorted(rules, key=len, reverse=True):
        rule = rules[path]
        answer = PassthroughEndpoint(key_ring(settings), admit, forwarder(rule.model), rule)
        handlers = dict.fromkeys(PASSTHROUGH_METHODS, answer)
        routes += [
            endpoints.methods(each, "passthrough", handlers) for each in (path, f"{path}/{{rest:path}}")
        ]
    return routes


def batch_routes(
    endpoints: RouteBuilder, settings: Settings, service: BatchService, policy: BatchesSection
) -> list[Route]:
    """Files, and batches of requests."""
    keys = key_ring(settings)
    files = FilesEndpoint(keys, service.files, policy)
    batches = BatchesEndpoint(keys, service.batches, policy, service.runner.wake)
    talks = MessageBatchesEndpoint(
        *(keys, service.batches, service.files, policy, service.runner.wake),
        max_body_bytes=settings.max_body_bytes,
    )
    path, errors = "/v1/messages/batches", ANTHROPIC_ERRORS
    return [
        endpoints.methods(path, "other", {"GET": talks.list, "POST": talks.create}, errors),
        endpoints.methods(f"{path}/{{id}}", "other", {"GET": talks.show, "DELETE": talks.delete}, errors),
        endpoints.route("GET", f"{path}/{{id}}/results", "other", talks.results, errors),
        endpoints.route("POST", f"{path}/{{id}}/cancel", "other", talks.cancel, errors),
        endpoints.methods("/v1/files", "other", {"GET": files.list, "POST": files.upload}),
        endpoints.methods("/v1/files/{id}", "other", {"GET": files.show, "DELETE": files.delete}),
        endpoints.route("GET", "/v1/files/{id}/content", "other", files.content),
        endpoints.methods("/v1/batches", "other", {"GET": batches.list, "POST": batches.create}),
        endpoints.route("GET", "/v1/batches/{id}", "other", batches.show),
        endpoints.route("POST", "/v1/batches/{id}/cancel", "other", batches.cancel),
    ]
