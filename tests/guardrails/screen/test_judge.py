"""Texts judged with a classifier of one's own: its scores, its thresholds, its size of vectors."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from backend.classifiers.weights import read_weights, write_weights
from gateway.screening.guards import Guards
from gateway.screening.threads import TenantThreads
from guardrails.checks.classifier import WEIGHTS
from guardrails.screen.judge import ReadText, judge_request, judge_sentences
from guardrails.text.normalise import read
from policies.guardrails import GuardrailProfile, GuardrailsSection, HarmRules, InjectionRules

SIZE = 8
HARMLESS = "What a lovely day."


async def vectors(texts: Sequence[str]) -> NDArray[np.float32]:
    """An encoder of another size."""
    return np.full((len(texts), SIZE), SIZE**-0.5, np.float32)


def weights(path: Path, threshold: float) -> str:
    tensors, _ = read_weights(WEIGHTS)
    hidden = np.zeros((SIZE, tensors["hidden"].shape[1]), np.float32)
    write_weights(
        path, {**tensors, "hidden": hidden, "thresholds": np.full_like(tensors["thresholds"], threshold)}, {}
    )
    return str(path)


@pytest.mark.parametrize(("threshold", "expected"), [(0.0, {"injection", "harm"}), (1.1, set())])
async def test_its_own_classifier_judges(tmp_path: Path, threshold: float, expected: set[str]) -> None:
    profile = GuardrailProfile(injection=InjectionRules(), harm=HarmRules())
    classifier = weights(tmp_path / "own.safetensors", threshold)
    guards = Guards(GuardrailsSection(profiles={"p": profile}, classifier=classifier), vectors)
    guard = guards.of("p")
    threads = TenantThreads(guard.threads, "t")
    found = await judge_request(guard, [ReadText("user", HARMLESS, read(HARMLESS))], {}, threads)
    assert {each.check for each in found} == expected
    (sentence,) = await judge_sentences(guard, [HARMLESS], threads)
    assert {each.check for each in sentence} == expected - {"injection"}
    assert guards.moderation.classifier is guard.classifier is not None
