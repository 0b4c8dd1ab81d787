"""One stored answer, and which entries to forget."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import msgspec

OVERHEAD_BYTES = 800
"""Python objects, dictionary slots and keys of one entry, measured by `tests/cache/test_memory_store.py`."""

SelectorKind = Literal["tenant", "model", "tag", "user", "entry"]


class Labels(msgspec.Struct, frozen=True, array_like=True):
    """By which an entry can be forgotten, beside its tenant and its key."""

    model: str = ""
    user: str = ""  # a digest, never the client's id
    tags: tuple[str, ...] = ()


NO_LABELS = Labels()


class Entry(msgspec.Struct, eq=False, array_like=True):
    """An answer with the question that it was given to. `answer` is opaque here."""

    key: bytes
    partition: bytes
    tenant: str
    text: str
    answer: bytes
    saved_tokens: int  # that a hit need not generate
    created_s: float
    expires_s: float
    labels: Labels = NO_LABELS
    vector_bytes: int = 0  # 0: found by its exact key only; the vector itself is in the index
    hits: int = 0
    right: int = 0  # verdicts on hits of this entry by meaning
    wrong: int = 0
    rejected: tuple[bytes, ...] = ()  # keys of questions that it does not answer

    @property
    def size_bytes(self) -> int:
        """Memory that the entry takes."""
        return OVERHEAD_BYTES + len(self.answer) + len(self.text) + self.vector_bytes


@dataclass(frozen=True, slots=True)
class Selector:
    """Entries to forget: all of a tenant, or those of it with a label. `tenant` None: of every tenant."""

    kind: SelectorKind
    value: str
    tenant: str | None

    @property
    def key(self) -> bytes:
        """The key of the one entry that a selector of this kind may match; b"" when it is no key."""
        try:
            return bytes.fromhex(self.value)
        except ValueError:
            return b""

    def matches(self, entry: Entry) -> bool:
        """Whether the entry is to be forgotten. An entry's id is its key in hexadecimal."""
        if self.tenant is not None and entry.tenant != self.tenant:
            return False
        labels = entry.labels
        if self.kind == "tag":
            return self.value in labels.tags
        own = {"tenant": entry.tenant, "model": labels.model, "user": labels.user, "entry": entry.key.hex()}
        return own[self.kind] == self.value
