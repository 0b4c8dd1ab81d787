"""The questions of an evaluation: instances of the test split, drawn by a seed."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from random import Random
from typing import Any

from backend.pico.conversations import messages_of
from backend.pico.tasks import FAMILIES, Family, Instance
from gateway.evaluation.own.rows import OwnQuestion

Question = Instance | OwnQuestion
ALL_TIERS = (1, 2, 3, 4, 5)
DRAWS_PER_QUESTION = 40  # a small tier may hold fewer distinct questions than asked for


def draw_questions(
    families: Collection[str], tiers: Collection[int], limit: int, seed: int
) -> list[Instance]:
    """Up to `limit` distinct questions of each family and tier, in the order of FAMILIES."""
    return [
        question
        for name, family in FAMILIES.items()
        if name in families
        for tier in sorted(family.tiers)
        if tier in tiers
        for question in _cell(family, tier, limit, seed)
    ]


def _cell(family: Family, tier: int, limit: int, seed: int) -> Iterator[Instance]:
    rng = Random(f"evaluation:{seed}:{family.name}:{tier}")
    seen = set()
    for _ in range(limit * DRAWS_PER_QUESTION):
        question = family.generate_in(rng, tier, "test")
        if (question.prompt, question.context) in seen:
            continue
        seen.add((question.prompt, question.context))
        yield question
        if len(seen) == limit:
            return


def has_tools(question: Question) -> bool:
    """Whether the request offers tools."""
    return "tools" in question.fields if isinstance(question, OwnQuestion) else bool(question.context.tools)


def request_fields(question: Question) -> dict[str, Any]:
    """The request's `messages`, and `tools` if the question has any."""
    if isinstance(question, OwnQuestion):
        return question.fields
    conversation = messages_of(question, thinking=False)
    fields: dict[str, Any] = {"messages": conversation["messages"][:-1]}  # the last one is the answer
    if conversation["tools"]:
        fields["tools"] = conversation["tools"]
    return fields
