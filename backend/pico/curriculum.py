"""The training mix: which family and tier comes next, and how it is wrapped in a conversation."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from backend.pico.tasks import FAMILIES, Instance, Split

Message = dict[str, str]
Cell = tuple[str, int]

SYSTEM_PROMPTS = (
    "You are a helpful assistant.",
    "You are a helpful assistant. Be brief.",
    "You are pico-small.",
    "Answer briefly.",
    "You are a concise assistant.",
    "Answer with the result only.",
    "You are a friendly and helpful assistant. Answer the question of the user.",
    "Be precise and short.",
    "You are an AI assistant. Today is a nice day.",
)
TAUGHT_TIERS = (1, 2)  # the tiers that the model must master
HARD_SHARE = 0.1  # of the samples, for tiers 3 to 5
HARD_TIER_WEIGHTS = {3: 1.0, 4: 0.5, 5: 0.3}
TIER_WEIGHTS = {1: 0.7, 2: 1.0}
FAMILY_WEIGHTS = {
    "arithmetic": 3.0,
    "word_problems": 1.2,
    "sequences": 1.2,
    "strings": 1.3,
    "smalltalk": 0.6,
    "out_of_scope": 0.5,
    "extraction": 2.5,
}
SYSTEM_SHARE = 0.12
EXTRA_TURN_SHARE = 0.1
ROUGH_SHARE = 0.15  # of the prompts, without final punctuation or capital
FLOOR = 0.15  # of its weight, that a mastered cell keeps
_QUESTION_OPENERS = frozenset(
    ("what", "which", "how", "is", "give", "sort", "count", "convert", "calculate", "find")
)


@dataclass(slots=True)
class Mix:
    """Weights over (family, tier) cells; `update` moves them towards what still fails."""

    accuracy: dict[Cell, float] = field(default_factory=dict)  # filled from the validation split

    def weights(self) -> dict[Cell, float]:
        """The probability of each cell; they add up to one."""
        taught: dict[Cell, float] = {}
        hard: dict[Cell, float] = {}
        for name, family in FAMILIES.items():
            scale = FAMILY_WEIGHTS.get(name, 1.0)
            for tier in family.tiers:
                if tier in TAUGHT_TIERS:
                    error = 1.0 - self.accuracy.get((name, tier), 0.0)
                    taught[name, tier] = scale * TIER_WEIGHTS[tier] * (FLOOR + min(1.0, 1.5 * error))
                else:
                    hard[name, tier] = scale * HARD_TIER_WEIGHTS[tier]
        taught_total, hard_total = sum(taught.values()), sum(hard.values())
        mixed = {cell: (1 - HARD_SHARE) * weight / taught_total for cell, weight in taught.items()}
        return mixed | {cell: HARD_SHARE * weight / hard_total for cell, weight in hard.items()}

    def update(self, measured: dict[Cell, float], memory: float = 0.5) -> None:
        """Blend newly measured accuracies into the running ones."""
        for cell, value in measured.items():
            self.accuracy[cell] = memory * self.accuracy.get(cell, value) + (1 - memory) * value


def roughen(rng: Random, prompt: str) -> str:
    """The prompt as a hurried user types it: no final punctuation, no capital."""
    first = prompt.split(" ", 1)[0].lower()
    if first in _QUESTION_OPENERS and rng.random() < 0.5:
        prompt = prompt[0].lower() + prompt[1:]
    return prompt.rstrip("?.") if rng.random() < 0.6 and len(prompt) > 3 else prompt


def conversation(rng: Random, instances: list[Instance]) -> list[Message]:
    """A conversation that asks the instances in turn."""
    messages: list[Message] = []
    if rng.random() < SYSTEM_SHARE:
        messages.append({"role": "system", "content": rng.choice(SYSTEM_PROMPTS)})
    for instance in instances:
        prompt = roughen(rng, instance.prompt) if rng.random() < ROUGH_SHARE else instance.prompt
        messages.append({"role": "user", "content": prompt})
        messages.append({"role": "assistant", "content": instance.answer})
    return messages


def sample_conversations(rng: Random, mix: Mix, count: int, split: Split = "train") -> list[list[Message]]:
    """Draw conversations from the mix; some have several turns."""
    weights = mix.weights()
    cells = list(weights)
    drawn = rng.choices(cells, [weights[cell] for cell in cells], k=count)
    found = []
    for name, tier in drawn:
        instances = [FAMILIES[name].generate_in(rng, tier, split)]
        while rng.random() < EXTRA_TURN_SHARE:
            other = FAMILIES["smalltalk"] if rng.random() < 0.5 else FAMILIES[rng.choice(cells)[0]]
            instances.insert(0, other.generate_in(rng, rng.choice(TAUGHT_TIERS), split))
        found.append(conversation(rng, instances))
    return found
