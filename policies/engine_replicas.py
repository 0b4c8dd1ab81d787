"""How many processes serve one model here, and how one that ends gives up its work."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

ReplicaCount = Annotated[
    int,
    Meta(
        ge=1,
        le=64,
        description="Engine processes of this model here. A request goes to the one that is predicted to "
        "begin its answer first, by cached prefixes, queues and measured speeds. What runs on one that "
        "dies goes on at another. A change restarts no running engine. `num_threads` and "
        "`kv_cache_bytes` hold for each: set them where several share a machine.",
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
