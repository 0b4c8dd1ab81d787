"""A runner without a model: its KV memory is a dictionary, its next token a hash of the whole context.

It reads the context back through the pages, so that a wrong page, slot or position changes the answer. Where
it is ahead it computes what was launched at once, but tells it when it is read, as a device does.
"""

from __future__ import annotations

import hashlib
import os
import time
from dataclasses import dataclass, field

from backend.engine.flight import live
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
        is_ahead: bool = False,
    ) -> None:
        self.facts = RunnerFacts(
            vocab_size=VOCAB_SIZE,
            num_pages=num_pages,
            max_model_tokens=max_model_tokens,
            eos_token_ids=frozenset({EOS}),
            revision="fake",
            kv_dtype="float32",
        )
        self.is_ahead = is_ahead
        self.rows: dict[int, Sequence] = {}
        self.last_draws: dict[int, int] = {}  # by row: what the device knows
        self.flying: list[LaunchedFake] = []
        self.plans: list[Plan] = []
        self._memory: dict[int, tuple[int, int]] = {}  # slot → (position, token)
        self._step_s = step_s
        self._poison = poison
        self._deadly = deadly

    def copy_states(self, copies: list[StateCopy]) -> None:
        """Nothing: it has none."""

    def run(self, plan: Plan) -> StepResult:
        step = self.launch(plan)
        step.draw()
        return step.read()

    def launch(self, plan: Plan) -> LaunchedFake:
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
            if chunk.start == len(sequence.tokens):
                assert self.is_ahead and sequence.num_pending == 1
                tokens.append(self.last_draws[sequence.row])
            depths = tree_depths(chunk.parents) or range(1, chunk.num_tokens)
            positions = [chunk.start, *(chunk.start + depth for depth in depths)]
            for place in range(chunk.start, chunk.end):
                self._memory[_slot(sequence, place)] = (positions[place - chunk.start], tokens[place])
        sampled = [chunk for chunk in plan.chunks if chunk.samples]
        slots = [
            _slot(c.sequence, c.end - 1 - len(c.draft) + i) for c in sampled for i in range(len(c.draft) + 1)
        ]
        drawn = [self._draws(chunk) for chunk in sampled]
        rows = [chunk.sequence.row for chunk in sampled]
        return LaunchedFake(self, plan, sampled, rows, slots, drawn)

    def forget(self, sequence: Sequence) -> None:
        self.rows = {row: owner for row, owner in self.rows.items() if owner is not sequence}

    def _draws(self, chunk: ScheduledChunk) -> list[int]:
        """What follows the sequence, and each draft after the path to it."""
        known = chunk.end - len(chunk.draft)
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


@dataclass(slots=True, eq=False)
class LaunchedFake:
    """A step of the fake runner: `draw` once all before it are read, then `read`, each once."""

    runner: FakeRunner
    plan: Plan
    sampled: list[ScheduledChunk]
    rows: list[int]
    slots: list[int]  # of the draws
    drawn: list[list[int]]
    told: list[str] = field(default_factory=list)

    def draw(self) -> None:
        assert not self.told
        unread = [chunk for step in self.runner.flying for chunk in live(step.plan).chunks]
        assert not unread, "the step before was not read"
        self.runner.flying.clear()
        self.told.append("draw")
        self.runner.last_draws |= zip(self.rows, (draws[-1] for draws in self.drawn), strict=True)
        self.runner.flying.append(self)

    def read(self) -> StepResult:
        assert self.told == ["draw"]
        self.told.append("read")
        self.runner.flying.remove(self)
        drafts, parents = [c.draft for c in self.sampled], [c.parents for c in self.sampled]
        verdict = verify(drafts, [token for draws in self.drawn for token in draws], parents)
        sources, targets = detours(verdict, range(len(self.slots)))
        memory = self.runner._memory
        moved = [memory[self.slots[source]] for source in sources]
        memory |= {self.slots[target]: entry for target, entry in zip(targets, moved, strict=True)}
        return StepResult(verdict.token_ids, [True] * len(self.plan.chunks), verdict.accepted)


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
