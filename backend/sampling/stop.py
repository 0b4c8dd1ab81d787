"""Stop strings in streamed text: the text that can be sent now, and where the answer ends.

Plain Python without torch: the gateway runs it on detokenized text. The result does not depend on how the
text was split into pieces.
"""

from __future__ import annotations

from collections.abc import Iterable


class StopMatcher:
    """Finds the stop string that completes first; of several that end together, the longest wins.

    Holds back only the longest suffix that may be the start of a stop string. One Knuth-Morris-Pratt
    automaton per stop string: amortised constant work per character.
    """

    __slots__ = ("_borders", "_first_chars", "_held", "_matched", "_states", "_stops")

    def __init__(self, stops: Iterable[str]) -> None:
        """Raises ValueError on an empty stop string, which would end every answer before it began."""
        self._stops = tuple(dict.fromkeys(stops))
        if "" in self._stops:
            raise ValueError("A stop string is empty: leave it out, or give at least one character.")
        self._borders = [_borders(stop) for stop in self._stops]
        self._first_chars = frozenset(stop[0] for stop in self._stops)
        self._states = [0] * len(self._stops)  # matched prefix length of each stop string
        self._held = ""
        self._matched: str | None = None

    @property
    def matched(self) -> str | None:
        """The stop string that ended the text, or None so far."""
        return self._matched

    def push(self, text: str) -> tuple[str, str | None]:
        """Add a piece of text; return the text that can be sent now, and the stop string once it is complete.

        The stop string and all text after it are never returned.
        """
        if self._matched is not None:
            return "", self._matched
        if not self._held and self._first_chars.isdisjoint(text):
            return text, None
        seen = self._held + text
        for end, char in enumerate(text, start=len(self._held) + 1):
            stop = self._advance(char)
            if stop is not None:
                self._matched = stop
                self._held = ""
                return seen[: end - len(stop)], stop
        shown = len(seen) - max(self._states)
        self._held = seen[shown:]
        return seen[:shown], None

    def flush(self) -> str:
        """Return the text held back, at the end of the stream."""
        tail, self._held = self._held, ""
        self._states = [0] * len(self._stops)
        return tail

    def _advance(self, char: str) -> str | None:
        """Advance every automaton by one character; return the longest stop string that it completes."""
        found: str | None = None
        for i, stop in enumerate(self._stops):
            state = self._states[i]
            while state and stop[state] != char:
                state = self._borders[i][state - 1]
            if stop[state] == char:
                state += 1
            self._states[i] = state
            if state == len(stop) and (found is None or len(stop) > len(found)):
                found = stop
        return found


def _borders(stop: str) -> list[int]:
    """Return the KMP failure function: per prefix, the length of its longest border."""
    borders = [0] * len(stop)
    length = 0
    for i in range(1, len(stop)):
        while length and stop[i] != stop[length]:
            length = borders[length - 1]
        if stop[i] == stop[length]:
            length += 1
        borders[i] = length
    return borders
