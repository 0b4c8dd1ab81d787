"""Asks the questions of a route and of both of its models, and compares."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

import numpy as np
from rich.console import Console

from backend.pico.tasks import Instance
from gateway.evaluation.client import ApiClient, RequestFailed, with_remedy
from gateway.evaluation.flags import ModelsPlan
from gateway.evaluation.questions import draw_questions, request_fields
from gateway.evaluation.route.compare import Pair, by_family, ratios, seconds_of
from gateway.evaluation.route.curves import Asked, cascade_curve, gain_curve
from gateway.evaluation.route.flags import RoutePlan
from gateway.evaluation.route.machine import Work, engine_work, spent
from gateway.evaluation.route.report import Document, plot_of, show
from gateway.evaluation.runner import Outcome, Run, Runner, Subject
from gateway.settings import SettingsError
from router.estimate import load_estimate

EXIT_FAILED = 1
WARM_UP = 8
"""Questions that are asked first, so that no engine compiles while it is measured."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One subject's run, and what engines did for it."""

    run: Run
    work: dict[str, dict[str, Work]]  # by family, "": of all at once; then by model

    @property
    def accuracy(self) -> float:
        """Share of right answers."""
        return self.run.verdicts["right"] / max(1, len(self.run.outcomes))

    def of_all(self, model: str = "") -> Work:
        """The work of all families, and of all engines unless a model is named."""
        found = [work for each in self.work.values() for name, work in each.items() if model in ("", name)]
        return sum(found, Work())


def evaluate_route(plan: RoutePlan) -> int:
    """Measure, print, write the files; returns the exit code. Raises SettingsError, WeightsError."""
    asking = plan.asking
    questions = draw_questions(asking.families, asking.tiers, asking.limit, asking.seed)
    try:
        found = asyncio.run(_measure(asking, questions, (plan.weak, plan.strong, plan.route)))
    except RequestFailed as error:
        sys.stderr.write(f"penstock: {with_remedy(error)}\n")
        return EXIT_FAILED
    document = _document(found, plan.estimate)
    is_written = asking.outputs.write(document, plot_of(document))
    show(Console(), document)
    return EXIT_FAILED if not is_written or any(each.run.verdicts["failed"] for each in found) else 0


async def _measure(plan: ModelsPlan, questions: Sequence[Instance], names: Sequence[str]) -> list[Measured]:
    client = ApiClient(plan.base_url, plan.api_key, plan.timeout_s, plan.proxy)
    runner = Runner(client, plan.concurrency, plan.max_tokens, wants_logprobs=True)
    mixed = Random(plan.seed).sample(questions, len(questions))
    families = {family: [q for q in mixed if q.family == family] for family in plan.families}
    found = []
    try:
        await client.models()  # is it there? Questions would be tried again and again
        for name in names:
            await runner.run(Run(Subject(name), WARM_UP), mixed[:WARM_UP], lambda: None)
            before = await engine_work(plan.base_url)
            run = Run(Subject(name, plan.effort), len(questions))
            work: dict[str, dict[str, Work]] = {}
            # Of a route after each family; its models work at full load, for the seconds of a token.
            for part, asked in families.items() if name == names[-1] else [("", mixed)]:
                await runner.run(run, asked, lambda: None)
                if run.gave_up_because:
                    raise SettingsError(f"{name}: {run.gave_up_because}")
                after = await engine_work(plan.base_url)
                work[part], before = spent(before, after), after
            found.append(Measured(run, work))
    finally:
        await client.close()
    return found


def _document(found: Sequence[Measured], estimate_name: str) -> Document:
    weak, strong, route = found
    per_token = {each.run.subject.model: _per_token(each) for each in (weak, strong)}
    models = Counter(answer.model for answer in route.run.answers)
    asked = _asked(weak, strong, per_token, estimate_name)
    pairs = _pairs(strong, route, per_token)
    return {
        "questions": weak.run.num_questions,
        "subjects": [
            {
                "name": each.run.subject.label,
                "accuracy": round(each.accuracy, 4),
                "machine_s": round(sum(seconds_of(work, per_token) for work in each.work.values()), 3),
                "measured_s": round(each.of_all().seconds, 3),
                "tokens": {model: round(each.of_all(model).tokens) for model in per_token},
                "failed": each.run.verdicts["failed"],
            }
            for each in found
        ],
        "share": {name: round(count / max(1, models.total()), 4) for name, count in models.most_common()},
        "of_strong": ratios(pairs),
        "families": by_family(pairs),
        "curves": {"quality per cost": gain_curve(asked), "cascade": cascade_curve(asked)},
    }


def _per_token(measured: Measured) -> float:
    """Seconds that a token took the model's engine when it answered all questions alone."""
    work = measured.of_all(measured.run.subject.model)
    return work.seconds / max(1.0, work.tokens)


def _tokens(outcome: Outcome) -> int:
    return outcome.tokens.prompt + outcome.tokens.completion


def _pairs(strong: Measured, route: Measured, per_token: dict[str, float]) -> list[Pair]:
    """Each question that both answered. A part's work is shared out by the tokens of its answers."""
    first, second = (_shared_out(each, per_token) for each in (strong, route))
    found = []
    for key, (answered, strong_s) in first.items():
        if key in second:
            routed, route_s = second[key]
            right = routed.verdict == "right", answered.verdict == "right"
            found.append(Pair(answered.question.family, *right, route_s, strong_s))
    return found


def _shared_out(measured: Measured, per_token: dict[str, float]) -> dict[int, tuple[Outcome, float]]:
    found: dict[int, tuple[Outcome, float]] = {}
    for part, work in measured.work.items():
        outcomes = [each for each in measured.run.outcomes if part in ("", each.question.family)]
        total, part_s = max(1, sum(map(_tokens, outcomes))), seconds_of(work, per_token)
        found |= {id(each.question): (each, part_s * _tokens(each) / total) for each in outcomes}
    return found


def _asked(weak: Measured, strong: Measured, per_token: dict[str, float], estimate_name: str) -> list[Asked]:
    """Each question that both models answered, with its share of the machine's time by tokens."""
    estimate = load_estimate(estimate_name)
    outcomes = [{id(each.question): each for each in measured.run.outcomes} for measured in (weak, strong)]
    weak_s, strong_s = (per_token[each.run.subject.model] for each in (weak, strong))
    found = []
    for key, first in outcomes[0].items():
        second = outcomes[1].get(key)
        if first.answer is None or second is None or second.answer is None:
            continue
        fields = request_fields(first.question)
        text = next((m["content"] for m in reversed(fields["messages"]) if m["role"] == "user"), "")
        found.append(
            Asked(
                first.verdict == "right",
                second.verdict == "right",
                weak_s * _tokens(first),
                strong_s * _tokens(second),
                estimate.predict(text, has_tools="tools" in fields).gain,
                np.nan if first.answer.confidence is None else first.answer.confidence,
            )
        )
    return found
