"""Token ids to text while they arrive: whole UTF-8 characters only, constant work per token."""

from __future__ import annotations

from codecs import utf_8_decode
from collections.abc import Iterable

from backend.tokenizer.token_bytes import TokenBytes


class Detokenizer:
    """Turns one sequence of token ids into text, piece by piece.

    All pieces and flush() together are the text of all ids, however they were cut. Bytes that are not UTF-8
    become U+FFFD as soon as that is certain, so at most three bytes are ever held back. (`tokenizers`
    replaces a whole run of byte-fallback tokens when one is wrong; here the whole characters in it are kept.)
    """

    __slots__ = ("_bytes_of", "_first", "_rest", "_strip", "_table")

    def __init__(self, table: TokenBytes, *, continues: bool = False) -> None:
        """`continues`: the text follows other text, so its leading space is its own (Llama 2, Mistral)."""
        self._table = table
        self._bytes_of = table.__getitem__
        self._rest = b""
        self._first = bool(table.rules.drop_in_first) and not continues
        self._strip = 0 if continues else table.rules.strip_leading

    def push(self, token_ids: Iterable[int]) -> str:
        """The text that these tokens complete; "" while a character is incomplete."""
        if self._first:
            token_ids = self._take_first(list(token_ids))
        data = self._rest + b"".join(map(self._bytes_of, token_ids))
        text, used = utf_8_decode(data, "replace", False)
        self._rest = data[used:]
        return self._stripped(text) if self._strip else text

    def flush(self) -> str:
        """The end of the text: an incomplete character becomes U+FFFD."""
        text = self._rest.decode("utf-8", "replace")
        self._rest = b""
        return text

    def _take_first(self, token_ids: list[int]) -> list[int]:
        """Decode the text's first token by its own rule; return the ids after it."""
        for i, token_id in enumerate(token_ids):
            token = self._table.token_of(token_id)
            if token is not None and token_id not in self._table.hidden:
                self._first = False
                self._rest = self._table.rules.first_bytes_of(token)
                return token_ids[i + 1 :]
        return []

    def _stripped(self, text: str) -> str:
        """Take what is left to strip from the start of the text; stop at its first other character."""
        spaces = min(len(text) - len(text.lstrip(" ")), self._strip)
        self._strip = 0 if spaces < len(text) else self._strip - spaces
        return text[spaces:]
