"""Cuts a text that comes in pieces into sentences: the same ones however it comes."""

from __future__ import annotations

import regex

MAX_CHARS = 600
"""A sentence that is longer ends here: it is held back until it has been judged."""

_END = regex.compile(r"[。！？\n]|(?<=[.!?…][\"'”’)\]]{0,3})\s")
"""Looks back from white space: a run of stops is not read again from each of them."""


class SentenceSplitter:
    """Gives each sentence when it is complete, with the white space after it."""

    def __init__(self) -> None:
        self._text = ""

    def feed(self, text: str) -> list[str]:
        """The sentences that this piece completes. Their end depends on nothing that comes after it."""
        searched = len(self._text)
        text = self._text + text
        found = []
        start = 0
        while (end := _end(text[start : start + MAX_CHARS], searched)) is not None:
            found.append(text[start : start + end])
            start, searched = start + end, 0
        self._text = text[start:]
        return found

    def finish(self) -> list[str]:
        """The rest, if there is one: the text has ended."""
        rest, self._text = self._text, ""
        return [rest] if rest else []


def _end(text: str, searched: int) -> int | None:
    """Where the first sentence of at most MAX_CHARS ends; none does in the characters already searched."""
    match = _END.search(text, searched)
    if match is not None:
        return int(match.end())
    return MAX_CHARS if len(text) == MAX_CHARS else None


def split(text: str) -> list[str]:
    """The sentences of a whole text; joined, they are the text."""
    splitter = SentenceSplitter()
    return splitter.feed(text) + splitter.finish()
