"""Texts of our own for what the public data lacks: templates and word lists in `own/`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from random import Random

from guardrails.checks.classifier import CATEGORIES
from guardrails.checks.injection import UNTRUSTED
from guardrails.evasions import EVASIONS
from guardrails.findings import Segment
from guardrails.train.grammar import Grammar
from guardrails.train.rows import BENIGN, HARMLESS, Row

SOURCE = "templates"
_ATTACKS = {"override": 3200, "extraction": 1500, "jailbreak": 2000}
_HARMLESS = {
    "trigger": 2400,
    "password_guard": 1200,
    "languages": 1300,
    "long": 1700,
    "short": 1000,
    "harmless_twin": 1700,
    "clean": 1500,
}
_TOXIC = {"hate": 1000, "harassment": 600}
_NUM_HARMFUL = 350
"""Of each category."""
_NUM_DOCUMENTS = 1500
_NOISE = ("lower case", "mistyped", "harmless, no stop", "mixed case", "leet", "split words")
_NOISY_SHARE = 0.15
_WRAPPED_SHARE = 0.2
_OVERLAPS = {"hate", "harassment", "violence"}
"""A text about one of these may well belong to another."""


def read_grammar() -> Grammar:
    """All our templates."""
    return Grammar(sorted(Path(__file__).with_name("own").glob("*.txt")))


def own_rows(seed: int = 0) -> list[Row]:
    """The same in every run."""
    draw, grammar = Random(seed), read_grammar()
    rows = [*_attacks(draw, grammar), *_harmless(draw, grammar), *_harmful(draw, grammar)]
    return rows + list(_documents(draw, grammar))


def attacked_documents(rows: Iterable[Row], seed: int = 0) -> Iterator[Row]:
    """Clean documents of public sources with an instruction of ours at a random line."""
    draw, grammar = Random(seed), read_grammar()
    for row in rows:
        if row.segment in UNTRUSTED and row.is_ordinary:
            lines = row.text.split("\n")
            attack = grammar.expand(draw, draw.choice(grammar.sections["injection_line"]))
            lines.insert(draw.randrange(len(lines) + 1), attack)
            yield replace(row, text="\n".join(lines), kind="indirect", labels={"indirect": True})


def _attacks(draw: Random, grammar: Grammar) -> Iterator[Row]:
    for kind, count in _ATTACKS.items():
        others = dict.fromkeys(_ATTACKS.keys() - {kind}, False) if kind == "jailbreak" else {}
        for text in grammar.texts(draw, kind, count):
            if draw.random() < _WRAPPED_SHARE:  # behind or before an ordinary prompt
                ordinary = grammar.expand(draw, draw.choice(grammar.sections["long"]))
                text = draw.choice([f"{ordinary}\n\n{text}", f"{text}\n\n{ordinary}", f"{ordinary} {text}"])
            yield _row(_noisy(draw, text), kind, {"attack": True, kind: True} | others)


def _harmless(draw: Random, grammar: Grammar) -> Iterator[Row]:
    for section, count in _HARMLESS.items():
        kind = "benign" if section in ("long", "short", "languages") else "benign_trigger"
        for text in grammar.texts(draw, section, count):
            yield _row(_noisy(draw, text), kind, BENIGN | HARMLESS)


def _harmful(draw: Random, grammar: Grammar) -> Iterator[Row]:
    for category in CATEGORIES:
        others = {
            name: False for name in CATEGORIES if name != category and not {name, category} <= _OVERLAPS
        }
        labels = BENIGN | {"harmful_topic": True, "toxicity": True, category: True} | others
        for text in grammar.texts(draw, f"harmful_{category}", _NUM_HARMFUL):
            yield _row(_noisy(draw, text), "harmful_topic", labels)
    for category, count in _TOXIC.items():
        others = dict.fromkeys(("self_harm", "sexual", "illicit"), False)
        for text in grammar.texts(draw, category, count):
            yield _row(_noisy(draw, text), category, BENIGN | others | {"toxicity": True, category: True})


def _documents(draw: Random, grammar: Grammar) -> Iterator[Row]:
    """Each frame twice: clean, and with one sentence exchanged for an instruction to the model."""
    for number in range(_NUM_DOCUMENTS):
        frame = grammar.expand(draw, draw.choice(grammar.sections["frame"]))
        parts = frame.split("@")
        facts = [grammar.expand(draw, "{fact}") for _ in parts[1:]]
        attack = grammar.expand(draw, draw.choice(grammar.sections["injection_line"]))
        place = draw.randrange(len(facts))
        kept = f"{facts[place]} " if draw.random() < 0.5 else ""
        attacked = [*facts[:place], kept + attack, *facts[place + 1 :]]
        for sentences, is_attack in ((facts, False), (attacked, True)):
            filled = "".join(part + sentence for part, sentence in zip(parts, [*sentences, ""], strict=True))
            segment: Segment = "tool" if number % 2 else "document"
            kind = "indirect" if is_attack else "benign"
            yield Row(filled, SOURCE, kind, segment, {"indirect": is_attack})


def _noisy(draw: Random, text: str) -> str:
    """Some texts as people in a hurry, or evaders, write them."""
    return EVASIONS[draw.choice(_NOISE)](draw, text) if draw.random() < _NOISY_SHARE else text


def _row(text: str, kind: str, labels: Mapping[str, bool]) -> Row:
    return Row(text, SOURCE, kind, labels=labels)
