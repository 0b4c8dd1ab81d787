"""What a behaviour is: how it says a plain answer, and how a text is judged."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from backend.pico.tasks import Instance
from backend.pico.tasks.base import Turn, normalise


@dataclass(frozen=True, slots=True)
class Behaviour:
    """A manner of answering, independent of what is asked.

    `rewrite` turns a plain answer into the manner's; `follows` judges a text's form alone. `same` tells
    whether two texts of the manner say the same thing.
    """

    name: str
    summary: str
    example: str
    rewrite: Callable[[str], str]
    follows_form: Callable[[str], bool]
    same: Callable[[str, str], bool] = field(default=lambda one, other: normalise(one) == normalise(other))
    family_weights: Mapping[str, float] = field(default_factory=dict)  # beside 1 for the others

    def applies(self, instance: Instance) -> bool:
        """Whether the manner changes this answer at all."""
        return self.rewrite(instance.answer) != instance.answer

    def follows(self, instance: Instance, text: str) -> bool:
        """Whether the text has the manner's form, or stays plain where the manner does not apply."""
        return self.follows_form(text) == self.applies(instance)

    def right(self, instance: Instance, text: str) -> bool:
        """Whether the text says the instance's answer in the manner's form."""
        return self.same(text, self.rewrite(instance.answer))


def transform(behaviour: Behaviour, instance: Instance) -> Instance:
    """The instance as the behaviour answers it, earlier answers of its conversation included."""
    turns = tuple(
        Turn(turn.role, behaviour.rewrite(turn.content)) if turn.role == "assistant" else turn
        for turn in instance.context.turns
    )
    return replace(
        instance,
        answer=behaviour.rewrite(instance.answer),
        context=replace(instance.context, turns=turns),
    )
