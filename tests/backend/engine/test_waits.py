"""A step of the engine on a GPU copies to it once or twice, and waits for it once; seen without a GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.backend.models.checkpoints import MOE, Variant, write_checkpoint

ONE_LAYER = {"num_hidden_layers": 1}
DENSE = Variant("one-layer", "qwen3", {**ONE_LAYER, "head_dim": 32})
SPARSE = Variant("one-layer-of-experts", "mixtral", {**ONE_LAYER, **MOE})
EDITED = {"penalties", "bans", "grammar", "log-probabilities"}
"""Features whose arrays are copied after the forward pass, all together."""


def counted(variant: Variant, folder: Path, *cases: str) -> dict[str, dict[str, Any]]:
    """By case and kind of step; in a process of its own, as Triton reads its variable when it is imported."""
    write_checkpoint(variant, folder)
    command = [sys.executable, "-m", "tests.backend.engine.waiting", str(folder), *cases]
    variables = {**os.environ, "TRITON_DEFAULT_FP_FUSION": "1", "TRITON_INTERPRET": "1"}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.timeout(600)  # half a minute of a quiet core
@pytest.mark.parametrize(
    ("variant", "cases"),
    [
        (DENSE, ("greedy", "filters", "adapter", *sorted(EDITED))),
        (SPARSE, ("greedy", "adapter")),
    ],
    ids=["dense", "experts"],
)
def test_a_step_waits_once(variant: Variant, cases: tuple[str, ...], tmp_path: Path) -> None:
    found = counted(variant, tmp_path, *cases)
    assert list(found) == list(cases)
    for case, kinds in found.items():
        assert set(kinds) == {"prompts", "decode", "chain", "tree"}
        if case == "adapter":  # whose first step also fills its slot
            del kinds["prompts"]
        for kind, step in kinds.items():
            uploads = 2 if case in EDITED else 1
            assert step == {"uploads": uploads, "reads": {"tolist": 1}, "copies": {}}, (case, kind)
