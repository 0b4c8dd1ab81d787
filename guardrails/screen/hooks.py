"""What an operator's own check of texts does, whatever it is asked over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from policies.guardrails import HookRules, Segment

Direction = Literal["request", "answer"]


class HookFailed(Exception):
    """The check could not be made: no answer in time, or none that can be read."""


@dataclass(frozen=True, slots=True)
class HookVerdict:
    """What the operator's service says. `reason` is an identifier for traces, never text of the request."""

    flagged: bool
    reason: str = ""


MAX_REASON_CHARS = 64


def identifier(text: str) -> str:
    """A short label; "" for other text: no words of a request may get into traces by way of an answer."""
    short = text[:MAX_REASON_CHARS]
    return short if short and all(char.isalnum() or char in "-_./+" for char in short) else ""


class Hook(Protocol):
    """One hook of a profile."""

    rules: HookRules

    def applies(self, direction: Direction) -> bool:
        """Whether the policy asks this hook about requests, or answers."""
        ...

    async def check(self, direction: Direction, texts: Sequence[tuple[Segment, str]]) -> HookVerdict:
        """Ask about texts, until some are flagged. Raises HookFailed."""
        ...
