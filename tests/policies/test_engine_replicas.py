"""Numbers of replicas, and what is refused with its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.policies.test_engine_addresses import load


@pytest.mark.parametrize(
    "keys",
    ["replicas: 64", "replicas: 1\ndrain_handover_s: 0", "replicas: {min: 0, max: 2, queue_s: 0.5}"],
)
def test_numbers(tmp_path: Path, keys: str) -> None:
    assert load(tmp_path, keys) == []


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ("replicas: 0", "5 models.m.engine.replicas"),
        ("replicas: 65", "5 models.m.engine.replicas"),
        ("drain_handover_s: -1", "5 models.m.engine.drain_handover_s"),
        ("replicas: {min: 2, max: 1}", "5 models.m.engine.replicas.min is 2, above max, 1; raise max"),
        ("replicas: {min: 0}", "5 models.m.engine.replicas"),
        ("replicas: {min: 0, max: 0}", "5 models.m.engine.replicas.max"),
        ("replicas: {min: 0, max: 1, sleep: 3}", "5 unknown key 'sleep' in models.m.engine.replicas; known"),
        ("replicas: {min: 0, max: 1, sleep_after_s: 0}", "5 models.m.engine.replicas.sleep_after_s"),
    ],
)
def test_what_is_refused(tmp_path: Path, keys: str, problem: str) -> None:
    (found,) = load(tmp_path, keys)
    assert found.startswith(problem)
