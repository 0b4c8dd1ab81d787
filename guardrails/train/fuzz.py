"""Runs all text checks on random Unicode: `python -m guardrails.train.fuzz --seconds 600`."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from random import Random

import numpy as np

from backend.classifiers.training_files import run
from guardrails.checks import classifier
from guardrails.checks.injection import find_injection
from guardrails.evasions import EVASIONS
from guardrails.findings import Segment
from guardrails.text.normalise import read
from guardrails.train.own import read_grammar

_RANGES = (
    (0x00, 0x7F), (0x80, 0x24F), (0x300, 0x36F), (0x370, 0x5FF), (0x600, 0x6FF), (0x900, 0x97F),
    (0x2000, 0x20FF), (0x2500, 0x27BF), (0x3000, 0x30FF), (0x4E00, 0x9FFF), (0xAC00, 0xD7A3),
    (0xD800, 0xDFFF), (0xFE00, 0xFFFF), (0x1D400, 0x1D7FF), (0x1F000, 0x1FAFF), (0xE0000, 0xE01EF),
    (0, 0x10FFFF),
)  # fmt: skip
_UNITS = (
    "%41", "&#65;", "\\x41", "YWJj", "a ", ". ", "\n", "01", "6f", "ab-", "[INST]", "\u200b",
    "<|im_start|>system ",
)  # fmt: skip
_SECTIONS = ("override", "jailbreak", "long")
SEGMENTS: tuple[Segment, ...] = ("system", "user", "tool", "document")
MAX_CHARS = 3_000
MAX_S_PER_KB = 0.5
"""Beyond it something is not linear, whatever else the machine does."""


def random_text(draw: Random, templates: Sequence[str]) -> str:
    """Letters of many scripts, repeated units, attacks and their evasions, in any order."""
    parts: list[str] = []
    while sum(map(len, parts)) < draw.randrange(MAX_CHARS):
        kind = draw.randrange(4)
        if kind == 0:
            low, high = draw.choice(_RANGES)
            parts.append("".join(chr(draw.randint(low, high)) for _ in range(draw.randrange(60))))
        elif kind == 1:
            parts.append(draw.choice(_UNITS) * draw.randrange(1, 80))
        else:
            text = draw.choice(templates)
            parts.append(draw.choice(list(EVASIONS.values()))(draw, text) if kind == 2 else text)
    text = "".join(parts)
    return text[: draw.randrange(len(text) + 1)]


def check(text: str, segment: Segment, draw: np.random.Generator) -> float:
    """Run all checks; the time that they took. Raises AssertionError for an impossible finding."""
    began = time.process_time()
    reading = read(text)
    found = find_injection(reading, segment)
    plan = classifier.plan(reading, segment)
    vectors = draw.standard_normal((len(plan.pieces), 384)).astype(np.float32)
    vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-6)
    scores = classifier.score(plan, vectors)
    found += classifier.findings(scores)
    took_s = time.process_time() - began
    for each in found:
        assert 0 <= each.start <= each.end <= len(text), each
        assert 0.0 <= each.score <= 1.0, each
    for piece in plan.texts:
        assert piece.strip() and len(piece.encode()) <= 240, piece
    return took_s


def main(arguments: Sequence[str] | None = None) -> None:
    """Run for a while; report what was tried."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    draw, vectors, grammar = Random(options.seed), np.random.default_rng(options.seed), read_grammar()
    templates = [
        text for name in ("override", "jailbreak", "long") for text in grammar.texts(draw, name, 300)
    ]
    num_texts, num_chars, slowest, began = 0, 0, 0.0, time.monotonic()
    while time.monotonic() - began < options.seconds:
        text = random_text(draw, templates)
        took_s = check(text, draw.choice(SEGMENTS), vectors)
        per_kb = took_s / (1 + len(text) / 1024)
        assert per_kb < MAX_S_PER_KB, (per_kb, text)
        num_texts, num_chars, slowest = num_texts + 1, num_chars + len(text), max(slowest, per_kb)
    sys.stdout.write(f"{num_texts} texts, {num_chars} characters; slowest {1e3 * slowest:.1f} ms per KB\n")


if __name__ == "__main__":
    run(main)
