"""Numbers of ranks, and what is refused with its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.policies.test_engine_addresses import load


@pytest.mark.parametrize("section", ["{}", "{tensor: 2, pipeline: 2}", "{expert: 64}"])
def test_numbers(tmp_path: Path, section: str) -> None:
    assert load(tmp_path, f"parallel: {section}") == []


@pytest.mark.parametrize(
    ("section", "problem"),
    [
        ("2", "5 models.m.engine.parallel must be a mapping"),
        ("{tensor: 0}", "5 models.m.engine.parallel.tensor must be a whole number >= 1 and <= 64, not 0"),
        ("{pipeline: 65}", "5 models.m.engine.parallel.pipeline"),
        ("{expert: 1.5}", "5 models.m.engine.parallel.expert"),
        ("{tensors: 2}", "5 unknown key 'tensors' in models.m.engine.parallel; did you mean 'tensor'?"),
    ],
)
def test_what_is_refused(tmp_path: Path, section: str, problem: str) -> None:
    (found,) = load(tmp_path, f"parallel: {section}")
    assert found.startswith(problem)
