"""POST /admin/marks: where in a text of the caller's own the findings of a request are.

Findings are kept without places, so that a record tells nothing of a text. The caller has the text, and asks.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from gateway.admin.access import AdminAccess
from gateway.exchange.shape import encode
from gateway.requests.parse import decode_body, typed
from gateway.web.http_call import HttpCall
from guardrails.checks.injection import find_injection
from guardrails.checks.patterns import LinearRule, words_rule
from guardrails.checks.personal_data.names import KINDS as NAME_KINDS
from guardrails.checks.personal_data.names import finder_of
from guardrails.checks.personal_data.patterns import KINDS as PATTERN_KINDS
from guardrails.text.normalise import read
from policies.guardrails import GuardrailsSection

MAX_TEXTS, MAX_CHARS, MAX_FINDINGS, MAX_MARKS = 4, 20_000, 100, 500
KINDS = {kind: kind for kind in (*PATTERN_KINDS, *NAME_KINDS)}
Places = Iterator[tuple[int, int]]
_PLACEHOLDER = re.compile(r"\[([A-Z_]{1,24})(?:_[0-9]{1,4})?\]")


class Finding(msgspec.Struct, frozen=True):
    """A finding of a record."""

    check: Annotated[str, Meta(max_length=64)]
    kind: Annotated[str, Meta(max_length=256)]


class MarksRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body."""

    texts: Annotated[
        list[Annotated[str, Meta(max_length=MAX_CHARS)]], Meta(min_length=1, max_length=MAX_TEXTS)
    ]
    findings: Annotated[list[Finding], Meta(max_length=MAX_FINDINGS)]


class Mark(msgspec.Struct, frozen=True, order=True):
    """A place in a text, in characters (Unicode code points)."""

    start: int
    end: int
    check: str
    kind: str


class MarksEndpoint:
    """Looks for what was found once more; asks no model, classifier or hook."""

    def __init__(self, access: AdminAccess, section: GuardrailsSection, max_body_bytes: int) -> None:
        self._access = access
        self._section = section
        self._max_body_bytes = max_body_bytes

    async def mark(self, call: HttpCall) -> None:
        """`texts` → a list of marks for each, from left to right. Raises ApiError."""
        self._access.change(call)  # as it has a body
        request = typed(decode_body(await call.read_json_bytes(self._max_body_bytes)), MarksRequest)
        data = [await asyncio.to_thread(self._marks, text, request.findings) for text in request.texts]
        await call.respond(encode({"object": "list", "data": msgspec.to_builtins(data)}))

    def _marks(self, text: str, findings: Sequence[Finding]) -> list[Mark]:
        kinds = dict.fromkeys((each.check, each.kind) for each in findings)
        look = {"personal_data": _personal_data, "injection": _injection, "pattern": self._pattern}
        found = [
            Mark(start, end, check, kind)
            for check, kind in kinds
            if check in look
            for start, end in look[check](text, kind)
        ]
        return sorted(mark for mark in found if 0 <= mark.start < mark.end)[:MAX_MARKS]

    def _pattern(self, text: str, name: str) -> Places:
        for profile in self._section.profiles.values():
            if (rules := profile.patterns.get(name)) is not None:
                rule = (
                    LinearRule(rules.regex or "", lambda: "")
                    if rules.words is None
                    else words_rule(rules.words, lambda: "")
                )
                yield from ((start, end) for start, end, _ in rule.replacements(text, 0, len(text)))


def _personal_data(text: str, kind: str) -> Places:
    """Values, and what has replaced them."""
    if kind in KINDS:
        yield from ((span.start, span.end) for span in finder_of((KINDS[kind],)).spans(text))
        yield from (match.span() for match in _PLACEHOLDER.finditer(text) if match[1].lower() == kind)


def _injection(text: str, kind: str) -> Places:
    yield from ((each.start, each.end) for each in find_injection(read(text)) if each.kind == kind)
