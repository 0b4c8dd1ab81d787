"""The base of task families: instances, their split and the default grader.

The split of an instance is a hash of its key, and the key excludes the phrasing: a training question cannot
reappear in the test split in other words.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Literal

Split = Literal["train", "validation", "test"]

TRAIN_PERCENT = 80
VALIDATION_PERCENT = 8  # the remainder is the test split
MAX_ATTEMPTS = 10_000
DRILL = 0  # the tier of drills: trained on, never graded


@dataclass(frozen=True, slots=True)
class Turn:
    """An earlier exchange of a conversation, or a tool call with its result."""

    role: Literal["user", "assistant", "tool"]
    content: str


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call; all parameters are required strings or numbers."""

    name: str
    description: str
    parameters: tuple[tuple[str, str], ...]  # (name, JSON type)


@dataclass(frozen=True, slots=True)
class Context:
    """What precedes or follows a question, if anything: a system message, earlier turns, tools."""

    system: str = ""
    turns: tuple[Turn, ...] = ()  # before the prompt
    tools: tuple[Tool, ...] = ()
    after: tuple[Turn, ...] = ()  # between the prompt and the answer: tool calls and their results


NO_CONTEXT = Context()


@dataclass(frozen=True, slots=True)
class Instance:
    """A question with its answer; `key` identifies it independently of the phrasing."""

    family: str
    tier: int
    prompt: str
    answer: str
    key: str
    thought: str = ""  # the steps that lead to the answer, for the reasoning mode
    context: Context = NO_CONTEXT


@dataclass(frozen=True, slots=True)
class Draw:
    """The result of a tier function: alternative phrasings, the answer and the key."""

    prompts: Sequence[str]
    answer: str
    key: str
    thought: str = ""
    context: Context = NO_CONTEXT


TierFunction = Callable[[Random], Draw]
Grader = Callable[[Instance, str], bool]


def normalise(text: str) -> str:
    """Normalise for comparison: lower case, single spaces, no final full stop."""
    return " ".join(text.split()).lower().rstrip(".").strip()


def grade_exact(instance: Instance, text: str) -> bool:
    """Return whether the text is the answer, ignoring case, spacing and a final full stop."""
    return normalise(text) == normalise(instance.answer)


@dataclass(frozen=True, slots=True)
class Family:
    """A kind of task: one function per tier, a grader, and for some families drills."""

    name: str
    tiers: dict[int, TierFunction]
    grader: Grader = grade_exact
    drill: TierFunction | None = None

    @property
    def practised(self) -> dict[int, TierFunction]:
        """The tiers, and DRILL if there is one."""
        return self.tiers if self.drill is None else {DRILL: self.drill, **self.tiers}

    def generate(self, rng: Random, tier: int) -> Instance:
        """Draw an instance of the tier, from any split."""
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
        """Return whether the text answers the instance."""
        return self.grader(instance, text)


def split_of(instance: Instance) -> Split:
    """Return the instance's split, a function of its family and key only."""
    digest = hashlib.sha256(f"{instance.family}\x00{instance.key}".encode()).digest()
    bucket = int.from_bytes(digest[:8], "big") % 100
    if bucket < TRAIN_PERCENT:
        return "train"
    return "validation" if bucket < TRAIN_PERCENT + VALIDATION_PERCENT else "test"


def exercise(rng: Random, text: str, draws: Sequence[Draw]) -> Draw:
    """Return one conversation that asks all draws about one text; every answer is a training target.

    Raises ValueError if a draw has no phrasing that starts with the text.
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
    """Return the words as a comma-separated list."""
    return ", ".join(words)
