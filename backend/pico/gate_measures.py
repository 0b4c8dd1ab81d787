"""The measurements of the quality gate: a few fixed questions per model, answered by the engine."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from backend.pico.adapters.evaluate import evaluate as evaluate_adapter
from backend.pico.adapters.specs import SPECS
from backend.pico.conversations import messages_of
from backend.pico.decoder import Decoder
from backend.pico.drafters.acceptance import CHAIN, Tally, greedy_answers
from backend.pico.drafters.acceptance import measure as measure_acceptance
from backend.pico.drafters.store import DRAFTERS, load_drafter
from backend.pico.drafters.target import load_target
from backend.pico.drafters.train import drafter_folder
from backend.pico.evaluate import Selection, evaluate, mean_accuracy

Figures = dict[str, dict[str, float]]  # percent, by model and figure

SEED = 1  # differs from the report's
QUESTIONS = 4  # per family, tier and mode
DRAFTED_QUESTIONS = 1
ADAPTER_QUESTIONS = 2
GROUPS: dict[str, tuple[int, ...]] = {"tiers 1-2": (1, 2), "tiers 3-5": (3, 4, 5)}
SMALL, LARGE = "pico-small", "pico-large"


def measure(weights: Path, questions: int = QUESTIONS) -> Figures:
    """Measure every model in the folder."""
    figures: Figures = {}
    for name in (SMALL, LARGE):
        if (weights / name).is_dir():
            decoder = Decoder(weights / name)
            figures[name] = accuracies(decoder, questions, thinking=False)
            if name == LARGE:
                figures[f"{name}, thinking"] = accuracies(decoder, questions, thinking=True)
                figures |= acceptances(decoder, weights / name)
    for name in SPECS:
        if (folder := weights / "adapters" / name).is_dir():
            figures[f"adapter {name}"] = behaviour(name, weights / SPECS[name].base, folder)
    return figures


def accuracies(decoder: Decoder, questions: int, *, thinking: bool) -> dict[str, float]:
    """Return the percentage of right answers by group of tiers."""
    scores = evaluate(decoder, Selection(questions, thinking=thinking, seed=SEED))
    return {group: 100 * mean_accuracy(scores, tiers) for group, tiers in GROUPS.items()}


def acceptances(decoder: Decoder, folder: Path) -> Figures:
    """Return the percentage of draft tokens that the target accepts, for each of its drafters."""
    stored = {name: place for name in DRAFTERS if (place := drafter_folder(folder, name)).is_dir()}
    if not stored:
        return {}
    drafters = {name: load_drafter(place) for name, place in stored.items()}
    asked = [
        messages_of(instance, thinking=thinking)
        for thinking in (False, True)
        for found in Selection(DRAFTED_QUESTIONS, thinking=thinking, seed=SEED).instances().values()
        for instance in found
    ]
    tallies = measure_acceptance(load_target(folder), drafters, greedy_answers(decoder, asked))
    return {f"drafter {name}": _accepted(tallies[name]["all"][CHAIN]) for name in stored}


def _accepted(tally: Tally) -> dict[str, float]:
    return {
        "first drafted token": 100 * tally.cumulative[0],
        "all drafted tokens": 100 * _share(tally.accepted, tally.reached),
    }


def _share(part: Collection[int], whole: Collection[int]) -> float:
    return sum(part) / max(1, sum(whole))


def behaviour(name: str, base: Path, folder: Path) -> dict[str, float]:
    """Return the percentage of answers in the adapter's form, and of answers that are right as well."""
    score = next(s for s in evaluate_adapter(SPECS[name], base, folder, ADAPTER_QUESTIONS) if s.kind == "all")
    return {"behaviour": score.behaviour or 0.0, "right": score.right}
