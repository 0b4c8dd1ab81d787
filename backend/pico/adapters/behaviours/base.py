"""Interface of a behaviour: how it rewrites a plain answer, and how a text is graded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from backend.pico.tasks import Instance
from backend.pico.tasks.base import Turn, normalise


@dataclass(frozen=True, slots=True)
class Behaviour:
    """A style of answering, independent of the question.

    `rewrite` converts a plain answer; `follows_form` checks the form of a text only; `same` compares the
    content of two texts in this form.
    """

    name: str
    summary: str
    example: str
    rewrite: Callable[[str], str]
    follows_form: Callable[[str], bool]
    same: Callable[[str, str], bool] = field(default=lambda one, other: normalise(one) == normalise(other))
    family_weights: Mapping[str, float] = field(default_factory=dict)  # 1 for the others

    def applies(self, instance: Instance) -> bool:
        """Return whether the behaviour changes the answer to this instance."""
        return self.rewrite(instance.answer) != instance.answer

    def follows(self, instance: Instance, text: str) -> bool:
        """Return whether the text has the behaviour's form, or is plain where that does not apply."""
        return self.follows_form(text) == self.applies(instance)

    def right(self, instance: Instance, text: str) -> bool:
        """Return whether the text is the right answer in the behaviour's form."""
        return self.same(text, self.rewrite(instance.answer))


def transform(behaviour: Behaviour, instance: Instance) -> Instance:
    """Return the instance with its answer, and earlier answers of its conversation, rewritten."""
    turns = tuple(
        Turn(turn.role, behaviour.rewrite(turn.content)) if turn.role == "assistant" else turn
        for turn in instance.context.turns
    )
    return replace(
        instance,
        answer=behaviour.rewrite(instance.answer),
        context=replace(instance.context, turns=turns),
    )
