"""The largest step is the runner's own, and what it takes is kept; here a stand-in measures memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import torch
from torch import Tensor

from backend.config import EngineConfig, SpeculativeConfig
from backend.engine.capacity import is_measured
from backend.engine.step_memory import largest_plan, measure_step, step_bytes
from backend.errors import CheckpointError
from backend.models.loaded import LoadedModel, load_model
from backend.sampling.sampler import Sampler
from tests.backend.models.checkpoints import VARIANTS, write_checkpoint

CONTEXT = 512


def small(tmp_path: Path, name: str, **changes: object) -> tuple[EngineConfig, LoadedModel]:
    write_checkpoint(next(v for v in VARIANTS if v.name == name), tmp_path)
    config = EngineConfig(
        model="t", checkpoint=str(tmp_path), device="cpu", max_batch_tokens=96, max_running=5, adapter_slots=2
    )
    config = msgspec.structs.replace(config, **changes)
    return config, load_model(config)


class Meter:
    """Counts the calls, and how large the logits and hidden states were between them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.tokens: list[int] = []
        self.draws: list[int] = []
        self.calls: list[str] = []
        forward, sample = LoadedModel.forward, Sampler.sample

        def count_tokens(own: LoadedModel, token_ids: Tensor, *more: object) -> Tensor:
            self.tokens.append(len(token_ids))
            return forward(own, token_ids, *more)  # type: ignore[arg-type]

        def count_draws(own: Sampler, logits: Tensor, *more: object) -> object:
            self.draws.append(len(logits))
            return sample(own, logits, *more)  # type: ignore[arg-type]

        monkeypatch.setattr(LoadedModel, "forward", count_tokens)
        monkeypatch.setattr(Sampler, "sample", count_draws)

    def begin(self) -> None:
        assert not self.tokens
        self.calls.append("begin")

    def peak_bytes(self) -> int:
        self.calls.append("peak")
        return 800


@pytest.mark.parametrize("name", ["qwen3", "gemma3", "deepseek-v3", "qwen3-next"])
@pytest.mark.parametrize("drafter", ["none", "ngram"])
def test_the_largest_step_is_computed(
    name: str, drafter: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, model = small(tmp_path, name, speculative=SpeculativeConfig(drafter=drafter, max_tokens=3))
    meter = Meter(monkeypatch)
    assert measure_step(config, model, meter, has_adapters=True) == 800 + 100
    assert meter.calls == ["begin", "peak"]
    assert meter.tokens == [96]
    assert meter.draws == [5 if drafter == "none" else 1 + 4 * (1 + 3)]


def test_graphs_are_measured_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, model = small(tmp_path, "qwen3")
    meter, captured = Meter(monkeypatch), []

    def capture(function: Callable[[], Tensor]) -> tuple[Tensor, Callable[[], None]]:
        assert meter.calls == ["begin"]
        captured.append(result := function())
        return result, lambda: None

    assert measure_step(config, model, meter, capture, has_adapters=False) == 800 + 100
    assert meter.tokens == [256, 8, 4, 2, 1, 96], "the largest first, whose memory the others share"
    assert len({result.untyped_storage().data_ptr() for result in captured}) == 1


def test_tokens_are_those_of_a_step_and_contexts_the_longest(tmp_path: Path) -> None:
    config, model = small(tmp_path, "qwen3", max_batch_tokens=2 * CONTEXT)
    plan = largest_plan(config, model, 5, has_adapters=True)
    assert plan.num_tokens == 2 * CONTEXT and len(plan.sampled) == 5
    assert [chunk.num_tokens for chunk in plan.chunks] == [CONTEXT, CONTEXT - 3, 1, 1, 1]
    assert [chunk.sequence.adapter_slot for chunk in plan.chunks] == [0, 1, 0, 1, 0]
    plan = largest_plan(msgspec.structs.replace(config, max_batch_tokens=96), model, 5, has_adapters=False)
    assert [(chunk.start, chunk.end) for chunk in plan.chunks] == [(CONTEXT - 92, CONTEXT), *[(0, 1)] * 4]
    assert {chunk.sequence.adapter_slot for chunk in plan.chunks} == {-1}
    config = msgspec.structs.replace(
        config, max_batch_tokens=2, speculative=SpeculativeConfig(drafter="ngram")
    )
    assert largest_plan(config, model, 5, has_adapters=False).num_tokens == 5, "no fewer than one for each"


def test_a_card_without_memory_for_it_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, model = small(tmp_path, "qwen3")
    meter = Meter(monkeypatch)

    def fail(*_: object) -> Tensor:
        raise torch.OutOfMemoryError("tried to allocate 2 GiB")

    monkeypatch.setattr(LoadedModel, "forward", fail)
    said = r"no memory for the largest step of model 't', 96 tokens and 5 requests.*2 GiB.*max_batch_tokens"
    with pytest.raises(CheckpointError, match=said):
        measure_step(config, model, meter, has_adapters=False)


def test_it_is_measured_only_where_memory_is_counted_by_it(tmp_path: Path) -> None:
    config, model = small(tmp_path, "qwen3")
    card = torch.device("cuda")
    assert is_measured(config, card)
    assert not is_measured(msgspec.structs.replace(config, num_pages=9), card)
    assert not is_measured(msgspec.structs.replace(config, kv_cache_bytes=1 << 20), card)
    assert not is_measured(config, torch.device("cpu"))
    assert step_bytes(config, model, has_adapters=False, has_graphs=False) is None
