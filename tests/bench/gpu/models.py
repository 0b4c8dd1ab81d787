"""Models of random weights, made on their device without a checkpoint, and an engine that runs one."""

from __future__ import annotations

import tempfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from backend.config import EngineConfig
from backend.engine.capacity import num_pages_for
from backend.engine.engine import Engine
from backend.engine.runner import ModelRunner
from backend.engine.runner_protocol import RunnerFacts
from backend.models.build import DecoderBuilder
from backend.models.families import FAMILIES
from backend.models.loaded import LoadedModel
from backend.models.precision import Precision, choose_precision
from backend.speculative.draft_length import step_clock
from backend.types import PAGE_TOKENS, Request, SamplingParams
from tests.bench.gpu.shapes import model_config


class RandomWeights:
    """Gives every tensor that a builder asks for; one name has the same values in each model."""

    def __init__(self, dtype: torch.dtype, device: str, scale: float) -> None:
        self._dtype, self._device, self._scale = dtype, device, scale

    def __contains__(self, name: str) -> bool:
        return False  # no parts that a family does not name

    def shape(self, name: str) -> None:
        """Never stored in another shape than asked for."""

    def get(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Normal numbers around 0, or around 1 for the weights of norms."""
        made = torch.empty(shape, dtype=self._dtype, device=self._device)
        if self._device != "meta":
            generator = torch.Generator(self._device).manual_seed(zlib.crc32(name.encode()))
            made.normal_(float("norm" in name), self._scale, generator=generator)
        return made

    finite = get


def random_model(
    shape: dict[str, Any], device: str, dtype: torch.dtype, weights_on: str | None = None, scale: float = 0.02
) -> LoadedModel:
    """A model on `device` with weights of `dtype`; `weights_on` names the device whose numbers they are.

    On "meta" it has shapes and no values, for any model on any machine.
    """
    with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
        config = model_config(shape, Path(folder))
        if device == "meta":
            precision = Precision(torch.device(device), dtype, "plain", dtype)
        else:
            engine = EngineConfig(model="m", checkpoint=folder, device=device)  # type: ignore[arg-type]
            precision = choose_precision(engine, config, dtype)
        names = FAMILIES[config.architecture].names
        reader: Any = RandomWeights(dtype, weights_on or device, scale)
        builder = DecoderBuilder(config, names, reader, precision)
        decoder = builder.build()
    return LoadedModel(config, precision, decoder, builder.sites)


def open_runner(model: LoadedModel, config: EngineConfig) -> ModelRunner:
    """A runner with its KV memory; nothing ends an answer but its length."""
    num_pages = num_pages_for(config, model)
    longest = min(model.config.max_position_tokens, num_pages * PAGE_TOKENS)
    kv_dtype = str(model.kv_layout.dtype).removeprefix("torch.")
    facts = RunnerFacts(
        model.config.vocab_size,
        num_pages,
        min(longest, config.max_model_tokens or longest),
        frozenset(),
        "",
        kv_dtype,
    )
    is_ahead = model.device.type == "cuda"  # as it is served
    storage = model.new_kv_storage(num_pages)
    return ModelRunner(model, storage, facts, config.max_running, is_ahead=is_ahead)


def open_engine(model: LoadedModel, max_running: int, max_tokens: int) -> Engine:
    """An engine with KV memory for `max_running` sequences of `max_tokens` each; it drafts nothing."""
    config = EngineConfig(
        model="m",
        checkpoint="",
        max_running=max_running,
        max_queue=max_running,
        max_batch_tokens=8192,
        max_model_tokens=max_tokens,
        num_pages=max_running * (-(-max_tokens // PAGE_TOKENS) + 1),
        prefix_cache=False,
    )
    return Engine(config, open_runner(model, config), work_clock=step_clock(model.device))


def greedy(engine: Engine, prompts: Sequence[Sequence[int]], num_tokens: int) -> list[list[int]]:
    """The next `num_tokens` of each prompt, all decoded together."""
    params = SamplingParams(max_tokens=num_tokens, temperature=0.0, ignore_eos=True)
    found: dict[str, list[int]] = {}
    for number, prompt in enumerate(prompts):
        found[str(number)] = []
        engine.add(Request(request_id=str(number), prompt_token_ids=list(prompt), params=params))
    while engine.has_work:
        for output in engine.step():
            assert not output.error, output.error
            found[output.request_id] += output.token_ids
    return list(found.values())
