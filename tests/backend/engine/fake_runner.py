"""A runner without a model: its KV memory is a dictionary, its next token a hash of the whole context.

It reads the context back through the pages, so that a wrong page, slot or position changes the answer.
"""

from __future__ import annotations

import hashlib
import os
import time

from backend.engine.runner_protocol import RunnerFacts, StepResult
from backend.kv.checkpoints import StateCopy
from backend.speculative.tree import paths
from backend.speculative.verify import detours, verify
from backend.types import PAGE_TOKENS, Plan, ScheduledChunk, Sequence, tree_depths

VOCAB_SIZE = 1000
EOS = 2


class FakeRunner:
    """Implements Runner; `step_s` makes it slow, a token `poison` in the context makes a request fail.

    The token `deadly` ends the process.
    """

    def __init__(
        self,
        num_pages: int = 64,
        max_model_tokens: int = 512,
        step_s: float = 0.0,
        poison: int | None = None,
        deadly: int | None = None,
    ) -> None:
        self.facts = RunnerFacts(
            vocab_size=VOCAB_SIZE,
            num_pages=num_pages,
            max_model_tokens=max_model_tokens,
            eos_token_ids=frozenset({EOS}),
            revision="fake",
            kv_dtype="float32",
        )
        self.rows: dict[int, Sequence] = {}
        self.plans: list[Plan] = []
        self._memory: dict[int, tuple[int, int]] = {}  # slot → (position, token)
        self._step_s = step_s
        self._poison = poison
        self._deadly = deadly

    def copy_states(self, copies: list[StateCopy]) -> None:
        """Nothing: it has none."""

    def run(self, plan: Plan) -> StepResult:
        self.plans.append(plan)
        if self._step_s:
            time.sleep(self._step_s)
        for chunk in plan.chunks:
            if self._deadly is not None and self._deadly in chunk.sequence.tokens:
                os._exit(1)
            if self._poison is not None and self._poison in chunk.sequence.tokens:
                raise RuntimeError("poisoned")
        for chunk in plan.chunks:
            sequence = chunk.sequence
            assert self.rows.setdefault(sequence.row, sequence) is sequence, "two sequences share a row"
            tokens = [*sequence.tokens, *chunk.draft]
            depths = tree_depths(chunk.parents) or range(1, chunk.num_tokens)
            positions = [chunk.start, *(chunk.start + depth for depth in depths)]
            for place in range(chunk.start, chunk.end):
                self._memory[_slot(sequence, place)] = (positions[place - chunk.start], tokens[place])
        sampled = [chunk for chunk in plan.chunks if chunk.samples]
        drawn = [token_id for chunk in sampled for token_id in self._draws(chunk)]
        verdict = verify([chunk.draft for chunk in sampled], drawn, [chunk.parents for chunk in sampled])
        slots = [
            _slot(c.sequence, c.end - 1 - len(c.draft) + i) for c in sampled for i in range(len(c.draft) + 1)
        ]
        sources, targets = detours(verdict, range(len(slots)))
        moved = [self._memory[slots[source]] for source in sources]
        self._memory |= {slots[target]: entry for target, entry in zip(targets, moved, strict=True)}
        return StepResult(verdict.token_ids, [True] * len(plan.chunks), verdict.accepted)

    def forget(self, sequence: Sequence) -> None:
        self.rows = {row: owner for row, owner in self.rows.items() if owner is not sequence}

    def _draws(self, chunk: ScheduledChunk) -> list[int]:
        """What follows the sequence, and each draft after the path to it."""
        known = len(chunk.sequence.tokens)
        places: list[tuple[int, ...]]  # of the drafts on the way to each
        places = [tuple(range(known, known + i + 1)) for i in range(len(chunk.draft))]
        if chunk.parents:
            places = paths(range(known, known + len(chunk.draft)), chunk.parents)
        return [self._next(chunk.sequence, [*range(known), *path]) for path in [(), *places]]

    def _next(self, sequence: Sequence, places: list[int]) -> int:
        context: list[int] = []
        for position, place in enumerate(places):
            where, token = self._memory[_slot(sequence, place)]
            assert where == position
            context.append(token)
        return next_token(context)


def next_token(context: list[int]) -> int:
    """What the fake model says after `context`."""
    digest = hashlib.blake2b(repr(context).encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big") % VOCAB_SIZE


def expected(prompt: list[int], max_tokens: int) -> list[int]:
    """What the fake model generates, without the EOS that may end it."""
    tokens = list(prompt)
    while len(tokens) < len(prompt) + max_tokens:
        token = next_token(tokens)
        if token == EOS:
            break
        tokens.append(token)
    return tokens[len(prompt) :]


def _slot(sequence: Sequence, position: int) -> int:
    return sequence.pages[position // PAGE_TOKENS] * PAGE_TOKENS + position % PAGE_TOKENS
