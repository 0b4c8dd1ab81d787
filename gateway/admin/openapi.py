"""GET /openapi.json: what is served, from the routes, their handlers' docstrings and typed requests."""

from __future__ import annotations

import asyncio
import inspect
import re
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import msgspec
from starlette.routing import Route

from gateway.admin.request_types import BODIES, MEDIA, REQUEST_HEADERS, RESPONSE_HEADERS, RULES, Body
from gateway.auth import KeyRing
from gateway.endpoints.passthrough import PassthroughEndpoint
from gateway.errors import ApiError
from gateway.web.asgi_endpoint import AsgiEndpoint, Handler
from gateway.web.error_format import OPENAI_ERRORS
from gateway.web.http_call import HttpCall, etag_of

Json = dict[str, Any]

TAGS = (
    ("/v1/messages", "Anthropic"),
    ("/v1/(responses|conversations)", "Responses and conversations"),
    ("/v1/(files|batches)", "Files and batches"),
    ("/v1/(cache|feedback|usage)", "Cache, feedback and usage"),
    ("/(v1|v2|rerank|tokenize|detokenize)", "Models"),
    ("/admin", "Administration"),
    ("", "Health and pages"),
)
_COMMENT = re.compile(r"(?m)^    (\w+): .*?  # (.+)$")
_RAISES = re.compile(r"(?s)\bRaises \w.*")
_JSON = "application/json"
_TEXT: Json = {"type": "string"}
_OBJECT: Json = {"type": "object"}


class OpenApiEndpoint:
    """The document of one version of the policies, made when it is first asked for."""

    def __init__(self, keys: KeyRing, routes: Sequence[Route], version: str) -> None:
        """`routes` are read then: later ones are in it too."""
        self._keys = keys
        self._routes = routes
        self._version = version
        self._made: tuple[bytes, str] | None = None

    async def show(self, call: HttpCall) -> None:
        """This document; where there are API keys, for every caller with one."""
        self._keys.identify(call.authorization)
        if self._made is None:
            made = await asyncio.to_thread(document, self._routes, self._version)  # a tenth of a second
            body = msgspec.json.encode(made)
            self._made = body, etag_of(body)
        await call.respond_known(*self._made, headers={"cache-control": "no-cache"})


def document(routes: Sequence[Route], version: str) -> Json:
    """The OpenAPI document of these routes; paths that passthrough takes are another API's."""
    paths: dict[str, Json] = {}
    for route in routes:
        endpoint = route.endpoint
        if not isinstance(endpoint, AsgiEndpoint):
            continue
        for method, handler in endpoint.handlers.items():
            if not isinstance(handler, PassthroughEndpoint):
                path = route.path.replace(":path}", "}")
                errors = "Error" if endpoint.error_format is OPENAI_ERRORS else "AnthropicError"
                paths.setdefault(path, {})[method.lower()] = _operation(method, path, handler, errors)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Penstock", "version": version, "description": _errors()},
        "servers": [{"url": "."}],
        "security": [{"bearer": []}],
        "tags": [{"name": name} for _, name in TAGS],
        "paths": paths,
        "components": _components(),
    }


def _operation(method: str, path: str, handler: Handler, errors: str) -> Json:
    body = BODIES.get(path) if method == "POST" else None
    described = _described(handler) or _described(type(getattr(handler, "__self__", handler)))
    summary = (body.summary if body else "") or described.partition("\n")[0]
    is_call = body is not None and bool(body.summary)
    operation: Json = {
        "operationId": f"{method.lower()} {path}",
        "tags": [next(name for start, name in TAGS if re.match(start, path))],
        "summary": summary,
        "parameters": list(_parameters(method, path, summary, is_call=is_call)),
        "responses": {
            "200": {
                "description": "The answer.",
                "headers": {
                    name: {"$ref": f"#/components/headers/{name}"}
                    for name in (RESPONSE_HEADERS if is_call else list(RESPONSE_HEADERS)[:2])
                },
                "content": _content(method, path, handler, summary, body),
            },
            "default": {"$ref": f"#/components/responses/{errors}"},
        },
    }
    if "\n" in described and not is_call:
        operation["description"] = described
    if method == "POST":
        operation["requestBody"] = _request_body(path, body)
    if _is_page(handler) or handler.__module__ == "gateway.admin.health":
        operation["security"] = [{}]
    return operation


def _described(what: object) -> str:
    """Its docstring without the exceptions: the responses tell of errors."""
    return _RAISES.sub("", inspect.getdoc(what) or "").strip()


def _is_page(handler: Handler) -> bool:
    return handler.__module__ == "gateway.console.pages"


