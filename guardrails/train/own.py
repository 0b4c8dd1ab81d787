"""Texts of our own for what the public data lacks: templates and word lists in `own/`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
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
    "safe": 5400,
}
_TOXIC = {"hate": 1000, "harassment": 600}
_NUM_HARMFUL = 350
"""Texts of each category."""
_NUM_DOCUMENTS = 1500
_NOISE = ("lower case", "mistyped", "harmless, no stop", "mixed case", "leet", "split words")
_NOISY_SHARE = 0.15
_WRAPPED_SHARE = 0.2
_OVERLAPS = {"hate", "harassment", "violence"}
"""A text about one of these may well belong to another."""


NUM_PARTS = 3
"""The templates of other languages are sources by turns: some can be left out for the thresholds."""
_OF_LANGUAGE: Mapping[str, tuple[int, str, Mapping[str, bool]]] = {
    "request": (300, "benign", BENIGN | HARMLESS),
    "role": (150, "benign", BENIGN | HARMLESS),
    "safe": (80, "benign_trigger", BENIGN | HARMLESS),
    "override": (120, "override", {"attack": True, "override": True}),
    "extraction": (70, "extraction", {"attack": True, "extraction": True}),
    "jailbreak": (60, "jailbreak", {"attack": True, "jailbreak": True}),
    "harm": (300, "harmful_topic", BENIGN | {"harmful_topic": True}),
}
"""By section of a language's file: how many rows, their kind and what is known about them."""
_NUM_LANGUAGE_DOCUMENTS = 120


_SYLLABLES = (
    "ka ro mi ne lu sa ti vo ben dra fel gor hem jin kur lar mon nik pel quo ras sten tor ul ved".split()
)
_NUM_MADE_UP = 600
_NAMED_SHARE = 0.2
_FRAMED_SHARE = 0.5
_NUM_FRAMED = 1200


def read_grammar() -> Grammar:
    """All our templates; names and codes are made up, as no verdict may hang on one."""
    draw, grammar = Random(0), Grammar(sorted(Path(__file__).with_name("own").glob("*.txt")))
    grammar.slots |= {
        "name_word": [_made_up(draw).capitalize() for _ in range(_NUM_MADE_UP)],
        "code_word": [_code(draw) for _ in range(_NUM_MADE_UP)],
    }
    return grammar


def _made_up(draw: Random) -> str:
    return "".join(draw.choice(_SYLLABLES) for _ in range(draw.randrange(2, 4)))


def _code(draw: Random) -> str:
    """Such as `KEY-F`, `x7-204` or `mon_31`."""
    first = draw.choice((_made_up(draw), _made_up(draw).upper(), draw.choice("ABCDEFxyz")))
    second = draw.choice((str(draw.randrange(10_000)), draw.choice("ABCDEFGHK"), _made_up(draw)))
    return first + draw.choice("-_/#.") + second


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
    crime = BENIGN | {"harmful_topic": True, "toxicity": True}
    for _ in range(_NUM_FRAMED):
        yield _row(_behind(draw, grammar, ("short", "safe", "trigger"), "{harm_act}"), "harmful_topic", crime)
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


def language_rows(seed: int = 0) -> list[Row]:
    """Texts in other languages than English, the same in every run."""
    rows: list[Row] = []
    for path in sorted(Path(__file__).with_name("own").glob("languages/*.txt")):
        draw, grammar = Random(f"{seed} {path.stem}"), Grammar([path])
        for section, (count, kind, labels) in _OF_LANGUAGE.items():
            for part, templates in enumerate(_parts(grammar.sections[section])):
                texts = grammar.texts_of(draw, templates, count // NUM_PARTS)
                if section == "harm":
                    texts = (_framed(draw, grammar, text) for text in texts)
                named = (_named(draw, text) if kind == "benign" else text for text in texts)
                rows += [Row(text, f"{SOURCE}-{part}", kind, labels=labels) for text in named]
        rows += _language_documents(draw, grammar)
    return rows


def _framed(draw: Random, grammar: Grammar, text: str) -> str:
    """Some crimes behind words with which ordinary requests begin."""
    is_kept = draw.random() >= _FRAMED_SHARE
    return text if is_kept else _behind(draw, grammar, ("request", "role"), "{crime}")


def _behind(draw: Random, grammar: Grammar, sections: Sequence[str], crime: str) -> str:
    """A crime behind the first words of an ordinary request: these words must prove nothing."""
    templates = [template for section in sections for template in grammar.sections[section]]
    ordinary = grammar.expand(draw, draw.choice(templates))
    words = ordinary.split(" ")
    frame = " ".join(words[: draw.randrange(1, 5)]) if len(words) > 2 else ordinary[: draw.randrange(2, 8)]
    return f"{frame} {grammar.expand(draw, crime)}"


def _named(draw: Random, text: str) -> str:
    """Some texts with a made-up name or code, which means nothing."""
    if draw.random() < _NAMED_SHARE:
        word = draw.choice((_made_up(draw).capitalize(), _code(draw)))
        return draw.choice((f"{text} {word}", f"{word}: {text}", f"{word} {text}"))
    return text


def _parts(templates: list[str]) -> Iterator[list[str]]:
    """By turns; a section of few templates is in all parts."""
    for part in range(NUM_PARTS):
        yield templates[part::NUM_PARTS] if len(templates) >= NUM_PARTS else templates


def _language_documents(draw: Random, grammar: Grammar) -> Iterator[Row]:
    """Lines as they stand in mails and search results, without and with one for the model."""
    for number in range(_NUM_LANGUAGE_DOCUMENTS):
        lines = [
            grammar.expand(draw, draw.choice(grammar.sections[draw.choice(("request", "role", "safe"))]))
            for _ in range(draw.randrange(1, 4))
        ]
        section = "indirect" if number % 2 else draw.choice(("override", "extraction"))
        attack = grammar.expand(draw, draw.choice(grammar.sections[section]))
        attacked = draw.sample([*lines, attack], len(lines) + 1)
        segment: Segment = "tool" if number % 4 < 2 else "document"
        for found, is_attack in ((lines, False), (attacked, True)):
            kind = "indirect" if is_attack else "benign"
            source = f"{SOURCE}-{number % NUM_PARTS}"
            yield Row("\n".join(found), source, kind, segment, {"indirect": is_attack})


def _noisy(draw: Random, text: str) -> str:
    """Some texts as people in a hurry, or evaders, write them."""
    return EVASIONS[draw.choice(_NOISE)](draw, text) if draw.random() < _NOISY_SHARE else text


def _row(text: str, kind: str, labels: Mapping[str, bool]) -> Row:
    return Row(text, SOURCE, kind, labels=labels)
