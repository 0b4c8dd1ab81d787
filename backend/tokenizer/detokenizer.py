"""Incremental detokenization: whole UTF-8 characters only, O(1) work per token."""

from __future__ import annotations

from codecs import utf_8_decode
from collections.abc import Iterable

from backend.tokenizer.token_bytes import TokenBytes


class Detokenizer:
    """Converts one sequence of token ids to text, piece by piece.

    The pieces and flush() add up to the text of all ids, however the ids were split into pushes. Invalid
    UTF-8 becomes U+FFFD as soon as it is certain, so at most three bytes are held back. (`tokenizers`
    replaces a whole run of byte-fallback tokens if one is invalid; this keeps the valid characters in it.)
    """

    __slots__ = ("_bytes_of", "_first", "_pending", "_strip", "_table")

    def __init__(self, table: TokenBytes, *, continues: bool = False) -> None:
        """`continues`: the text follows other text, so a leading space is kept (Llama 2, Mistral)."""
        self._table = table
        self._bytes_of = table.__getitem__
        self._pending = b""  # an incomplete character
        self._first = bool(table.rules.drop_in_first) and not continues
        self._strip = 0 if continues else table.rules.strip_leading

    def push(self, token_ids: Iterable[int]) -> str:
        """Add tokens and return the text that they complete; "" while a character is incomplete."""
        if self._first:
            token_ids = self._take_first(list(token_ids))
        data = self._pending + b"".join(map(self._bytes_of, token_ids))
        text, used = utf_8_decode(data, "replace", False)
        self._pending = data[used:]
        return self._stripped(text) if self._strip else text

    def flush(self) -> str:
        """Return the end of the text; an incomplete character becomes U+FFFD."""
        text = self._pending.decode("utf-8", "replace")
        self._pending = b""
        return text

    def _take_first(self, token_ids: list[int]) -> list[int]:
        """Decode the first visible token by the rule for the start of a text; return the ids after it."""
        for i, token_id in enumerate(token_ids):
            token = self._table.token_of(token_id)
            if token is not None and token_id not in self._table.hidden:
                self._first = False
                self._pending = self._table.rules.first_bytes_of(token)
                return token_ids[i + 1 :]
        return []

    def _stripped(self, text: str) -> str:
        """Strip up to `_strip` leading spaces of the text, which may span several pieces."""
        spaces = min(len(text) - len(text.lstrip(" ")), self._strip)
        self._strip = 0 if spaces < len(text) else self._strip - spaces
        return text[spaces:]
