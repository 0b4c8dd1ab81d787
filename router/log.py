"""Lines of the decision log: recorded decisions, and labels of the models' answers to them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Literal

import msgspec

from router.estimate.asking import asking_part
from router.estimate.train import Outcome


class ReplicaQuote(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a prompt was predicted to cost one engine process of its model."""

    replica: int
    seconds: float = 0.0  # to the first token
    queue_tokens: int = 0  # of prompts before it
    uncached_tokens: int = 0  # of the prompt, to be computed
    cached_tokens: int = 0
    why_not: str = ""  # it could not be chosen


class Placement(msgspec.Struct, frozen=True, kw_only=True):
    """Which of a model's engine processes got a request, and why."""

    chosen: int
    reason: str
    quotes: list[ReplicaQuote]


class Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One request and what became of it: values of variables, no name of a user."""

    facts: dict[str, Any]  # by variable; `time` as ISO 8601
    version: str  # of the policies
    id: str = ""  # of the request
    trace: str = ""  # W3C trace id, where it is traced
    model: str = ""  # that answered; "" when the request was refused
    chosen: str = ""  # the model that the rules chose, where another one took over
    route: str = ""
    rule: str = ""
    reason: str = ""
    status: int = 200
    gain: float | None = None  # predicted, where the rules ask for it
    familiarity: float | None = None  # to the estimate's data, where it was too low for a gain
    input_tokens: int = 0
    output_tokens: int = 0
    duration_s: float = 0.0
    placements: list[Placement] = []  # of the models that were asked, where an engine has replicas
    prompt: str = ""  # the last turn of the user, where the policies allow it


class Label(msgspec.Struct, frozen=True, kw_only=True):
    """How good models' answers to a recorded request were."""

    label_of: str  # the request's id
    scores: dict[str, float]
    kind: Literal["feedback", "shadow"] = "feedback"


def outcomes_of(lines: Iterable[Record | Label]) -> Iterator[Outcome]:
    """The recorded prompts with scores of two models or more, each prompt once."""
    prompts: dict[str, Record] = {}
    scores: dict[str, dict[str, float]] = {}
    for line in lines:
        if isinstance(line, Label):
            scores.setdefault(line.label_of, {}).update(line.scores)
        elif line.prompt:
            prompts[line.id] = line
    seen = set()
    for number, record in prompts.items():
        found = scores.get(number, {})
        if len(found) >= 2 and record.prompt not in seen:
            seen.add(record.prompt)
            has_tools = bool(record.facts.get("request.has_tools"))
            yield Outcome(asking_part(record.prompt), found, {}, "", "log", has_tools)
