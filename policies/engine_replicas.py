"""How many processes serve one model here, and how one that ends gives up its work."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta


class ReplicaRange(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Bounds of the number of processes, which follows the load.

    With `min: 0` none runs until a request comes, which waits for its start.
    """

    min: Annotated[int, Meta(ge=0, le=64)]
    max: Annotated[int, Meta(ge=1, le=64)]
    queue_s: Annotated[
        float,
        Meta(
            gt=0,
            description="One more starts when for two seconds the wait for a first token was predicted to be "
            "longer, on each that runs.",
        ),
    ] = 2.0
    sleep_after_s: Annotated[
        float, Meta(gt=0, description="One ends when one of them had nothing to do for so long.")
    ] = 300.0


ReplicaCount = Annotated[
    Annotated[int, Meta(ge=1, le=64)] | ReplicaRange,
    Meta(
        description="Engine processes of this model here. A request goes to the one that is predicted to "
        "begin its answer first, by cached prefixes, queues and measured speeds. What runs on one that "
        "dies goes on at another. A change restarts no running engine. `num_threads` and "
        "`kv_cache_bytes` hold for each: set them where several share a machine. `{min: 0, max: 2}`: as "
        "many as the load asks for.",
    ),
]
HandoverSeconds = Annotated[
    float,
    Meta(
        ge=0,
        le=3600,
        description="When fewer replicas are asked for, one that ends takes nothing new; what it still "
        "runs after these seconds goes on at another, with the same text.",
    ),
]


def range_faults(engine: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], str]]:
    """What is wrong with the `replicas` of a section `engine`: the key, and the message behind it."""
    count = engine.get("replicas")
    if isinstance(count, Mapping) and count.get("min", 0) > count.get("max", count.get("min", 0)):
        yield ("replicas", "min"), f" is {count['min']}, above max, {count['max']}; raise max or lower min"
