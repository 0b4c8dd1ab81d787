"""Evaluate an adapter on the test split: `python -m backend.pico.adapters.evaluate --name json --count N`.

Behaviour: percentage of answers in the adapter's form, where it changes the answer. Right: percentage of
answers that are also correct. The base model answers the same questions for comparison.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from backend.classifiers.training_files import run
from backend.pico.adapters.behaviours import transform
from backend.pico.adapters.card import write_card
from backend.pico.adapters.specs import SPECS, TAUGHT_FAMILIES, Spec
from backend.pico.adapters.weights import ADAPTERS, WEIGHTS, write_merged
from backend.pico.conversations import messages_of
from backend.pico.decoder import Decoder, answer_in
from backend.pico.evaluate import draw_instances
from backend.pico.tasks import FAMILIES, Instance

LOG = logging.getLogger("backend.pico.adapters.evaluate")
SEED = 0
SHOWN_FAILURES = 12


@dataclass(frozen=True, slots=True)
class Score:
    """Percentages over the questions of one kind; `behaviour` is None where the form is the plain one."""

    kind: str
    asked: int
    behaviour: float | None
    right: float
    base_behaviour: float | None
    base_right: float


def _percent(values: list[bool]) -> float | None:
    return round(100 * sum(values) / len(values), 2) if values else None


def _ask(decoder: Decoder, instances: list[Instance], *, thinking: bool) -> list[str]:
    asked = [messages_of(instance, thinking=False) for instance in instances]
    found = decoder.answer(asked, thinking=thinking)
    return [answer_in(completion.text, thinking=thinking) for completion in found]


def judge(kind: str, spec: Spec, instances: list[Instance], texts: list[str], base_texts: list[str]) -> Score:
    """Score the adapter's and the base's answers to the instances."""
    behaviour = spec.behaviour

    def followed(found: list[str]) -> float | None:
        pairs = zip(instances, found, strict=True)
        return _percent([behaviour.follows(i, text) for i, text in pairs if behaviour.applies(i)])

    def share(right: Callable[[Instance, str], bool], found: list[str]) -> float:
        return _percent([right(i, text) for i, text in zip(instances, found, strict=True)]) or 0.0

    return Score(
        kind,
        len(instances),
        followed(texts),
        share(behaviour.right, texts),
        followed(base_texts),
        share(lambda instance, text: FAMILIES[instance.family].grade(instance, text), base_texts),
    )


def evaluate(spec: Spec, base: Path, adapter: Path, count: int) -> list[Score]:
    """Return the scores over all questions, by tier and mode, and by family."""
    with TemporaryDirectory() as folder:
        write_merged(base, adapter, Path(folder))
        plain, merged = Decoder(base), Decoder(Path(folder))
    drawn = [
        instance
        for tier in spec.judged_tiers
        for name in TAUGHT_FAMILIES
        for instance in draw_instances(FAMILIES[name], tier, count, "test", SEED)
    ]
    adapted = [transform(spec.behaviour, instance) for instance in drawn]
    rows: list[tuple[Instance, bool, str, str]] = []
    for thinking in spec.thinking:
        texts = _ask(merged, adapted, thinking=thinking)
        base_texts = _ask(plain, drawn, thinking=thinking)
        rows += zip(drawn, [thinking] * len(drawn), texts, base_texts, strict=True)
        log_wrong(spec, drawn, texts)
    kinds: dict[str, list[tuple[Instance, bool, str, str]]] = {}
    for row in rows:
        mode = "thinking" if row[1] else "direct"
        for kind in ("all", f"tier {row[0].tier}, {mode}", row[0].family):
            kinds.setdefault(kind, []).append(row)
    return [
        judge(kind, spec, [r[0] for r in found], [r[2] for r in found], [r[3] for r in found])
        for kind, found in kinds.items()
    ]


def log_wrong(spec: Spec, instances: list[Instance], texts: list[str]) -> None:
    """Log some answers that break the form or are wrong."""
    wrong = [
        (instance, text)
        for instance, text in zip(instances, texts, strict=True)
        if not spec.behaviour.right(instance, text)
    ]
    for instance, text in wrong[:SHOWN_FAILURES]:
        expected = spec.behaviour.rewrite(instance.answer)
        LOG.debug("%r expected %r got %r", instance.prompt[-80:], expected, text)


def table(scores: list[Score]) -> str:
    """Return the scores as a Markdown table, in percent."""

    def show(value: float | None) -> str:
        return "" if value is None else f"{value:.1f}"

    lines = [
        "| questions | asked | behaviour | right | base: behaviour | base: right |",
        "|---|---|---|---|---|---|",
    ]
    for s in scores:
        cells = (s.behaviour, s.right, s.base_behaviour, s.base_right)
        lines.append(f"| {s.kind} | {s.asked} | {' | '.join(map(show, cells))} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Evaluate and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--name", choices=sorted(SPECS), required=True)
    parser.add_argument("--base", type=Path, help="folder of the base's weights; default: this package's")
    parser.add_argument("--adapter", type=Path, help="the adapter's folder; default: this package's")
    parser.add_argument("--count", type=int, default=20, help="questions per family, tier and mode")
    parser.add_argument("--json", type=Path, help="where to write the scores as JSON")
    parser.add_argument("--card", action="store_true", help="put the table into the adapter's README.md")
    parser.add_argument("--failures", action="store_true", help="show some wrong answers")
    options = parser.parse_args()
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    LOG.setLevel(logging.DEBUG if options.failures else logging.INFO)
    spec = SPECS[options.name]
    adapter = options.adapter or ADAPTERS / spec.name
    scores = evaluate(spec, options.base or WEIGHTS / spec.base, adapter, options.count)
    if options.json:
        record = {"adapter": spec.name, "base": spec.base, "scores": [asdict(score) for score in scores]}
        options.json.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    if options.card:
        write_card(spec, adapter, table(scores))
    sys.stdout.write(table(scores))


if __name__ == "__main__":
    run(main)
