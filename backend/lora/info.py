"""What others may know of an adapter. Plain Python without torch; crosses the process border as msgpack."""

from __future__ import annotations

import msgspec


class AdapterInfo(msgspec.Struct, frozen=True):
    """An adapter that can be asked for."""

    name: str
    digest: str  # content hash: its identity for requests and KV memory
    base: str  # what it says it was trained on
    rank: int  # the greatest of its modules
    num_bytes: int
    path: str
