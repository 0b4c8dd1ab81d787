"""The variables of conditions: every name that a `when` may use, with its type."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cel_expr_python import cel

_TEXTS = cel.Type.Map(cel.Type.STRING, cel.Type.STRING)


@dataclass(frozen=True, slots=True)
class Variable:
    """A name that conditions can use."""

    kind: Any  # cel.Type
    meaning: str


VARIABLES: dict[str, Variable] = {
    "request.model": Variable(cel.Type.STRING, "the model or route that the client asked for"),
    "request.endpoint": Variable(
        cel.Type.STRING, "`chat`, `completions`, `embeddings`, `messages` or `responses`"
    ),
    "request.num_messages": Variable(cel.Type.INT, "messages of a chat; 0 at other endpoints"),
    "request.num_tokens_estimate": Variable(cel.Type.INT, "prompt tokens, at 4 characters each"),
    "request.has_tools": Variable(cel.Type.BOOL, "the request offers tools"),
    "request.wants_json": Variable(cel.Type.BOOL, "the answer has to be JSON"),
    "request.stream": Variable(cel.Type.BOOL, "the answer is streamed"),
    "request.max_tokens": Variable(cel.Type.INT, "most tokens to generate; 0: not limited"),
    "request.reasoning_effort": Variable(cel.Type.STRING, "`reasoning_effort`, '' when not set"),
    "request.user": Variable(cel.Type.STRING, "`safety_identifier` or `user`, '' when not set"),
    "request.metadata": Variable(_TEXTS, "as in `request.metadata['team']`; a missing key is ''"),
    "principal.key_id": Variable(cel.Type.STRING, "first 8 hex digits of the SHA-256 of the API key"),
    "tenant.name": Variable(cel.Type.STRING, "the tenant: `key-` and the key's id, or `default`"),
    "tenant.tier": Variable(cel.Type.STRING, 'the tenant\'s `tier` in the section `tenants`, "" without one'),
    "headers": Variable(_TEXTS, "the headers of `routing.headers`, as in `headers['x-region']`"),
    "time": Variable(cel.Type.TIMESTAMP, "now, as in `time.getHours('Europe/Berlin') < 8`"),
    "live.ready": Variable(
        cel.Type.Map(cel.Type.STRING, cel.Type.BOOL), "whether a model answers, as in `live.ready['small']`"
    ),
    "live.queue": Variable(
        cel.Type.Map(cel.Type.STRING, cel.Type.INT),
        "requests waiting in an engine of ours, as in `live.queue['small']`",
    ),
}
MAPS = {"headers", "request.metadata", "live.ready", "live.queue"}
"""Variables with keys. The keys must be literals, so that each is there when a condition is evaluated."""
