"""Stop strings in a stream of text: what may be shown now, and where the answer ends.

Plain Python without torch: the gateway runs it on detokenised text. The result never depends on how the text
was cut into pieces.
"""

from __future__ import annotations

from collections.abc import Iterable


class StopMatcher:
    """Looks for the stop string that is complete first; of several that end together, the longest wins.

    Holds back only the longest tail that may still begin a stop string. One Knuth-Morris-Pratt automaton per
    stop string: constant work per character on average, whatever the strings.
    """

    __slots__ = ("_borders", "_first_chars", "_held", "_matched", "_states", "_stops")

    def __init__(self, stops: Iterable[str]) -> None:
        """Raises ValueError on an empty stop string: it would end every answer before it began."""
        self._stops = tuple(dict.fromkeys(stops))
        if "" in self._stops:
            raise ValueError("A stop string is empty: leave it out, or give at least one character.")
        self._borders = [_borders(stop) for stop in self._stops]
        self._first_chars = frozenset(stop[0] for stop in self._stops)
        self._states = [0] * len(self._stops)  # characters of each stop that the text so far ends with
        self._held = ""
        self._matched: str | None = None

    @property
    def matched(self) -> str | None:
        """The stop string that ended the text, once one did."""
        return self._matched

    def push(self, text: str) -> tuple[str, str | None]:
        """Take the next piece; return what may be shown now, and the stop string when it is complete.

        The stop string and all that follows it are never shown. After a match nothing is shown any more.
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
        """The text has ended: what was held back begins no stop string after all."""
        tail, self._held = self._held, ""
        self._states = [0] * len(self._stops)
        return tail

    def _advance(self, char: str) -> str | None:
        """Move every automaton over one character; return the longest stop that is complete now."""
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
    """For each prefix, the length of its longest proper prefix that is also its suffix."""
    borders = [0] * len(stop)
    length = 0
    for i in range(1, len(stop)):
        while length and stop[i] != stop[length]:
            length = borders[length - 1]
        if stop[i] == stop[length]:
            length += 1
        borders[i] = length
    return borders
