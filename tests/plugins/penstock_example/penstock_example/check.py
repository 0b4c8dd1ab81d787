"""The check `shouting`: texts that are mostly capitals."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import msgspec

from guardrails.checks.check import CheckSpec
from guardrails.findings import Finding, Segment


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a policy may set."""

    max_capitals: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.7
    min_letters: int = 8


def find(text: str, segment: Segment, options: Options) -> Iterator[Finding]:
    """The whole text, where its share of capitals is above the limit."""
    letters = [char for char in text if char.isalpha()]
    share = sum(map(str.isupper, letters)) / max(1, len(letters))
    if len(letters) >= options.min_letters and share > options.max_capitals:
        yield Finding("shouting", "capitals", share, 0, len(text), "share of capitals")


SHOUTING = CheckSpec(find, Options)