def _parameters(method: str, path: str, summary: str, *, is_call: bool) -> Iterator[Json]:
    for name in re.findall(r"{(\w+)}", path):
        yield {"name": name, "in": "path", "required": True, "schema": _TEXT}
    for name in re.findall(r"`(\w+)(?:=\w+)?`", summary) if method == "GET" else ():
        yield {"name": name, "in": "query", "schema": _TEXT}
    for name in REQUEST_HEADERS if is_call else ():
        yield {"$ref": f"#/components/parameters/{name}"}


def _content(method: str, path: str, handler: Handler, summary: str, body: Body | None) -> Json:
    kind = "text/html" if _is_page(handler) else MEDIA.get(path, _JSON) if method == "GET" else _JSON
    content: Json = {kind: {"schema": _OBJECT if kind == _JSON else {}}}
    if "stream" in body.kind.__struct_fields__ if body else re.search(r"\b(events|stream)\b", summary):
        content["text/event-stream"] = {"schema": _TEXT}
    return content


def _request_body(path: str, body: Body | None) -> Json:
    if path == "/v1/files":
        form = _record(file={"type": "string", "format": "binary"}, purpose=_TEXT)
        return {"required": True, "content": {"multipart/form-data": {"schema": form}}}
    content: Json = {"schema": _OBJECT}
    if body is not None:
        content["schema"] = {"$ref": f"#/components/schemas/{_names()[body.kind]}"}
        if body.example:
            content["example"] = {"model": "auto", **body.example}
    return {"required": body is not None, "content": {_JSON: content}}


@cache
def _kinds() -> list[type[msgspec.Struct]]:
    return list(dict.fromkeys(body.kind for body in BODIES.values()))


@cache
def _schemas() -> tuple[tuple[Json, ...], Json]:
    template = "#/components/schemas/{name}"
    return msgspec.json.schema_components(_kinds(), ref_template=template)


@cache
def _names() -> dict[type[msgspec.Struct], str]:
    return {kind: ref["$ref"].rpartition("/")[2] for kind, ref in zip(_kinds(), _schemas()[0], strict=True)}


@cache
def _components() -> Json:
    """Schemas of requests, fields described by the tables of supported fields or by their comments."""
    schemas: Json = dict(_schemas()[1])
    for kind, name in _names().items():
        for field, text in (_comments(kind) | _verdicts(kind)).items():
            if field in schemas[name]["properties"]:
                schemas[name]["properties"][field]["description"] = text
    nullable = {"type": ["string", "null"]}
    fields = {"message": _TEXT, "type": _TEXT, "param": nullable, "code": nullable}
    schemas["Error"] = _record(error=_record(**fields))
    fields = {"type": _TEXT, "message": _TEXT}
    schemas["AnthropicError"] = _record(type=_TEXT, error=_record(**fields), request_id=_TEXT)
    return {
        "schemas": schemas,
        "headers": {name: {"description": text, "schema": _TEXT} for name, text in RESPONSE_HEADERS.items()},
        "parameters": {
            name: {"name": name, "in": "header", "description": text, "schema": _TEXT}
            for name, text in REQUEST_HEADERS.items()
        },
        "responses": {name: _error(name) for name in ("Error", "AnthropicError")},
        "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
    }


def _error(schema: str) -> Json:
    return {
        "description": "An error: its status and type say which, its message the remedy.",
        "headers": {"x-request-id": {"$ref": "#/components/headers/x-request-id"}},
        "content": {_JSON: {"schema": {"$ref": f"#/components/schemas/{schema}"}}},
    }


def _record(**fields: Json) -> Json:
    return {"type": "object", "properties": fields, "required": list(fields)}


def _comments(kind: type[msgspec.Struct]) -> dict[str, str]:
    """The comments beside the fields of a record and of those that it extends."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if base.__module__.startswith("gateway."):
            source = inspect.getsource(sys.modules[base.__module__])  # of the class alone: a parse each time
            own = re.search(rf"(?ms)^class {base.__name__}\(.*?(?=^\S|\Z)", source)
            found |= dict(_COMMENT.findall(own[0] if own else ""))
    return found


def _verdicts(kind: type[msgspec.Struct]) -> dict[str, str]:
    """What our engines do with each field, where that is not just to honour it."""
    return {
        name: rule.note if rule.verdict == "honoured" else f"{rule.verdict} by embedded engines: {rule.note}"
        for name, rule in RULES.get(kind, {}).items()
        if rule.note
    }


def _errors() -> str:
    """The table of errors, from their classes."""
    kinds = [each for each in ApiError.__subclasses__() if each.__module__ == ApiError.__module__]
    kinds.sort(key=lambda kind: kind.status)
    rows = [f"{kind.status} `{kind.type}`: {inspect.getdoc(kind)}" for kind in kinds if kind.status != 499]
    return "One gateway for every model. Errors:\n\n" + "\n".join(f"- {row}" for row in rows)
