from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping

import pytest
import torch

from backend.speculative import tree
from tests.backend.engine.pairs.stage import BFLOAT16, FLOAT32, Stage


@pytest.fixture(scope="package", params=[FLOAT32, BFLOAT16], ids=["float32", "bfloat16"])
def stage_of(request: pytest.FixtureRequest) -> Iterator[Callable[[str], Stage]]:
    """The stage of a model, made when it is first asked for; plain answers last for the whole matrix."""
    dtypes: Mapping[str, object] = request.param
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    stages: dict[str, Stage] = {}
    patch = pytest.MonkeyPatch()
    patch.setattr(tree, "MIN_NODE_LOGPROB", -math.inf)  # trees branch, however sure of themselves heads are

    def find(model: str) -> Stage:
        if model not in stages:
            stages[model] = Stage(model, dtypes)
        return stages[model]

    yield find
    for stage in stages.values():
        stage.close()
    patch.undo()
    torch.set_num_threads(threads)
