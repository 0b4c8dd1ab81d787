"""What is known about long texts from earlier turns: a conversation is sent again with each turn."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass
from hashlib import blake2b
from typing import Generic, TypeVar

MAX_TEXTS = 4_096
MIN_CHARS = 4_000
"""Shorter ones are screened again: that takes less than to remember them."""

Finding = TypeVar("Finding")


@dataclass(slots=True)
class Known(Generic[Finding]):
    """What checks found in one text; None: not looked at yet."""

    is_unchanged: bool = False  # patterns and personal data left it as it is and found nothing
    attacks: tuple[Finding, ...] | None = None
    judged: tuple[Finding, ...] | None = None
    risk: float | None = None  # of an attack, of a user's turn that has been judged


class KnownTexts(Generic[Finding]):
    """The latest long texts by digest, each tenant's for itself: time must not tell what others send."""

    def __init__(self, max_texts: int = MAX_TEXTS) -> None:
        self._max_texts = max_texts
        self._lock = threading.Lock()
        self._known: OrderedDict[bytes, Known[Finding]] = OrderedDict()

    def of(self, tenant: str, kind: str, text: str) -> Known[Finding]:
        """What is known about a text, to be filled; `kind`: in which role it is read."""
        if len(text) < MIN_CHARS:
            return Known()
        digest = blake2b(f"{tenant}\0{kind}\0".encode(), digest_size=16)
        digest.update(text.encode("utf-8", "surrogatepass"))
        key = digest.digest()
        with self._lock:
            found = self._known.setdefault(key, Known())
            self._known.move_to_end(key)
            if len(self._known) > self._max_texts:
                self._known.popitem(last=False)
        return found
