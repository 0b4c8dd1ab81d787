"""What rank 0 tells the others, as msgpack. All are carried out in order; none asks for a decision."""

from __future__ import annotations

import msgspec

from backend.config import EngineConfig


class Load(msgspec.Struct, frozen=True, tag="load"):
    """Load this rank's part of the model."""

    config: EngineConfig


class NewStorage(msgspec.Struct, frozen=True, tag="storage"):
    """Allocate KV memory, known by `number` from now on; free those of `dropped`."""

    number: int
    num_pages: int
    num_window_pages: int | None
    dropped: list[int]


class CountPages(msgspec.Struct, frozen=True, tag="pages"):
    """Agree on the number of pages, the least that any rank has room for."""


class Forward(msgspec.Struct, frozen=True, tag="forward"):
    """Compute a step; arrays are bytes of int32."""

    storage: int
    token_ids: bytes  # [T]
    query_lens: list[int]  # [B]
    context_lens: list[int]  # [B]
    pages: bytes  # [B, P]
    windows: bytes | None  # [B, P] of layers with a window, if they have pages of their own
    trees: dict[int, tuple[int, ...]]
    adapters: bytes | None  # [T] slots; None: no token has one


class Logits(msgspec.Struct, frozen=True, tag="logits"):
    """Take part in the logits of `num_rows` hidden states, which follow as a tensor."""

    num_rows: int
    adapters: bytes | None


class Move(msgspec.Struct, frozen=True, tag="move"):
    """Copy KV slots."""

    storage: int
    sources: bytes
    targets: bytes
    is_windowed: bool


class Zero(msgspec.Struct, frozen=True, tag="zero"):
    """Zero a KV slot."""

    storage: int
    slot: int
    window_slot: int


class Place(msgspec.Struct, frozen=True, tag="place"):
    """Fill an adapter slot, or with None only make room for the adapter."""

    slot: int | None
    digest: str
    rank: int
    factors: dict[str, tuple[int, bytes, bytes]]  # module → rank, down, up, in the dtype of computation


class Stop(msgspec.Struct, frozen=True, tag="stop"):
    """End with exit code 0."""


Message = Load | NewStorage | CountPages | Forward | Logits | Move | Zero | Place | Stop
