"""The routes of the endpoints that call models: OpenAI's APIs and Anthropic's, over one pipeline."""

from __future__ import annotations

from collections.abc import Callable, Collection

from starlette.routing import Route

from gateway.anthropic.batches import MessageBatchesEndpoint
from gateway.anthropic.errors import ANTHROPIC_ERRORS
from gateway.batches.service import BatchService
from gateway.endpoints.count_tokens import CountTokensEndpoint
from gateway.endpoints.model_endpoint import ModelEndpoint
from gateway.endpoints.passthrough import PASSTHROUGH_METHODS, PassthroughEndpoint
from gateway.endpoints.spec import EndpointParts
from gateway.endpoints.specs import SPECS
from gateway.exchange.model_table import ModelTable
from gateway.openai.batches import BatchesEndpoint
from gateway.openai.files import FilesEndpoint
from gateway.openai.moderations import ModerationsEndpoint
from gateway.providers.upstream.forwarding import Forwarder
from gateway.screening.guards import Guards
from gateway.stored.chats import StoredChatsEndpoint
from gateway.stored.conversations import ConversationsEndpoint
from gateway.stored.objects_endpoint import ObjectsEndpoint
from gateway.stored.responses import StoredResponsesEndpoint
from gateway.web.asgi_endpoint import Handler, RouteBuilder
from policies.batches import BatchesSection
from policies.document import Policies

MODERATIONS = "/v1/moderations"


def model_routes(endpoints: RouteBuilder, parts: EndpointParts, passed: Collection[str]) -> list[Route]:
    """The endpoints that call a model or count, without the paths that passthrough has taken."""
    routes, counting = [], []
    for spec in SPECS:
        answer: Handler = ModelEndpoint(spec, parts)
        if spec.wrap is not None:
            answer = spec.wrap(parts, answer)
        handlers = {"POST": answer} | (spec.others(parts) if spec.others is not None else {})
        routes += [
            endpoints.methods(path, spec.name, handlers, spec.errors, labelled="POST")
            for path in spec.paths
            if path not in passed
        ]
        if spec.counts is not None:
            count = CountTokensEndpoint(spec, spec.counts, parts)
            counting.append(endpoints.route("POST", spec.counts.path, "tokenize", count, spec.errors))
    return routes + counting


def object_routes(endpoints: RouteBuilder, parts: EndpointParts) -> list[Route]:
    """What a tenant may do with its stored responses, conversations and chats."""
    keys, objects = parts.keys, parts.objects
    stored = StoredResponsesEndpoint(keys, objects, parts.background)
    chats = StoredChatsEndpoint(keys, objects)
    talks = ConversationsEndpoint(keys, objects, max_body_bytes=parts.max_body_bytes)
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
    endpoints: RouteBuilder, parts: EndpointParts, policies: Policies, guards: Guards
) -> list[Route]:
    """/v1/moderations, where no upstream answers it."""
    if MODERATIONS in policies.passthrough:
        return []
    moderations = ModerationsEndpoint(
        *(parts.keys, guards.moderation, parts.pipeline.admission, policies.guardrails.moderations),
        max_body_bytes=parts.max_body_bytes,
        total_timeout_s=parts.total_timeout_s,
    )
    return [endpoints.route("POST", MODERATIONS, "other", moderations.create)]


def passthrough_routes(
    endpoints: RouteBuilder,
    parts: EndpointParts,
    policies: Policies,
    models: ModelTable,
    forwarder: Callable[[str], Forwarder],
) -> list[Route]:
    """Paths that go to an upstream as they are; the longer of two that match comes first."""
    routes = []
    for path in sorted(policies.passthrough, key=len, reverse=True):
        rule = policies.passthrough[path]
        answer = PassthroughEndpoint(
            parts.keys, parts.pipeline, forwarder(rule.model), rule, models.models[rule.model]
        )
        handlers = dict.fromkeys(PASSTHROUGH_METHODS, answer)
        routes += [
            endpoints.methods(each, "passthrough", handlers) for each in (path, f"{path}/{{rest:path}}")
        ]
    return routes


def batch_routes(
    endpoints: RouteBuilder, parts: EndpointParts, service: BatchService, policy: BatchesSection
) -> list[Route]:
    """Files, and batches of requests."""
    keys = parts.keys
    files = FilesEndpoint(keys, service.files, policy)
    batches = BatchesEndpoint(keys, service.batches, policy, service.runner.wake)
    talks = MessageBatchesEndpoint(
        *(keys, service.batches, service.files, policy, service.runner.wake),
        max_body_bytes=parts.max_body_bytes,
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
