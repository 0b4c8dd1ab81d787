"""One stored answer."""

from __future__ import annotations

from dataclasses import dataclass

OVERHEAD_BYTES = 800
"""Python objects, dictionary slots and keys of one entry, measured by `tests/cache/test_memory_store.py`."""


@dataclass(slots=True, eq=False)
class Entry:
    """An answer with the question that it was given to. `answer` is opaque here."""

    key: bytes
    partition: bytes
    tenant: str
    text: str
    answer: bytes
    saved_tokens: int  # that a hit need not generate
    created_s: float
    expires_s: float
    vector_bytes: int = 0  # 0: found by its exact key only; the vector itself is in the index
    hits: int = 0

    @property
    def size_bytes(self) -> int:
        """Memory that the entry takes."""
        return OVERHEAD_BYTES + len(self.answer) + len(self.text) + self.vector_bytes
