"""Results of an evaluation as tables for a terminal and as a JSON document."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from decimal import Decimal
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from backend.classifiers.measures import wilson
from gateway.evaluation.own.rows import OwnQuestion
from gateway.evaluation.runner import Outcome, Run, Verdict, sum_tokens
from gateway.evaluation.tables import new_table

REASONS_SHOWN = 20
MANY_QUESTIONS = 1000  # the unit in which costs are reported

FORM_COUNTS = 'Form counts: "The answer is 91." is wrong where "91" is right (see --help).'

Cells = dict[tuple[str, int], Counter[Verdict]]


def count_cells(outcomes: Iterable[Outcome]) -> Cells:
    """Verdicts by family and tier, in order of first appearance."""
    cells: Cells = {}
    for outcome in outcomes:
        key = (outcome.question.family, outcome.question.tier)
        cells.setdefault(key, Counter())[outcome.verdict] += 1
    return cells


def accuracy(verdicts: Counter[Verdict]) -> float | None:
    """Share of right answers among the questions that were asked; None when none was.

    A failed request counts, otherwise a model would gain by failing at hard questions. Skipped ones do not.
    """
    asked = verdicts["right"] + verdicts["wrong"] + verdicts["failed"]
    return verdicts["right"] / asked if asked else None


def interval(verdicts: Counter[Verdict]) -> tuple[float, float] | None:
    """The 95 % interval (Wilson) of the accuracy; None when nothing was asked."""
    asked = verdicts["right"] + verdicts["wrong"] + verdicts["failed"]
    return wilson(verdicts["right"], asked) if asked else None


def verdicts_of(outcomes: Iterable[Outcome]) -> Counter[Verdict]:
    """Number of outcomes by verdict."""
    return Counter(outcome.verdict for outcome in outcomes)


def percentile(values: Sequence[float], percent: float) -> float:
    """The `percent`-th percentile of the values, by nearest rank."""
    return sorted(values)[max(0, math.ceil(percent / 100 * len(values)) - 1)]


def cost_of_many(run: Run, outcomes: Sequence[Outcome] | None = None) -> float | None:
    """USD per MANY_QUESTIONS, averaged over the answered questions among these; None when unknown."""
    answered = [o for o in (run.outcomes if outcomes is None else outcomes) if o.answer is not None]
    cost = run.cost_usd(answered)
    return float(cost * MANY_QUESTIONS / len(answered)) if cost is not None and answered else None


def show(console: Console, runs: Sequence[Run]) -> None:
    """Print the accuracy of every run, time and cost of all, and problems."""
    for run in runs:
        if not run.outcomes:
            continue
        if is_own(run):
            console.print(groups_table(run))
            console.print(reasons_table(run))
        else:
            console.print(accuracy_table(run))
    if any(run.answers for run in runs):
        if not any(map(is_own, runs)):
            console.print(Text(FORM_COUNTS))
        console.print(summary_table(runs))
    for run in runs:
        for line in problem_lines(run):
            console.print(Text(line))  # plain text: a server's message is not Rich markup


def accuracy_table(run: Run) -> Table:
    """Percent of right answers per family and tier."""
    cells = count_cells(run.outcomes)
    tiers = sorted({tier for _, tier in cells})
    title = f"{run.subject.label}: percent of right answers"
    table = new_table(title, "family", *(f"tier {tier}" for tier in tiers), "all", is_plain=True)
    for family in dict.fromkeys(name for name, _ in cells):
        found = [cells.get((family, tier), Counter()) for tier in tiers]
        table.add_row(family, *map(_percent, found), _percent(sum(found, Counter())))
    table.add_section()
    columns = [sum((c for (_, of), c in cells.items() if of == tier), Counter()) for tier in tiers]
    table.add_row("all", *map(_percent, columns), _percent(sum(columns, Counter())), style="bold")
    return table


def _percent(verdicts: Counter[Verdict]) -> str:
    if not (verdicts["right"] or verdicts["wrong"]) and verdicts["failed"]:
        return "failed"  # 0 % would blame the model
    found = accuracy(verdicts)
    if found is not None:
        return f"{100 * found:.1f}"
    return "skipped" if verdicts["skipped"] else ""


def is_own(run: Run) -> bool:
    """Whether the questions are those of a person's file."""
    return any(isinstance(each.question, OwnQuestion) for each in run.outcomes)


