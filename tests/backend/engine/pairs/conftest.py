from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import pytest
import torch

from backend.speculative import tree
from tests.backend.engine.pairs.stage import Stage


@pytest.fixture(scope="package")
def stage_of() -> Iterator[Callable[[str], Stage]]:
    """The stage of a model, made when it is first asked for; plain answers last for the whole matrix."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    stages: dict[str, Stage] = {}
    patch = pytest.MonkeyPatch()
    patch.setattr(tree, "MIN_NODE_LOGPROB", -math.inf)  # trees branch, however sure of themselves heads are

    def find(model: str) -> Stage:
        if model not in stages:
            stages[model] = Stage(model)
        return stages[model]

    yield find
    for stage in stages.values():
        stage.close()
    patch.undo()
    torch.set_num_threads(threads)
