"""Loads a model: configuration, precision, weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from backend.config import EngineConfig, ModelConfig
from backend.digests import check_digests, check_listed
from backend.identifiers import text_name
from backend.kernels.lora import AdapterRows
from backend.kv.storage import KVLayout, KVStorage
from backend.layers.attention import AttentionContext
from backend.layers.linear import LinearPart
from backend.layers.step_input import StepInput
from backend.models.build import DecoderBuilder
from backend.models.checkpoint_config import read_model_config
from backend.models.decoder import Decoder
from backend.models.families import FAMILIES
from backend.models.host_memory import keep_freed_memory
from backend.models.names import WeightNames
from backend.models.precision import Precision, choose_precision, is_small
from backend.models.quantize import build_quantized, served_revision
from backend.models.weight_files import weight_files
from backend.models.weights import WeightReader
from backend.quant.kept import KeptWeights

NameOf = Callable[[str], str]


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """Weights on their device. Stateless: keys and values are in the KVStorage that the caller owns."""

    config: ModelConfig
    precision: Precision
    decoder: Decoder
    sites: Mapping[str, LinearPart] = field(
        default_factory=dict
    )  # module name → projection that adapters can change
    revision: str = ""  # of the weights, as they are served

    @property
    def device(self) -> torch.device:
        """The device of the weights; StepInput's tensors must be on it."""
        return self.precision.device

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of activations."""
        return self.precision.compute

    @property
    def kv_layout(self) -> KVLayout:
        """The shape of KV memory; `kv_layout.page_bytes` is the size of a page."""
        return self.precision.kv_layout(self.config)

    def new_kv_storage(
        self, num_pages: int, num_states: int = 1, model: str = "", *, num_window_pages: int | None = None
    ) -> KVStorage:
        """KV memory of `num_pages` pages, zeroed, and of as many recurrent states if the model has some."""
        return KVStorage(self.kv_layout, num_pages, num_states, model, num_window_pages=num_window_pages)

    def open(self, step: StepInput, kv: KVStorage) -> AttentionContext:
        """Plan the step's attention: what `forward` needs, apart from tokens."""
        with torch.inference_mode():
            return self.decoder.open(step, kv)

    def forward(
        self, token_ids: Tensor, context: AttentionContext, layers: list[Tensor] | None = None
    ) -> Tensor:
        """Compute the step's tokens [T]; writes the context's KV memory. Returns hidden states [T, D], the
        input of `logits`.

        Hidden-state capture: each layer but the last appends its output [T, D] to `layers`.
        """
        with torch.inference_mode():
            return self.decoder.forward(token_ids, context, layers)

    def logits(self, hidden: Tensor, rows: AdapterRows | None = None) -> Tensor:
        """Logits of R rows of forward's result: [R, D] → [R, vocab] float32.

        `rows` says which of the R use an adapter. The head is expensive: pass only the rows that are needed.
        """
        with torch.inference_mode():
            return self.decoder.logits(hidden, rows)


class WholeModel:
    """How the one process of an engine reads a model; ranks of several read parts."""

    def reader(
        self, model: ModelConfig, source: tuple[str, Callable[[float], None] | None, NameOf, tuple[str, ...]]
    ) -> WeightReader:
        """Reads the checkpoint of `model`; `source` has the arguments of WeightReader."""
        return WeightReader(*source)

    def builder(
        self, model: ModelConfig, names: WeightNames, reader: WeightReader, precision: Precision
    ) -> DecoderBuilder:
        """Builds the decoder of `model`."""
        return DecoderBuilder(model, names, reader, precision)


def load_model(
    config: EngineConfig,
    on_progress: Callable[[float], None] | None = None,
    part: WholeModel | None = None,
) -> LoadedModel:
    """Load `part` of config.checkpoint; `on_progress` gets the fraction of tensors read, 0 to 1.

    Sets torch's number of threads for the process. Raises CheckpointError, one sentence, when the checkpoint
    is missing, broken or unsupported.
    """
    _check_files(config)
    part = part or WholeModel()
    model_config = read_model_config(config.checkpoint, config.max_model_tokens)
    if config.num_threads is not None:
        torch.set_num_threads(config.num_threads)
    elif is_small(model_config):
        torch.set_num_threads(1)
    family = FAMILIES[model_config.architecture]
    names = family.names
    source = config.checkpoint, on_progress, text_name if family.texts else str, _others(model_config)
    revision = served_revision(Path(config.checkpoint), config.quantize)
    with torch.inference_mode(), part.reader(model_config, source) as reader:
        precision = choose_precision(config, model_config, reader.dtype(names.embedding))
        if precision.device.type == "cpu":
            keep_freed_memory()
        if config.quantize is None:
            builder = part.builder(model_config, names, reader, precision)
            decoder = builder.build()
            reader.check_all_read(is_quantized=model_config.quantization is not None)
        else:
            kept = KeptWeights(config.quantize.folder, revision)
            builder, decoder = build_quantized(config, model_config, names, reader, precision, kept)
        longest = config.max_model_tokens or builder.config.max_position_tokens
        for rope in decoder.ropes:
            rope.reserve(longest + config.speculative.max_tokens)
    if on_progress is not None:
        on_progress(1.0)
    return LoadedModel(builder.config, precision, decoder, builder.sites, revision)


def _others(model: ModelConfig) -> tuple[str, ...]:
    """How the names of tensors begin that checkpoints hold, but decoders do not have."""
    family = FAMILIES[model.architecture]
    shared = (
        n for n, layer in enumerate(model.layers) if getattr(layer.mixer, "kv_source", None) is not None
    )
    keys = tuple(f"model.layers.{n}.self_attn.{name}" for n in shared for name in ("k_", "v_"))
    return keys + tuple(name.format(num_layers=model.num_layers) for name in family.others)


def _check_files(config: EngineConfig) -> None:
    """Raise CheckpointError for a file with another digest than expected, and for weights without one."""
    checkpoint = Path(config.checkpoint)
    if any(Path(path).parent == checkpoint for path in config.sha256):
        check_listed(weight_files(checkpoint), config.sha256)
    check_digests(config.sha256)
