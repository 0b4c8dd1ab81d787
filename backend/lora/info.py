"""What the gateway knows about an adapter. Plain Python without torch; sent as msgpack."""

from __future__ import annotations

import msgspec


class AdapterInfo(msgspec.Struct, frozen=True):
    """An adapter that requests can name."""

    name: str
    digest: str  # content hash: its identity for requests and KV memory
    base: str  # the base model that it names
    rank: int  # the highest of its modules
    num_bytes: int
    path: str
