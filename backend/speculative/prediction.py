"""Drafts that come with the request: what its output will probably look like, from the client or a cache.

A cursor runs along the prediction. When the output leaves it, the place is looked for where both agree again:
text may have been inserted, left out or replaced, and tokens at the seams may be cut differently.
"""

from __future__ import annotations

from dataclasses import dataclass

from backend.speculative.drafter import Drafter
from backend.types import Sequence

DEFAULT_TOKENS = 24
"""Drafted per step, unless the request says: a right prediction is right for long."""

_LONGEST_ANCHOR = 8
"""Tokens that are compared, back from the end of the output, to rank the places where it may stand."""

_TRUSTED_TOKENS = 4
"""A prediction that was right for this many tokens in a row is believed more easily afterwards."""

_NEAR_TOKENS = 6
"""One equal token is believed this near to where the output left a trusted prediction; elsewhere two are,
and three in one that is not trusted."""

_MAX_PLACES = 64
"""Places that are ranked; a token more frequent than that says little."""


class PredictionDrafter(Drafter):
    """Serves the requests that have `prediction_token_ids`."""

    name = "prediction"
    is_cheap = True

    def __init__(self) -> None:
        self._cursors: dict[Sequence, Cursor] = {}

    def propose(self, sequences: list[Sequence], ks: list[int]) -> list[list[int]]:
        """For each sequence, the next tokens of its predicted output."""
        drafts: list[list[int]] = []
        for sequence, k in zip(sequences, ks, strict=True):
            cursor = self._cursors.setdefault(sequence, Cursor(sequence.request.prediction_token_ids))
            cursor.follow(sequence.tokens, sequence.num_prompt_tokens)
            drafts.append(cursor.ahead(k))
        return drafts

    def forget(self, sequence: Sequence) -> None:
        """Drop the sequence's place in its prediction."""
        self._cursors.pop(sequence, None)


@dataclass(slots=True)
class Cursor:
    """Position of one output in its prediction."""

    predicted: list[int]
    place: int = 0  # the next predicted token
    is_anchored: bool = True  # False: the output has left the prediction at `place`
    num_right: int = 0  # predicted tokens in a row that came
    is_trusted: bool = False
    num_followed: int = 0  # output tokens seen
    _places: dict[int, list[int]] | None = None  # token → positions after it

    def follow(self, tokens: list[int], begin: int) -> None:
        """Move along with the output, `tokens` from `begin` on."""
        for end in range(begin + self.num_followed + 1, len(tokens) + 1):
            token = tokens[end - 1]
            if self.is_anchored and self.place < len(self.predicted) and self.predicted[self.place] == token:
                self.place += 1
                self.num_right += 1
                self.is_trusted |= self.num_right >= _TRUSTED_TOKENS
            else:
                self.is_anchored, self.num_right = False, 0
                if end == len(tokens):
                    self._find(tokens[max(begin, end - _LONGEST_ANCHOR) : end])
        self.num_followed = len(tokens) - begin

    def ahead(self, k: int) -> list[int]:
        """The next k predicted tokens; [] while the output is elsewhere."""
        return self.predicted[self.place : self.place + k] if self.is_anchored else []

    def _find(self, ending: list[int]) -> None:
        """Anchor where the prediction has the longest `ending`, nearest to where it was left."""
        if self._places is None:
            self._places = {}
            for index, token in enumerate(self.predicted):
                self._places.setdefault(token, []).append(index + 1)
        places = self._places.get(ending[-1], [])
        if len(places) > _MAX_PLACES:
            places = sorted(places, key=lambda place: abs(place - self.place))[:_MAX_PLACES]
        found: list[tuple[int, int, int]] = []  # length, minus the distance, place
        for place in places:
            length, distance = _common_end(self.predicted, place, ending), abs(place - self.place)
            if length >= 3 - self.is_trusted or (self.is_trusted and distance <= _NEAR_TOKENS):
                found.append((length, -distance, place))
        if found:
            self.place, self.is_anchored = max(found, key=lambda each: each[:2])[2], True


def _common_end(predicted: list[int], place: int, ending: list[int]) -> int:
    """How many tokens before `place` equal the end of `ending`."""
    length = 0
    while length < min(place, len(ending)) and predicted[place - 1 - length] == ending[-1 - length]:
        length += 1
    return length
