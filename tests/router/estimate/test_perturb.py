from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from router.estimate.perturb import PERTURBATIONS, perturb


def test_each_changes_a_usual_prompt() -> None:
    for name, change in PERTURBATIONS.items():
        assert change(Random(0), "What is the capital of France?") != "What is the capital of France?", name


@given(st.text(max_size=50), st.integers(0, 1000))
def test_any_text_can_be_changed(text: str, seed: int) -> None:
    assert abs(len(perturb(Random(seed), text)) - len(text)) <= 3 * len(text) + 300
