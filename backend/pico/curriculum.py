"""The training mix: sampling of families and tiers, and their wrapping in conversations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

from backend.pico.conversations import Conversation, messages_of
from backend.pico.tasks import DRILL, FAMILIES, Instance, Split

SYSTEM_PROMPTS = (
    "You are a helpful assistant.",
    "You are a helpful assistant. Be brief.",
    "You are pico.",
    "Answer briefly.",
    "You are a concise assistant.",
    "Answer with the result only.",
    "You are a friendly and helpful assistant. Answer the question of the user.",
    "Be precise and short.",
    "You are an AI assistant. Today is a nice day.",
)
TAUGHT_TIERS = (1, 2)  # pico-small is trained mostly on these
FAMILY_WEIGHTS = {
    "arithmetic": 2.0,
    "categories": 1.3,
    "instructions": 1.6,
    "word_problems": 1.2,
    "sequences": 1.5,
    "strings": 1.6,
    "smalltalk": 0.5,
    "out_of_scope": 0.4,
    "extraction": 1.8,
    "tables": 4.0,
    "logic": 3.0,
    "references": 1.8,
    "facts": 2.6,  # closed knowledge: each fact has to be seen many times
    "counting": 1.6,
    "tools": 2.0,
}
SYSTEM_SHARE = 0.12
EXTRA_TURN_SHARE = 0.1
ROUGH_SHARE = 0.15  # of prompts: lower case, without final punctuation
FLOOR = 0.1  # fraction of its weight that a mastered cell keeps
FULL_AT = 1 / 3  # error rate from which on a cell has its full weight
_QUESTION_OPENERS = frozenset(
    ("what", "which", "how", "is", "give", "sort", "count", "convert", "calculate", "find")
)
_GREETINGS = frozenset(("hi", "hello", "hey", "good", "thanks", "thank", "bye", "who"))


class Cell(NamedTuple):
    """The unit of which accuracy is measured."""

    family: str
    tier: int
    thinking: bool = False


# Sampling weight of each tier, with and without thinking, before it is adapted to the measured errors.
Emphasis = Mapping[tuple[int, bool], float]
_DIRECT = {
    (DRILL, False): 0.5,
    (1, False): 0.25,
    (2, False): 0.25,
    (3, False): 0.08,
    (4, False): 0.03,
    (5, False): 0.02,
}
_THINKING = {(1, True): 0.5, (2, True): 1.0, (3, True): 1.6, (4, True): 0.8, (5, True): 0.6}
EMPHASIS: dict[str, Emphasis] = {
    "pico-small": {
        (DRILL, False): 0.6,
        (1, False): 0.7,
        (2, False): 1.0,
        (3, False): 0.1,
        (4, False): 0.04,
        (5, False): 0.03,
    },
    "pico-base": {**_DIRECT, **_THINKING},
    "pico-large": {**_DIRECT, **_THINKING},
    "pico-draft": {**_DIRECT, **_THINKING},
}


@dataclass(slots=True)
class Mix:
    """Sampling weights over cells; `update` shifts them towards cells with errors."""

    emphasis: Emphasis
    accuracy: dict[Cell, float] = field(default_factory=dict)  # on the validation split

    def cells(self) -> list[Cell]:
        """Return all cells with a weight."""
        return [
            Cell(name, tier, thinking)
            for name, family in FAMILIES.items()
            for tier, thinking in self.emphasis
            if tier in family.practised
        ]

    def weights(self) -> dict[Cell, float]:
        """Return the sampling probability of each cell."""
        found = {
            cell: FAMILY_WEIGHTS.get(cell.family, 1.0)
            * self.emphasis[cell.tier, cell.thinking]
            * (FLOOR + min(1.0, (1.0 - self.accuracy.get(cell, 0.0)) / FULL_AT))
            for cell in self.cells()
        }
        total = sum(found.values())
        return {cell: weight / total for cell, weight in found.items()}

    def update(self, measured: Mapping[Cell, float], memory: float = 0.5) -> None:
        """Update the moving average of each cell's accuracy."""
        for cell, value in measured.items():
            self.accuracy[cell] = memory * self.accuracy.get(cell, value) + (1 - memory) * value


def roughen(rng: Random, prompt: str) -> str:
    """Return the prompt as hastily typed: without final punctuation or capital, at random."""
    first = prompt.split(" ", 1)[0].lower().rstrip("!.,")
    if first in _QUESTION_OPENERS | _GREETINGS and rng.random() < 0.5:
        prompt = prompt[0].lower() + prompt[1:]
    return prompt.rstrip("?.!") if rng.random() < 0.6 and len(prompt) > 3 else prompt


def conversation(rng: Random, instances: list[Instance], *, thinking: bool = False) -> Conversation:
    """Return a conversation that asks the instances in turn; only the last one may have reasoning."""
    *earlier, last = instances
    found = messages_of(last, thinking=thinking)
    messages = found["messages"]
    plain = len(messages) == 2 and found["tools"] is None
    if plain and rng.random() < ROUGH_SHARE:
        messages[0]["content"] = roughen(rng, last.prompt)
    if plain:
        before = [
            message for instance in earlier for message in messages_of(instance, thinking=False)["messages"]
        ]
        messages[:0] = before
        if rng.random() < SYSTEM_SHARE:
            messages.insert(0, {"role": "system", "content": rng.choice(SYSTEM_PROMPTS)})
    return found


def sample_conversations(rng: Random, mix: Mix, count: int, split: Split = "train") -> list[Conversation]:
    """Draw conversations from the mix; some have several turns. Drills occur in the training split only."""
    weights = {
        cell: weight for cell, weight in mix.weights().items() if cell.tier != DRILL or split == "train"
    }
    cells = list(weights)
    names = sorted({cell.family for cell in cells} - {"tools", "references", "instructions"})
    found = []
    for cell in rng.choices(cells, list(weights.values()), k=count):
        instances = [FAMILIES[cell.family].generate_in(rng, cell.tier, split)]
        while rng.random() < EXTRA_TURN_SHARE:
            other = FAMILIES["smalltalk" if rng.random() < 0.5 else rng.choice(names)]
            instances.insert(0, other.generate_in(rng, rng.choice(TAUGHT_TIERS), split))
        found.append(conversation(rng, instances, thinking=cell.thinking))
    return found
