"""The variables of conditions: every name that a `when` may use, with its type."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cel_expr_python import cel

from policies.endpoints import ENDPOINTS

DOMAINS = ("business", "code", "everyday", "humanities", "law", "maths", "medicine", "science", "society")
UNAVAILABLE = "signals.unavailable"
NEED_VECTORS = {"signals.domain", "signals.freshness", "signals.similarity", UNAVAILABLE}
"""Signals that are read from the sentence vector."""

_MISSING: Mapping[str, object] = {"bool": False, "int": 0, "double": 0.0}
_TEXTS = cel.Type.Map(cel.Type.STRING, cel.Type.STRING)
SIGNALS = "signals."
"""Variables that begin so are computed from the prompt's text, when a rule that refers to them is tried."""


@dataclass(frozen=True, slots=True)
class Variable:
    """A name that conditions can use."""

    kind: Any  # cel.Type
    meaning: str

    @property
    def missing(self) -> object:
        """What stands for a value that is not known."""
        return _MISSING.get(self.kind.name().lower(), "")


VARIABLES: dict[str, Variable] = {
    "request.model": Variable(cel.Type.STRING, "the model or route that the client asked for"),
    "request.endpoint": Variable(
        cel.Type.STRING, "one of " + ", ".join(f"`{name}`" for name in sorted(ENDPOINTS))
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
    "tenant.name": Variable(
        cel.Type.STRING,
        "the tenant: its name, else `key-` and the key's id; `default` where there are no keys",
    ),
    "tenant.tier": Variable(cel.Type.STRING, "the tenant's `tier`; `default` for one without"),
    "tenant.near_limit": Variable(
        cel.Type.DOUBLE,
        "the highest share that is used or set aside of any of the tenant's limits, soft ones too, as in "
        "`tenant.near_limit >= 0.8`; 0.0 without limits",
    ),
    "tenant.spent_usd": Variable(cel.Type.DOUBLE, "today (UTC), by the models' `price`"),
    "headers": Variable(
        _TEXTS,
        "the headers of `routing.headers`, as in `headers['x-region'] == 'eu'`: values are compared as they "
        "are written, upper and lower case differ (`headers['x-region'].matches('(?i)^eu$')` ignores that)",
    ),
    "time": Variable(cel.Type.TIMESTAMP, "now, as in `time.getHours('Europe/Berlin') < 8`"),
    "live.ready": Variable(
        cel.Type.Map(cel.Type.STRING, cel.Type.BOOL),
        "whether a model answers, as in `live.ready['small']`; "
        "an upstream does unless it is left out after failures",
    ),
    "live.queue": Variable(
        cel.Type.Map(cel.Type.STRING, cel.Type.INT),
        "requests waiting in an engine of ours, as in `live.queue['small']`",
    ),
    "live.spent_usd": Variable(
        cel.Type.Map(cel.Type.STRING, cel.Type.DOUBLE),
        "what all tenants together have spent on a model today, as in `live.spent_usd['gpt'] > 50.0`",
    ),
    "signals.language": Variable(
        cel.Type.STRING, "as `en` (ISO 639-1); '' when the text is too short to tell"
    ),
    "signals.domain": Variable(
        cel.Type.STRING,
        f"{', '.join(f'`{name}`' for name in DOMAINS)}, or '' when it is none of them (needs an encoder)",
    ),
    "signals.has_code": Variable(cel.Type.BOOL, "there is source code in the text"),
    "signals.has_maths": Variable(cel.Type.BOOL, "there are formulas or words of mathematics"),
    "signals.has_table": Variable(cel.Type.BOOL, "there is a table of two rows or more"),
    "signals.num_words": Variable(cel.Type.INT, "words"),
    "signals.num_constraints": Variable(cel.Type.INT, "words such as `must`, `exactly`, `without`"),
    "signals.needs_reasoning": Variable(
        cel.Type.DOUBLE, "0 to 1: how much a model that reasons before it answers is expected to help"
    ),
    "signals.gain": Variable(
        cel.Type.DOUBLE,
        "-1 to 1: how much better the large model of `signals.estimate` is expected to answer than the "
        "small one; earlier turns count, each less",
    ),
    "signals.freshness": Variable(
        cel.Type.STRING,
        "how long an answer stays right: `static`, `slow` (weeks), `volatile` (minutes) or `never`, about "
        "the asker's own data (needs an encoder)",
    ),
    "signals.has_personal_data": Variable(cel.Type.BOOL, "as the guardrails recognise it"),
    "signals.has_injection": Variable(
        cel.Type.BOOL, "an attack on the prompt, as the guardrails recognise it"
    ),
    "signals.similarity": Variable(
        cel.Type.Map(cel.Type.STRING, cel.Type.DOUBLE),
        "0 to 1, to the nearest of `signals.phrases`, as in `signals.similarity['refunds'] > 0.6`",
    ),
    UNAVAILABLE: Variable(
        cel.Type.BOOL,
        "the encoder is away or slow, or the text too long for it: `signals.domain` is '' then, "
        "`signals.freshness` 'static', `signals.similarity` 0.0, and `signals.gain` of an estimate with an "
        "encoder is read from the words alone",
    ),
    "signals.previous_model": Variable(
        cel.Type.STRING, "that answered the conversation's turn before, as far as this gateway worker knows"
    ),
}
MAPS = {"headers", "request.metadata", "live.ready", "live.queue", "live.spent_usd", "signals.similarity"}
"""Variables with keys. The keys must be literals, so that each is there when a condition is evaluated."""
