"""A step of the engine on a GPU copies to it once or twice, and waits for it once; seen without a GPU."""

from __future__ import annotations

from concurrent.futures import Executor
from pathlib import Path

import pytest

from tests.backend.engine.waiting import counted_cases
from tests.backend.models.checkpoints import MOE, Variant, write_checkpoint

ONE_LAYER = {"num_hidden_layers": 1}
DENSE = Variant("one-layer", "qwen3", {**ONE_LAYER, "head_dim": 32})
SPARSE = Variant("one-layer-of-experts", "mixtral", {**ONE_LAYER, **MOE})
EDITS = ("penalties", "bans", "grammar", "log-probabilities")
"""Features whose arrays are copied after the forward pass, all together."""


@pytest.mark.timeout(600)  # half a minute of a quiet core
@pytest.mark.parametrize(
    ("variant", "cases"),
    [
        (DENSE, ("greedy", "filters", "adapter", "all edits")),
        (SPARSE, ("greedy", "adapter")),
        pytest.param(DENSE, EDITS, marks=pytest.mark.slow),  # one alone does not copy more than all
    ],
    ids=["dense", "experts", "edits"],
)
def test_a_step_waits_once(
    interpreter: Executor, variant: Variant, cases: tuple[str, ...], tmp_path: Path
) -> None:
    write_checkpoint(variant, tmp_path)
    found = interpreter.submit(counted_cases, str(tmp_path), cases).result()
    assert list(found) == list(cases)
    for case, kinds in found.items():
        assert set(kinds) == {"prompts", "decode", "chain", "tree"}
        if case == "adapter":  # whose first step also fills its slot
            del kinds["prompts"]
        for kind, step in kinds.items():
            uploads = 2 if case in (*EDITS, "all edits") else 1
            assert step == {"uploads": uploads, "reads": {"tolist": 1}, "copies": {}}, (case, kind)
