"""How one engine is split over processes."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta


class Parallel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many processes, ranks, share one engine, by what they split. They start and end together."""

    tensor: Annotated[
        int,
        Meta(
            ge=1,
            le=64,
            description="Heads, feed-forward blocks and vocabulary: a rank has 1/n of the weights and of the "
            "keys and values. Two sums in each layer. Divides the number of heads and the widths of blocks.",
        ),
    ] = 1
    pipeline: Annotated[
        int,
        Meta(
            ge=1,
            le=64,
            description="Stages of layers, as many as there are layers or fewer. They compute one after the "
            "other, each with all threads; a rank has its layers' weights, keys and values, the first one "
            "the embedding and the head too. Together with `tensor`, each stage has that many ranks.",
        ),
    ] = 1
    expert: Annotated[
        int,
        Meta(
            ge=1,
            le=64,
            description="For mixtures of experts, in place of `tensor`: a rank has 1/n of each layer's "
            "experts, in order, and all else whole, keys and values too. It computes its experts for all "
            "tokens; one sum in each layer.",
        ),
    ] = 1
    sequence: Annotated[int, Meta(ge=1, le=64, description="Not built yet: 1.")] = 1
