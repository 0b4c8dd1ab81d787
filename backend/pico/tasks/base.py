"""What a task family is: instances, their split and their default grader.

An instance is split by the hash of its key, and the key leaves out the phrasing: a question that the model
saw in training cannot come back in the test split in other words.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Literal

Split = Literal["train", "validation", "test"]

TRAIN_PERCENT = 80
VALIDATION_PERCENT = 8  # the rest is test
MAX_ATTEMPTS = 10_000
DRILL = 0  # the tier of exercises: trained on, never graded


@dataclass(frozen=True, slots=True)
class Turn:
    """One earlier exchange of a conversation, or a tool's result that the model asked for."""

    role: Literal["user", "assistant", "tool"]
    content: str


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call; all its parameters are required strings or numbers."""

    name: str
    description: str
    parameters: tuple[tuple[str, str], ...]  # (name, JSON type)


@dataclass(frozen=True, slots=True)
class Context:
    """What surrounds a question, when something does: a system message, earlier turns, tools."""

    system: str = ""
    turns: tuple[Turn, ...] = ()  # before the prompt
    tools: tuple[Tool, ...] = ()
    after: tuple[Turn, ...] = ()  # after the prompt and before the answer: tool calls and their results


NO_CONTEXT = Context()


@dataclass(frozen=True, slots=True)
class Instance:
    """One question with its answer; `key` identifies it whatever its phrasing."""

    family: str
    tier: int
    prompt: str
    answer: str
    key: str
    thought: str = ""  # the steps that lead to the answer, as the reasoning mode writes them
    context: Context = NO_CONTEXT


@dataclass(frozen=True, slots=True)
class Draw:
    """What a tier function returns: phrasings to choose from, the answer, the phrasing-free key."""

    prompts: Sequence[str]
    answer: str
    key: str
    thought: str = ""
    context: Context = NO_CONTEXT


TierFunction = Callable[[Random], Draw]
Grader = Callable[[Instance, str], bool]


def normalise(text: str) -> str:
    """Lower-case, single spaces, no final full stop: what two equal answers share."""
    return " ".join(text.split()).lower().rstrip(".").strip()


def grade_exact(instance: Instance, text: str) -> bool:
    """True when the text is the answer, up to case, spacing and a final full stop."""
    return normalise(text) == normalise(instance.answer)


@dataclass(frozen=True, slots=True)
class Family:
    """A kind of task: one function per tier and a grader; for some an exercise besides."""

    name: str
    tiers: dict[int, TierFunction]
    grader: Grader = grade_exact
    drill: TierFunction | None = None

    @property
    def practised(self) -> dict[int, TierFunction]:
        """The tiers, and DRILL where there is one."""
        return self.tiers if self.drill is None else {DRILL: self.drill, **self.tiers}

    def generate(self, rng: Random, tier: int) -> Instance:
        """Draw one instance of the tier, of any split."""
        draw = self.practised[tier](rng)
        prompt = draw.prompts[rng.randrange(len(draw.prompts))]
        return Instance(self.name, tier, prompt, draw.answer, draw.key, draw.thought, draw.context)

    def generate_in(self, rng: Random, tier: int, split: Split) -> Instance:
        """Draw instances until one belongs to the split."""
        for _ in range(MAX_ATTEMPTS):
            instance = self.generate(rng, tier)
            if split_of(instance) == split:
                return instance
        raise RuntimeError(
            f"{self.name!r} tier {tier}: no {split!r} instance in {MAX_ATTEMPTS} draws; widen the tier"
        )

    def grade(self, instance: Instance, text: str) -> bool:
        """True when the text answers the instance."""
        return self.grader(instance, text)


def split_of(instance: Instance) -> Split:
    """The split of an instance: a function of its family and key alone."""
    digest = hashlib.sha256(f"{instance.family}\x00{instance.key}".encode()).digest()
    bucket = int.from_bytes(digest[:8], "big") % 100
    if bucket < TRAIN_PERCENT:
        return "train"
    return "validation" if bucket < TRAIN_PERCENT + VALIDATION_PERCENT else "test"


def exercise(rng: Random, text: str, draws: Sequence[Draw]) -> Draw:
    """One conversation that asks all of them about the same text: it is read once, and each answer teaches.

    Raises ValueError when a draw has no phrasing that starts with the text.
    """
    turns: list[Turn] = []
    for draw in draws:
        questions = [prompt.removeprefix(text).strip() for prompt in draw.prompts if prompt.startswith(text)]
        if not questions:
            raise ValueError(f"no phrasing starts with {text!r}: {draw.prompts!r}; add one")
        turns += [Turn("user", rng.choice(questions)), Turn("assistant", draw.answer)]
    turns[0] = Turn("user", f"{text}\n{turns[0].content}")
    *earlier, last, answer = turns
    return Draw([last.content], answer.content, text, context=Context(turns=tuple(earlier)))


def join_words(words: Sequence[str]) -> str:
    """Words as a comma-separated list."""
    return ", ".join(words)
