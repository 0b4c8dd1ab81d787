"""The `signals` section: what conditions can learn from a prompt's text."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from policies.names import FilePath

PhraseName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._-]*$", max_length=64)]
Phrase = Annotated[str, Meta(min_length=1, max_length=500)]


class SignalsSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the variables `signals.…` are computed with; only those are computed that rules refer to."""

    phrases: Annotated[
        dict[PhraseName, Annotated[list[Phrase], Meta(min_length=1, max_length=200)]],
        Meta(
            description="Sentences like those that users write, by topic: `signals.similarity['TOPIC']` is "
            "the cosine of the last turn to the nearest one. Needs an encoder."
        ),
    ] = {}
    domains: Annotated[
        FilePath | None,
        Meta(
            description="Weights of `signals.domain`, for another encoder than the one that ships: what "
            "`penstock router train --form domains --encoder FOLDER` wrote."
        ),
    ] = None
    estimate: Annotated[
        FilePath,
        Meta(
            description="Of `signals.gain`: `builtin:pico`, `builtin:general` (needs an encoder) or a file."
        ),
    ] = "builtin:pico"
