"""What an engine's KV memory holds, and how long a context may be."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

_Positive = Annotated[int, Meta(ge=1)]

OffloadSeconds = Annotated[
    Annotated[float, Meta(ge=1, le=1e6)] | None,
    Meta(
        description="Seconds without a request after which weights go to the host's memory and what KV "
        "memory holds is dropped, so that the GPU is free for others; the next request brings them back, or "
        "the engine restarts where others have the memory by then. Default: never. Not with `parallel`; "
        "on a CPU without effect."
    ),
]

ContextTokens = Annotated[
    _Positive | None, Meta(description="Of a prompt and its answer. Default: the checkpoint's context.")
]
KvCacheBytes = Annotated[
    _Positive | None,
    Meta(
        description="Memory for keys and values, and for recurrent states. Default on a GPU: see "
        "`gpu_memory`; on a CPU a quarter of the free memory, 1 GiB at most."
    ),
]
NumPages = Annotated[
    _Positive | None, Meta(description="KV memory in pages of 16 tokens; wins over `kv_cache_bytes`.")
]
