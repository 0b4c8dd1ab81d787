"""What a scripted provider is asked and answers, whichever API it speaks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

Part = tuple[str, str]  # kind, text: of "reasoning", "text" or "call" (arguments)
SIGNATURE = "c2lnbmVk"
"""The signature of reasoning or calls, where the API has signatures."""


@dataclass
class Wants:
    """What a request asks for."""

    last: str  # the last message, as JSON
    reasons: bool = False
    tools: bool = False
    schema: bool = False
    image: bool = False
    has_result: bool = False  # the last message holds a tool's result


class Dialect(Protocol):
    """One API."""

    paths: ClassVar[tuple[str, ...]]
    media_type: ClassVar[str]  # of streams
    first_text: ClassVar[int]  # index of the event with the first piece of a text

    def wants(self, body: dict[str, Any]) -> Wants: ...

    def whole(self, parts: list[Part]) -> dict[str, Any]: ...

    def events(self, parts: list[Part]) -> list[bytes]: ...

    def error(self) -> tuple[dict[str, Any], dict[str, str]]:
        """The body and headers of a 429."""
        ...


def answer(wants: Wants) -> list[Part]:
    """What the model says."""
    parts: list[Part] = [("reasoning", "17 + 25 = 42")] if wants.reasons else []
    if wants.tools and not wants.has_result:
        return [*parts, ("call", '{"expression": "417 + 256"}')]
    if wants.schema:
        return [*parts, ("text", '{"sum": 42}')]
    if wants.image:
        return [*parts, ("text", "an image")]
    return [*parts, ("text", "673" if "673" in wants.last else "42")]


def pieces(part: Part) -> list[Part]:
    """The part in two."""
    kind, text = part
    return [(kind, text[:1]), (kind, text[1:])]