def groups_table(run: Run) -> Table:
    """Percent of right answers of each group of own questions, with intervals."""
    title = f"{run.subject.label}: percent of right answers"
    numbers = ("questions", "right", "wrong", "failed", "right, %", "95 % interval")
    table = new_table(title, "group", *numbers, is_plain=True)
    table.columns[0].overflow = "fold"
    found: dict[str, Counter[Verdict]] = {}
    for outcome in run.outcomes:
        found.setdefault(outcome.question.family, Counter())[outcome.verdict] += 1
    for name, counts in [*found.items(), ("all", run.verdicts)]:
        if name == "all":
            table.add_section()
        found_numbers = (counts.total(), counts["right"], counts["wrong"], counts["failed"])
        table.add_row(Text(name), *map(str, found_numbers), _percent(counts), _interval(counts))
    return table


def count_reasons(run: Run) -> Counter[tuple[str, str]]:
    """How often each grader found each reason, the most frequent first."""
    found = Counter(
        (each.question.grader_name, each.reason)
        for each in run.outcomes
        if isinstance(each.question, OwnQuestion) and each.reason
    )
    return Counter(dict(found.most_common()))


def reasons_table(run: Run) -> Table | Text:
    """Why answers are wrong, in the graders' words."""
    found = count_reasons(run)
    if not found:
        return Text("")
    title = f"{run.subject.label}: why answers are wrong"
    table = new_table(title, "grader", "reason", "answers", is_plain=True)
    table.columns[1].justify = "left"
    for column in table.columns:
        column.overflow = "fold"
    for (grader, reason), count in [*found.items()][:REASONS_SHOWN]:
        table.add_row(grader, Text(reason), str(count))
    return table


def _interval(verdicts: Counter[Verdict]) -> str:
    found = interval(verdicts)
    return "" if found is None else f"{100 * found[0]:.1f} to {100 * found[1]:.1f}"


def summary_table(runs: Sequence[Run]) -> Table:
    """Tokens, time and cost: one column per run."""
    table = new_table("what it took", "", *(run.subject.label for run in runs), is_plain=True)
    table.columns[0].no_wrap = True
    columns = [dict(_summary(run)) for run in runs]
    for name in columns[0]:
        table.add_row(name, *(column[name] for column in columns))
    return table


def _summary(run: Run) -> Iterator[tuple[str, str]]:
    answers, tokens = run.answers, sum_tokens(run.outcomes)
    seconds = [answer.seconds for answer in answers]
    yield "right", f"{_percent(run.verdicts) or '-'} %" if answers else "-"
    yield "  95 % interval", _interval(run.verdicts) if answers else "-"
    yield "answered", f"{len(answers)} of {run.num_questions}"
    yield "prompt tokens", f"{tokens.prompt:,}" if run.has_counts else "not counted"
    yield "completion tokens", f"{tokens.completion:,}" if run.has_counts else "not counted"
    yield "  for reasoning", f"{tokens.reasoning:,}" if run.has_counts else "not counted"
    yield "seconds", f"{run.wall_s:.1f}"
    yield "s per request, p50", f"{percentile(seconds, 50):.2f}" if seconds else "-"
    yield "s per request, p95", f"{percentile(seconds, 95):.2f}" if seconds else "-"
    cost, many = run.cost_usd(), cost_of_many(run)
    unknown = "no price" if run.has_all_counts else "not counted"
    yield "USD", f"{float(cost):.3g}" if cost is not None else unknown
    yield f"USD per {MANY_QUESTIONS:,}", f"{many:.3g}" if many is not None else unknown


