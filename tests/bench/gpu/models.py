"""Models of random weights, made on their device without a checkpoint, and an engine that runs one."""

from __future__ import annotations

import tempfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from backend.config import EngineConfig, KVDtypeName
from backend.engine.capacity import num_pages_for
from backend.engine.engine import Engine
from backend.engine.graphs import CudaCapture
from backend.engine.runner import ModelRunner
from backend.engine.runner_protocol import RunnerFacts
from backend.errors import CheckpointError
from backend.lora.store import AdapterStore
from backend.models.build import DecoderBuilder
from backend.models.families import FAMILIES
from backend.models.loaded import LoadedModel
from backend.models.precision import Precision, choose_precision
from backend.speculative.draft_length import step_clock
from backend.types import PAGE_TOKENS, Request, SamplingParams
from tests.bench.gpu.shapes import config_of, model_config, stored_as


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


_FP8_SIZE, _INT4_SIZE = 64.0, 4.6
"""Standard deviations of stored values: normal ones in FP8, uniform ones of 4 bits."""


class StoredWeights(RandomWeights):
    """Gives the tensors of a checkpoint in bfloat16, FP8 or int4 whose next token is beyond doubt.

    The head is the embedding, moved by a row: each token is followed by the next number, by a wide margin in
    any order of sums. So texts are the same in any batch and with drafts, at the full cost of a step.
    """

    def __init__(self, shape: dict[str, Any], stored: str, device: str) -> None:
        super().__init__(torch.bfloat16, device, 0.02)
        config = config_of(shape)
        names = FAMILIES[config.architecture].names
        self._stored, self._embedding, self._head = stored, names.embedding, names.head
        self._modules: dict[str, tuple[int, ...]] = {}
        if stored == "bf16":
            return
        sites = random_model(shape, "meta", torch.bfloat16).sites
        self._modules = {
            name: (part.columns, part.in_features)
            for name, part in sites.items()
            if f"{name}.weight" != names.head
        }

    def shape(self, name: str) -> Any:  # noqa: ANN401 - as the class above, which has none
        """The stored shape of a tensor of a quantised module."""
        module, _, kind = name.rpartition(".")
        if module not in self._modules:
            return None
        n, k = self._modules[module]
        if self._stored == "fp8":
            return {"weight": (n, k), "weight_scale": (n, 1)}.get(kind)
        return {"weight_packed": (n, k // 8), "weight_scale": (n, k // 128)}.get(kind)

    def get(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """A tensor in bfloat16."""
        if name not in (self._head, self._embedding):
            return super().get(name, shape)
        table = super().get(self._embedding, shape) * (_SURE_SIZE / self._scale)
        return table.roll(1, 0) if name == self._head else table

    finite = get

    def read(self, name: str, dtypes: Any) -> Tensor:  # noqa: ANN401 - whatever the format's reader takes
        """A tensor of a quantised module."""
        shape = self.shape(name)
        assert shape is not None, name
        if name.endswith("weight_scale"):
            size = _FP8_SIZE if self._stored == "fp8" else _INT4_SIZE
            return torch.full(shape, self._scale / size, dtype=self._dtype, device=self._device)
        if self._stored == "fp8":
            return (super().get(name, shape) * (_FP8_SIZE / self._scale)).to(torch.float8_e4m3fn)
        made = torch.empty(shape, dtype=torch.int32, device=self._device)
        return made.random_(-(2**31), 2**31)

    def error(self, name: str, problem: str) -> CheckpointError:
        """The error about a tensor."""
        return CheckpointError(f"{name!r} {problem}")


_SURE_SIZE = 8.0
"""Standard deviation of the embedding, so that it outweighs what the layers add."""


def stored_model(shape: dict[str, Any], stored: str, device: str, kv_dtype: KVDtypeName) -> LoadedModel:
    """A model on `device` of a random checkpoint that is stored so."""
    with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
        config = model_config(stored_as(shape, stored), Path(folder))
        engine = EngineConfig(model="m", checkpoint=folder, device=device, kv_dtype=kv_dtype)
        precision = choose_precision(engine, config, torch.bfloat16)
        reader: Any = StoredWeights(shape, stored, device)
        builder = DecoderBuilder(config, FAMILIES[config.architecture].names, reader, precision)
        decoder = builder.build()
    return LoadedModel(config, precision, decoder, builder.sites)


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


def open_runner(
    model: LoadedModel, config: EngineConfig, adapters: AdapterStore | None = None, **options: bool
) -> ModelRunner:
    """A runner with its KV memory; nothing ends an answer but its length.

    `options`: as ModelRunner's, and `has_graphs`: False where steps are not to be replayed.
    """
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
    is_cuda = model.device.type == "cuda"
    options = {"is_ahead": is_cuda, "has_graphs": is_cuda} | options  # as it is served
    has_graphs = options.pop("has_graphs")
    capture = CudaCapture(model.device) if has_graphs else None
    storage = model.new_kv_storage(num_pages + has_graphs)  # one for padding
    for rope in model.decoder.ropes:
        rope.reserve(facts.max_model_tokens)  # graphs read the table where it is
    return ModelRunner(model, storage, facts, config.max_running, adapters, capture=capture, **options)


def open_engine(
    model: LoadedModel,
    max_running: int,
    max_tokens: int,
    adapters: AdapterStore | None = None,
    settings: dict[str, Any] | None = None,
    **options: bool,
) -> Engine:
    """An engine with KV memory for `max_running` sequences of `max_tokens` each.

    It drafts nothing but what requests predict, and caches no prefixes unless `settings` says so.
    """
    values: dict[str, Any] = {
        "model": "m",
        "checkpoint": "",
        "max_running": max_running,
        "max_queue": max_running,
        "max_batch_tokens": 8192,
        "max_model_tokens": max_tokens,
        "num_pages": max_running * (-(-max_tokens // PAGE_TOKENS) + 1),
        "prefix_cache": False,
    }
    config = EngineConfig(**(values | (settings or {})))
    runner = open_runner(model, config, adapters, **options)
    return Engine(config, runner, adapters=adapters, work_clock=step_clock(model.device))


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
