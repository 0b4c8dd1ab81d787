"""How often a step copies to its device and waits for it, without a GPU: in Triton's interpreter."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from triton.runtime.interpreter import GridExecutor

from backend.config import EngineConfig, SpeculativeConfig
from backend.engine.engine import Engine
from backend.engine.runner import ModelRunner
from backend.kernels.upload import upload
from backend.models.loaded import LoadedModel, load_model
from backend.types import Draft, DraftTree, Plan, Request, SamplingParams
from backend.types import Sequence as EngineSequence
from tests.backend.kernels.waits import Waits, replaced, unseen
from tests.backend.lora.making import Recipe, make_engine, make_store, write_adapter

CASES: dict[str, dict[str, Any]] = {
    "greedy": {},
    "filters": {"temperature": 0.9, "top_p": 0.9, "top_k": 20, "min_p": 0.01, "seed": 1},
    "penalties": {"repetition_penalty": 1.2, "presence_penalty": 0.5, "logit_bias": {7: 1.0}},
    "bans": {"min_tokens": 20, "stop_token_ids": (5, 6)},
    "grammar": {},
    "log-probabilities": {"logprobs": 3},
    "adapter": {},
}
CASES["all edits"] = CASES["penalties"] | CASES["bans"] | CASES["log-probabilities"]
WITH_GRAMMARS = ("grammar", "all edits")
DRAFTS: dict[str, Draft] = {
    "decode": [],
    "chain": [3, 4],
    "tree": DraftTree((3, 4, 5), (-1, -1, 0)),
}
PROMPTS = ([3, 1, 4, 1, 5], [2, 7, 1] * 5)


class Scripted:
    """A drafter that is told what to guess."""

    name = "scripted"
    is_cheap = True
    draft: Draft = []  # noqa: RUF012

    def propose(self, sequences: list[EngineSequence], ks: list[int]) -> list[Draft]:
        return [self.draft for _ in sequences]

    def observe(self, sequence: EngineSequence, num_drafted: int, num_accepted: int) -> None:
        return

    def forget(self, sequence: EngineSequence) -> None:
        return


class Anything:
    """A grammar that allows every token but one."""

    error = ""
    is_over = False
    is_slow = True

    def fill_mask(self, row: NDArray[np.int32]) -> None:
        row[:] = -1
        row[0] = -2

    def fill_masks(self, rows: NDArray[np.int32], drafts: Draft) -> None:
        for row in rows:
            self.fill_mask(row)

    def advance(self, token_id: int) -> None:
        return

    def rollback(self, num_tokens: int) -> None:
        return

    def filter_drafts(self, token_ids: list[int]) -> int:
        return len(token_ids)

    def allowed_nodes(self, tree: DraftTree) -> list[int]:
        return list(range(len(tree)))

    def forced_tokens(self) -> list[int]:
        return []


@contextmanager
def counted(runner: ModelRunner, found: list[dict[str, dict[str, int]]]) -> Iterator[None]:
    """Every step of the runner appends its uploads, and what it reads and copies besides."""
    run, launch, plain = runner.run, GridExecutor.__call__, unseen(upload)
    uploads: Counter[str] = Counter()

    def counted_upload(arrays: list[Any], device: torch.device) -> list[Tensor]:
        uploads["upload"] += 1
        return plain(arrays, device)  # type: ignore[no-any-return]

    def counted_run(plan: Plan) -> object:
        uploads.clear()
        with Waits() as waits:
            result = run(plan)
        found.append({"uploads": uploads["upload"], "reads": +waits.reads, "copies": +waits.copies})
        return result

    runner.run = counted_run  # type: ignore[method-assign,assignment]
    GridExecutor.__call__ = unseen(launch)
    try:
        with replaced(upload, counted_upload):
            yield
    finally:
        GridExecutor.__call__ = launch


def steps(model: LoadedModel, config: EngineConfig, case: str) -> dict[str, dict[str, dict[str, int]]]:
    """What the last step of each kind counts, for two sequences that use a feature."""
    drafter, store, digest = Scripted(), None, ""
    speculative = SpeculativeConfig(drafter="scripted", adaptive=False, max_tokens=4)
    if case == "adapter":
        store = make_store(model)
        with tempfile.TemporaryDirectory() as folder:
            digest = store.load_now("a", write_adapter(Path(folder), model, Recipe())).digest
            engine = make_engine(config, model, store, [drafter], speculative=speculative)
            return drive(engine, drafter, case, digest)
    engine = make_engine(config, model, store, [drafter], speculative=speculative)
    return drive(engine, drafter, case, digest)


def drive(engine: Engine, drafter: Scripted, case: str, digest: str) -> dict[str, dict[str, dict[str, int]]]:
    params = SamplingParams(**{"max_tokens": 40, "temperature": 0.0, "ignore_eos": True} | CASES[case])
    for name, prompt in enumerate(PROMPTS):
        request = Request(
            request_id=str(name), prompt_token_ids=prompt, params=params, adapter=digest, adapter_name="a"
        )
        engine.add(request)
        if case in WITH_GRAMMARS:
            engine._active[str(name)].sequence.grammar = Anything()
    runner = engine._runner
    assert isinstance(runner, ModelRunner)
    found: list[dict[str, dict[str, int]]] = []
    last = {}
    with counted(runner, found):
        engine.step()
        for kind, draft in DRAFTS.items():
            drafter.draft = draft
            engine.step()
            last[kind] = found[-1]
    assert len(found) == 1 + len(DRAFTS), "a step failed"
    engine.close()
    return {"prompts": found[0], **last}


def counted_cases(checkpoint: str, cases: Sequence[str]) -> dict[str, dict[str, dict[str, Any]]]:
    """What each case counts, by kind of step; a first one, for what is made once, is left out."""
    config = EngineConfig(model="m", checkpoint=checkpoint, device="cpu", dtype="float32", num_threads=1)
    with torch.inference_mode():
        model = load_model(config)
    steps(model, config, "greedy")
    return {case: steps(model, config, case) for case in cases}