def problem_lines(run: Run) -> Iterator[str]:
    """Caveats to the numbers: failed, skipped and truncated questions."""
    label = run.subject.label
    if failed := run.verdicts["failed"]:
        first, times = next(iter(run.problems.items()))
        others = len(run.problems) - 1
        more = f"; {others} other messages" if others else ""
        yield f"{label}: {failed} requests failed and count as not right, {times} of them with: {first}{more}"
    if skipped := run.verdicts["skipped"]:
        yield (
            f"{label}: skipped {skipped} questions that offer tools, because the server refuses them: "
            f"{run.refusal_of_tools}"
        )
    if missing := run.num_questions - len(run.outcomes):
        why = "the next ones would fail as well" if run.gave_up_because else "interrupted"
        yield f"{label}: {missing} questions were not asked: {why}"
    if cut := sum(answer.is_cut for answer in run.answers):
        yield f"{label}: {cut} answers were cut at the token limit; --max-tokens sets it"
    if ungraded := sum(bool(o.problem) for o in run.outcomes if o.verdict == "wrong"):
        yield f"{label}: {ungraded} answers could not be graded and count as wrong; --json keeps them"
    if not run.has_all_counts:
        yield f"{label}: the server did not count the tokens of every answer, so there is no cost"


def as_document(runs: Sequence[Run], conditions: dict[str, Any]) -> dict[str, Any]:
    """Everything, for other programs. `conditions` are the settings of the evaluation."""
    return {**conditions, "models": [_run_document(run) for run in runs]}


def _run_document(run: Run) -> dict[str, Any]:
    price, tokens, seconds = run.subject.price, sum_tokens(run.outcomes), [a.seconds for a in run.answers]
    cells = count_cells(run.outcomes)
    return {
        "model": run.subject.model,
        "reasoning_effort": run.subject.effort or None,
        "questions": run.num_questions,
        "is_complete": run.is_complete,
        **_counts(run.verdicts),
        "cells": [{"family": f, "tier": tier, **_counts(found)} for (f, tier), found in cells.items()],
        "reasons": [{"grader": g, "reason": why, "count": n} for (g, why), n in count_reasons(run).items()],
        "tokens": asdict(tokens) if run.has_counts else None,
        "seconds": {
            "wall": run.wall_s,
            "median": percentile(seconds, 50) if seconds else None,
            "p95": percentile(seconds, 95) if seconds else None,
        },
        "usd": _number(run.cost_usd()),
        "usd_per_1000_questions": cost_of_many(run),
        "price": price and {"prompt": f"{price.prompt_usd:f}", "completion": f"{price.completion_usd:f}"},
        "problems": [{"message": message, "count": count} for message, count in run.problems.items()],
        "notes": list(problem_lines(run)),
        "outcomes": [_outcome_document(outcome) for outcome in run.outcomes],
    }


def _counts(verdicts: Counter[Verdict]) -> dict[str, Any]:
    kinds: tuple[Verdict, ...] = ("right", "wrong", "failed", "skipped")
    return {
        "accuracy": accuracy(verdicts),
        "interval": interval(verdicts),
        **{kind: verdicts[kind] for kind in kinds},
    }


def _outcome_document(outcome: Outcome) -> dict[str, Any]:
    question, answer = outcome.question, outcome.answer
    document: dict[str, Any] = {
        "family": question.family,
        "tier": question.tier,
        "prompt": question.prompt,
        "expected": question.answer,
        "verdict": outcome.verdict,
    }
    if answer is not None:
        document |= {"answer": answer.text, "seconds": answer.seconds, "is_cut": answer.is_cut}
        document["completion_tokens"] = answer.tokens and answer.tokens.completion
        document["reasoning_tokens"] = answer.tokens and answer.tokens.reasoning
    if isinstance(question, OwnQuestion):
        document |= {"id": question.id, "grader": question.grader_name}
    more = {"problem": outcome.problem, "reason": outcome.reason, "remark": outcome.remark}
    document |= {name: text for name, text in more.items() if text}
    return document


def _number(value: Decimal | None) -> float | None:
    return None if value is None else float(value)
