"""Drafts whose tokens only the device knows until the step that verifies them has been read.

On the host a number below -1 is in the place of each. The step takes the token from where the roll-out left
it, and its one download brings all of them. Sequences whose draws depend on the values of their drafts get
none of these.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from backend.layers.step_input import Ints, Words
from backend.types import Draft
from backend.types import Sequence as TokenSequence

_FIRST, _MOST_TOKENS = -2, 1 << 20
"""The number of the first token, and how many one roll-out has at most."""

_KEPT = 16
"""Roll-outs that are remembered: more than one step has, and than a drafter may still ask for."""


class LateDrafts:
    """The newest roll-outs of an engine's drafters."""

    def __init__(self) -> None:
        self._count = 0
        self._results: dict[int, Tensor] = {}  # by number: [depth + 1, rows], see roll_out_chains
        self._tokens: dict[int, list[int]] = {}  # of those that were read

    def add(self, result: Tensor, lengths: list[int]) -> list[Draft]:
        """Chains of these lengths: the first rows of a roll-out."""
        number, width = self._count, result.shape[1]
        self._count = (number + 1) % (1 << 10)
        self._results[number] = result
        for own in (self._results, self._tokens):
            for old in [each for each in own if (self._count - each) % (1 << 10) > _KEPT]:
                del own[old]
        first = _FIRST - number * _MOST_TOKENS
        return [[first - level * width - row for level in range(n)] for row, n in enumerate(lengths)]

    def find(self, token_ids: Words) -> tuple[list[int], Ints, Ints]:
        """The late tokens of a step: their roll-outs, places in the step and in these roll-outs."""
        places = np.flatnonzero(token_ids <= _FIRST)
        if not len(places):
            return [], places, places
        owners, index = np.divmod(_FIRST - token_ids[places].astype(np.int64), _MOST_TOKENS)
        numbers, offset = np.unique(owners).tolist(), 0
        for number in numbers:
            index[owners == number] += offset
            offset += self._results[number].numel()
        return numbers, places, index

    def put(self, token_ids: Tensor, numbers: list[int], places: Tensor, index: Tensor) -> None:
        """Write the tokens that `find` has found into a step."""
        if numbers:
            known = torch.cat([self._results[number].flatten() for number in numbers])
            token_ids.index_copy_(0, places, known.index_select(0, index).to(token_ids.dtype))

    def results(self, numbers: list[int]) -> list[Tensor]:
        """The roll-outs with these numbers, to be downloaded for `read`."""
        return [self._results[number] for number in numbers]

    def read(self, numbers: list[int], downloaded: list[list[list[int]]]) -> None:
        """Their tokens are known."""
        for number, rows in zip(numbers, downloaded, strict=True):
            self._tokens[number] = [token for row in rows for token in row]

    def values(self, draft: Sequence[int]) -> Sequence[int]:
        """A draft with its tokens where they have been read."""
        if not draft or min(draft) > _FIRST:
            return draft
        return [self._value(token) for token in draft]

    def _value(self, token: int) -> int:
        number, index = divmod(_FIRST - token, _MOST_TOKENS)
        known = self._tokens.get(number) if token <= _FIRST else None
        # Numbers are given again: one of long ago may be that of a smaller roll-out now.
        return token if known is None or index >= len(known) else known[index]


def needs_values(sequence: TokenSequence) -> bool:
    """Whether draws depend on the values of drafts: by a grammar, or by penalties that count them."""
    params = sequence.request.params
    is_penalised = params.repetition_penalty != 1 or params.presence_penalty or params.frequency_penalty
    return bool(sequence.request.grammar is not None or is_penalised)
