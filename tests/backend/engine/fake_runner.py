"""A runner without a model: its KV memory is a dictionary, its next token a hash of the whole context.

It reads the context back through the pages, so that a wrong page, slot or position changes the answer.
"""

from __future__ import annotations

import hashlib
import time

from backend.engine.base import RunnerFacts, StepResult
from backend.speculative.verify import verify
from backend.types import PAGE_TOKENS, Plan, Sequence

VOCAB_SIZE = 1000
EOS = 2


class FakeRunner:
    """Implements Runner; `step_s` makes it slow, a token `poison` in the context makes a request fail."""

    def __init__(
        self, num_pages: int = 64, max_model_tokens: int = 512, step_s: float = 0.0, poison: int | None = None
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

    def run(self, plan: Plan) -> StepResult:
        self.plans.append(plan)
        if self._step_s:
            time.sleep(self._step_s)
        for chunk in plan.chunks:
            if self._poison is not None and self._poison in chunk.sequence.tokens:
                raise RuntimeError("poisoned")
        for chunk in plan.chunks:
            sequence = chunk.sequence
            assert self.rows.setdefault(sequence.row, sequence) is sequence, "two sequences share a row"
            tokens = [*sequence.tokens, *chunk.draft]
            for position in range(chunk.start, chunk.end):
                self._memory[_slot(sequence, position)] = (position, tokens[position])
        sampled = [chunk for chunk in plan.chunks if chunk.samples]
        drawn = [self._next(c.sequence, i) for c in sampled for i in range(len(c.draft) + 1)]
        verdict = verify([chunk.draft for chunk in sampled], drawn)
        return StepResult(verdict.token_ids, [True] * len(plan.chunks), verdict.accepted)

    def forget(self, sequence: Sequence) -> None:
        self.rows = {row: owner for row, owner in self.rows.items() if owner is not sequence}

    def _next(self, sequence: Sequence, num_drafts: int) -> int:
        context: list[int] = []
        for position in range(len(sequence.tokens) + num_drafts):
            where, token = self._memory[_slot(sequence, position)]
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
