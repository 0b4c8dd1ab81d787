"""The flags of `penstock eval router`, and the groups of outcomes that are measured."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from backend.encoder.chosen import chosen_encoder
from gateway.evaluation.encoder_flags import OfflinePlan, add_encoder_flags, read_threads
from gateway.evaluation.outputs import add_output_flags, read_outputs
from gateway.settings import SettingsError
from router.estimate.train import Outcome, OutcomeError, order_by_score, read_outcomes

MIN_QUESTIONS = 30
DESCRIPTION = """
Measures estimates of the gain on outcomes: JSON lines with `prompt`, `scores` {MODEL: 0..1}, `cost_usd`
{MODEL: USD}, `task` and `source`. Prints for each source, beside random, oracle and always one model: APGR
(the mean share of the strong model's gain that is recovered over all shares of strong calls; 0.5 is random)
and the share of strong calls for 95 % and 99 % of its score. Without --estimate one is trained here, on
random splits (in domain) and with each task left out, or on the outcomes of --train.
"""


@dataclass(frozen=True, slots=True)
class Group:
    """The outcomes of one source, between two of its models."""

    source: str
    weak: str
    strong: str
    outcomes: tuple[Outcome, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterPlan(OfflinePlan):
    """What to measure."""

    groups: tuple[Group, ...]
    estimate: str | None  # None: train
    training: tuple[Outcome, ...]  # for estimates of each source's pair; (): on parts of the groups
    form: str
    num_splits: int
    num_labels: int  # of a foreign task, as shadow requests would give


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Declare the flags and the description."""
    parser.description = DESCRIPTION
    add = parser.add_argument
    add("--data", type=Path, nargs="+", required=True, metavar="FILE", help="outcomes, JSON lines or .gz")
    add("--estimate", metavar="NAME", help="`builtin:pico`, `builtin:general` or a file of `router train`")
    add("--train", type=Path, nargs="+", default=[], metavar="FILE", help="train on these outcomes instead")
    add("--form", choices=("words", "blend"), default="blend", help="of what is trained here")
    add(
        "--pair",
        action="append",
        default=[],
        metavar="SOURCE=WEAK,STRONG",
        help="models to choose between; default: those of the lowest and the highest mean score",
    )
    add("--splits", type=int, default=3, metavar="N", help="random halves to train on, default 3")
    add("--labels", type=int, default=0, metavar="N", help="also with N labels of the task that is left out")
    add_encoder_flags(parser)
    add_output_flags(parser, "everything that was measured", "score over strong calls")


def read_plan(options: argparse.Namespace) -> RouterPlan:
    """Read and check the files. Raises SettingsError."""
    num_threads, outputs = read_threads(options), read_outputs(options)
    pairs = dict(map(_pair, options.pair))
    try:
        outcomes, training = read_outcomes(options.data), read_outcomes(options.train)
    except OutcomeError as error:
        raise SettingsError(str(error)) from None
    if unknown := sorted(pairs.keys() - {each.source for each in outcomes}):
        raise SettingsError(f"--pair names the source {unknown[0]!r}, of which there are no outcomes")
    groups = tuple(_groups(outcomes, pairs))
    if not groups:
        raise SettingsError(f"no source has {MIN_QUESTIONS} outcomes with scores of two models")
    if options.splits < 1:
        raise SettingsError(f"--splits {options.splits} must be at least 1")
    if options.labels < 0:
        raise SettingsError(f"--labels {options.labels} must be 0 or more")
    return RouterPlan(
        groups=groups,
        estimate=options.estimate,
        training=tuple(training),
        form=options.form,
        num_threads=num_threads,
        num_splits=options.splits,
        num_labels=options.labels,
        outputs=outputs,
        encoder=chosen_encoder(options),
    )


def _groups(outcomes: Sequence[Outcome], pairs: dict[str, tuple[str, str]]) -> Iterator[Group]:
    """One per source, and one of all sources where they have the same models."""
    groups = [*_by_source(outcomes, pairs)]
    yield from groups
    if len(groups) > 1 and len({(each.weak, each.strong) for each in groups}) == 1:
        together = tuple(outcome for each in groups for outcome in each.outcomes)
        yield replace(groups[0], source="all sources", outcomes=together)


def _by_source(outcomes: Sequence[Outcome], pairs: dict[str, tuple[str, str]]) -> Iterator[Group]:
    for source in sorted({each.source for each in outcomes}):
        found = [each for each in outcomes if each.source == source]
        order = order_by_score(found)
        weak, strong = pairs.get(source) or (order[0], order[-1])
        both = tuple(each for each in found if weak in each.scores and strong in each.scores)
        if weak != strong and len(both) >= MIN_QUESTIONS:
            yield Group(source or "unnamed", weak, strong, both)


def _pair(text: str) -> tuple[str, tuple[str, str]]:
    source, _, models = text.partition("=")
    weak, comma, strong = models.partition(",")
    if not (source and weak and comma and strong):
        raise SettingsError(f"--pair {text!r} must have the form SOURCE=WEAK,STRONG")
    return source, (weak, strong)
