"""Cuts a text that comes in pieces into sentences: the same ones however it comes."""

from __future__ import annotations

import regex

MAX_CHARS = 600
"""A sentence that is longer ends here: it is held back until it has been judged."""

_END = regex.compile(r"[.!?…]+[\"'”’)\]]{0,3}\s|[。！？]|\n")


class SentenceSplitter:
    """Gives each sentence when it is complete, with the white space after it."""

    def __init__(self) -> None:
        self._text = ""

    def feed(self, text: str) -> list[str]:
        """The sentences that this piece completes. Their end depends on nothing that comes after it."""
        self._text += text
        found = []
        while (end := self._end()) is not None:
            found.append(self._text[:end])
            self._text = self._text[end:]
        return found

    def finish(self) -> list[str]:
        """The rest, if there is one: the text has ended."""
        rest, self._text = self._text, ""
        return [rest] if rest else []

    def _end(self) -> int | None:
        match = _END.search(self._text[:MAX_CHARS])
        if match is not None:
            return match.end()
        if len(self._text) >= MAX_CHARS:
            return MAX_CHARS
        return None


def split(text: str) -> list[str]:
    """The sentences of a whole text; joined, they are the text."""
    splitter = SentenceSplitter()
    return splitter.feed(text) + splitter.finish()
