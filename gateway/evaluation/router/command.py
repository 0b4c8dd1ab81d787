"""`penstock eval router`: predicts the gain of each outcome, measures, reports."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from backend.classifiers.weights import Tensor
from gateway.evaluation.router import report
from gateway.evaluation.router.inputs import MIN_QUESTIONS, Group, RouterPlan
from gateway.evaluation.vectors import embed_all
from gateway.settings import SettingsError
from router.estimate import Estimate, load_estimate
from router.estimate.estimate import weights_of
from router.estimate.perturb import PERTURBATIONS
from router.estimate.train import OWN_WEIGHT, Features, Outcome, fit, gains_of, save
from router.evaluate import Measures, accuracies, flips, measure

EXIT_FAILED = 1
MAX_PERTURBED = 500
Array = NDArray[np.float32]
Numbers = NDArray[np.int64]
Vectors = dict[str, Array]


@dataclass(frozen=True, slots=True)
class Result:
    """One row of the table."""

    source: str
    kind: str  # "shipped", "in domain" or "without TASK"
    weak: str
    strong: str
    measures: Measures
    curve: Array  # (21,) mean score at 0, 5, … 100 % strong calls


def evaluate_router(plan: RouterPlan) -> int:
    """Measure, print, write the files; returns the exit code. Raises SettingsError, WeightsError."""
    estimate = None if plan.estimate is None else load_estimate(plan.estimate)
    needs_vectors = plan.form == "blend" if estimate is None else estimate.needs_vector
    tested = [each.prompt for group in plan.groups for each in group.outcomes]
    prompts = [*tested, *(each.prompt for each in plan.training if estimate is None)]
    if needs_vectors and plan.estimate is not None:
        plan.encoder.check_weights(weights_of(plan.estimate))
    vectors = {}
    if needs_vectors:
        vectors = embed_all(prompts, plan.num_threads, is_int8=True, skip_long=True, encoder=plan.encoder)
    results: list[Result] = []
    robustness = {}
    for group in plan.groups:
        found, kind = estimate, "shipped"
        if estimate is None and plan.training:
            found, kind = _learned(group, plan, vectors), "trained elsewhere"
        if found is None:
            results += _trained(group, plan, vectors)
            continue
        results.append(_result(group, kind, group.outcomes, found, vectors))
        if not found.needs_vector:
            robustness[group.source] = _robustness(found, group)
    document: dict[str, object] = {
        "estimate": plan.estimate or f"trained here, {plan.form}",
        "results": [
            {"source": each.source, "kind": each.kind, "weak": each.weak, "strong": each.strong}
            | asdict(each.measures)
            | {"curve": [round(float(score), 4) for score in each.curve]}
            for each in results
        ],
        "models": {group.source: _models(group.outcomes) for group in plan.groups},
        "flips": robustness,
    }
    is_written = plan.outputs.write(document, report.plot_of(document))
    report.show(Console(), document)
    return 0 if is_written else EXIT_FAILED


def _trained(group: Group, plan: RouterPlan, vectors: Vectors) -> Iterator[Result]:
    """Estimates trained on random splits, averaged, and one without each task that is large enough."""
    outcomes = group.outcomes
    features = Features.of(outcomes, vectors if plan.form == "blend" else None)
    gains, numbers = gains_of(outcomes, group.weak, group.strong), np.arange(len(outcomes))

    def tested(kind: str, train: Numbers, test: Numbers, num_own: int = 0) -> Result:
        own = np.arange(len(train))[-num_own:] if num_own else None
        estimate = _estimate(fit(features.some(train), gains[train], own=own))
        return _result(group, kind, [outcomes[number] for number in test], estimate, vectors)

    found = []
    for seed in range(plan.num_splits):
        order = np.random.default_rng(seed).permutation(numbers)
        split = len(order) * 6 // 10
        found.append(tested("in domain", order[:split], order[split:]))
    yield _mean(found)
    tasks, foreign, labelled = np.array([each.task for each in outcomes]), [], []
    for task in sorted(set(tasks)):
        own, rest = numbers[tasks == task], numbers[tasks != task]
        if min(len(own), len(rest)) >= MIN_QUESTIONS:
            foreign.append(tested(f"without {task}", rest, own))
            yield foreign[-1]
            own = np.random.default_rng(0).permutation(own)
            known, unknown = own[: plan.num_labels], own[plan.num_labels :]
            if len(known) and len(unknown) >= MIN_QUESTIONS:
                train = np.concatenate([rest, np.repeat(known, OWN_WEIGHT)])
                kind = f"{task} with {len(known)} labels"
                labelled.append(tested(kind, train, unknown, OWN_WEIGHT * len(known)))
                yield labelled[-1]
    for found, kind in ((foreign, "without a task"), (labelled, "with labels of it")):
        if found:
            yield replace(_mean(found), kind=f"mean of those {kind}")


def _learned(group: Group, plan: RouterPlan, vectors: Vectors) -> Estimate:
    """From the outcomes of --train that have scores of both models. Raises SettingsError without any."""
    both = [each for each in plan.training if {group.weak, group.strong} <= each.scores.keys()]
    if len(both) < MIN_QUESTIONS:
        raise SettingsError(
            f"--train has {len(both)} outcomes of {group.weak!r} and {group.strong!r}; add more"
        )
    features = Features.of(both, vectors if plan.form == "blend" else None)
    return _estimate(fit(features, gains_of(both, group.weak, group.strong)))


def _estimate(tensors: dict[str, Tensor]) -> Estimate:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "estimate.safetensors"
        save(path, tensors, {})
        return Estimate(path)


def _result(
    group: Group, kind: str, outcomes: Sequence[Outcome], estimate: Estimate, vectors: Vectors
) -> Result:
    predicted = np.array(
        [
            estimate.predict(each.prompt, vectors.get(each.prompt), has_tools=each.has_tools).gain
            for each in outcomes
        ],
        np.float32,
    )
    weak, strong = (
        np.array([each.scores[model] for each in outcomes], np.float32)
        for model in (group.weak, group.strong)
    )
    curve = accuracies(predicted, weak, strong)
    points = curve[np.linspace(0, len(outcomes), 21).round().astype(int)]
    return Result(group.source, kind, group.weak, group.strong, measure(predicted, weak, strong), points)


def _mean(results: Sequence[Result]) -> Result:
    """The mean of each measure."""
    first = results[0]
    rows = [asdict(each.measures) for each in results]
    means: dict[str, Any] = {name: float(np.mean([row[name] for row in rows])) for name in rows[0]}
    measures = replace(first.measures, **(means | {"num_questions": first.measures.num_questions}))
    curve = np.mean([each.curve for each in results], axis=0)
    return Result(first.source, first.kind, first.weak, first.strong, measures, curve)


def _robustness(estimate: Estimate, group: Group) -> dict[str, float]:
    """The share of decisions at the median that each perturbation changes."""
    prompts = [each.prompt for each in group.outcomes[:MAX_PERTURBED]]
    middle = float(np.median([estimate.predict(prompt).gain for prompt in prompts]))
    return {
        name: flips(lambda text: estimate.predict(text).gain, prompts, middle, change)
        for name, change in PERTURBATIONS.items()
    }


def _models(outcomes: Sequence[Outcome]) -> dict[str, dict[str, float | None]]:
    """Mean score and cost of always asking one model, and of the best answer to each question."""
    names = sorted({name for each in outcomes for name in each.scores})
    found: dict[str, dict[str, float | None]] = {}
    for name in names:
        scores = [each.scores[name] for each in outcomes if name in each.scores]
        costs = [each.cost_usd[name] for each in outcomes if name in each.cost_usd]
        cost = round(1000 * float(np.mean(costs)), 6) if costs else None
        found[name] = {"score": round(float(np.mean(scores)), 4), "usd_per_1000": cost}
    best = float(np.mean([max(each.scores.values()) for each in outcomes]))
    return {**found, "(oracle)": {"score": round(best, 4), "usd_per_1000": None}}
