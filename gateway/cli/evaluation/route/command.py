"""Asks the questions of a route and of both of its models, and compares."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from rich.console import Console

from backend.pico.tasks import Instance
from gateway.cli.evaluation.client import ApiClient, RequestFailed
from gateway.cli.evaluation.files import check_plot, write_file
from gateway.cli.evaluation.flags import Plan
from gateway.cli.evaluation.questions import draw_questions, request_fields
from gateway.cli.evaluation.route.curves import Asked, cascade_curve, gain_curve
from gateway.cli.evaluation.route.machine import machine_seconds
from gateway.cli.evaluation.route.report import Document, save_plot, show
from gateway.cli.evaluation.runner import Run, Runner, Subject, sum_tokens
from gateway.settings import SettingsError
from router.estimate import load_estimate

EXIT_FAILED = 1
WARM_UP = 8
"""Questions that are asked first, so that no engine compiles while it is measured."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One subject's run, and how long engines worked for it."""

    run: Run
    machine_s: float

    @property
    def accuracy(self) -> float:
        """Share of right answers."""
        return self.run.verdicts["right"] / max(1, len(self.run.outcomes))


def evaluate_route(plan: Plan, options: argparse.Namespace) -> int:
    """Measure, print, write the files; returns the exit code. Raises SettingsError, WeightsError."""
    if plan.plot_path is not None:
        check_plot(plan.plot_path)
    questions = draw_questions(plan.families, plan.tiers, plan.limit, plan.seed)
    names = (options.weak, options.strong, options.route)
    try:
        found = asyncio.run(_measure(plan, questions, names))
    except RequestFailed as error:
        sys.stderr.write(f"penstock: {error}\n")
        return EXIT_FAILED
    document = _document(found, options.estimate)
    if plan.json_path is not None:
        write_file(plan.json_path, f"{json.dumps(document, indent=1)}\n".encode())
    show(Console(), document)
    if plan.plot_path is not None:
        save_plot(document, plan.plot_path)
    return EXIT_FAILED if any(each.run.verdicts["failed"] for each in found) else 0


async def _measure(plan: Plan, questions: Sequence[Instance], names: Sequence[str]) -> list[Measured]:
    client = ApiClient(plan.base_url, plan.api_key, plan.timeout_s, plan.proxy)
    runner = Runner(client, plan.concurrency, plan.max_tokens, wants_logprobs=True)
    found = []
    try:
        for name in names:
            await runner.run(Run(Subject(name), WARM_UP), questions[:WARM_UP], lambda: None)
            before = await machine_seconds(plan.base_url)
            run = Run(Subject(name, plan.effort), len(questions))
            await runner.run(run, questions, lambda: None)
            if run.gave_up_because:
                raise SettingsError(f"{name}: {run.gave_up_because}")
            after = await machine_seconds(plan.base_url)
            spent = sum(seconds - before.get(model, 0.0) for model, seconds in after.items())
            found.append(Measured(run, spent))
    finally:
        await client.close()
    return found


def _document(found: Sequence[Measured], estimate_name: str) -> Document:
    weak, strong, route = found
    models = Counter(answer.model for answer in route.run.answers)
    asked = _asked(weak, strong, estimate_name)
    return {
        "questions": weak.run.num_questions,
        "subjects": [
            {
                "name": each.run.subject.label,
                "accuracy": round(each.accuracy, 4),
                "machine_s": round(each.machine_s, 3),
                "failed": each.run.verdicts["failed"],
            }
            for each in found
        ],
        "share": {name: round(count / max(1, models.total()), 4) for name, count in models.most_common()},
        "accuracy_of_strong": round(route.accuracy / max(1e-9, strong.accuracy), 4),
        "machine_s_of_strong": round(route.machine_s / max(1e-9, strong.machine_s), 4),
        "curves": {"quality per cost": gain_curve(asked), "cascade": cascade_curve(asked)},
    }


def _asked(weak: Measured, strong: Measured, estimate_name: str) -> list[Asked]:
    """Each question that both models answered, with its share of the machine's time by tokens."""
    estimate = load_estimate(estimate_name)
    outcomes = [{id(each.question): each for each in measured.run.outcomes} for measured in (weak, strong)]
    totals = [sum_tokens(measured.run.outcomes) for measured in (weak, strong)]
    spent = zip((weak, strong), totals, strict=True)
    per_token = [each.machine_s / max(1, total.prompt + total.completion) for each, total in spent]
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
                per_token[0] * (first.tokens.prompt + first.tokens.completion),
                per_token[1] * (second.tokens.prompt + second.tokens.completion),
                estimate.predict(text, has_tools="tools" in fields).gain,
                np.nan if first.answer.confidence is None else first.answer.confidence,
            )
        )
    return found
