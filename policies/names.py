"""Names that several sections of the policy language share: their type, and hints at misspelt ones."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Annotated, Literal

from msgspec import Meta

from policies.time_limit import check_time

Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/-]*$", max_length=128)]
"""A model or route name, as clients send it."""

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
"""OpenAI's `reasoning_effort`. Models that can only switch reasoning on or off reason for all but "none"."""


REPLICA_MARK = "#"
"""Not in any `Name`: `m#1` is the second engine process of the model `m`."""


def replica_names(model: str, count: int) -> list[str]:
    """The names of a model's processes: its own, then `m#1`, `m#2` and so on."""
    return [model, *(f"{model}{REPLICA_MARK}{number}" for number in range(1, count))]


def replica_name(model: str, place: str) -> str:
    """The name of an engine of the model that runs at `place`."""
    return f"{model}{REPLICA_MARK}{place}"


def split_replica(process: str) -> tuple[str, str]:
    """The model of a process, and its number as text, from "0", or its place."""
    model, _, number = process.partition(REPLICA_MARK)
    return model, number or "0"


def nearest(name: str, known: Iterable[str]) -> str:
    """Return `; did you mean 'x'?` with the closest known name, else the list of known names."""
    check_time()
    names = sorted(known)
    if folded := next((each for each in names if each.lower() == name.strip().lower()), ""):
        return f"; did you mean {folded!r}?"
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; known: {', '.join(names)}" if names else ""


FilePath = Annotated[str, Meta(min_length=1, extra={"path": True})]
"""Relative to the file that it is in."""

EnvironmentName = Annotated[
    str,
    Meta(
        pattern=r"^[A-Za-z_][A-Za-z0-9_]*$",
        description="The environment variable that holds the secret; never the secret itself.",
    ),
]
