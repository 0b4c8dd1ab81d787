"""Rounds a checkpoint's weights while it is loaded, layer by layer, and keeps them for the next start.

Projections of attention and feed-forward are rounded, nothing else. With prompts, a layer's inputs are those
that the rounded layers before it compute, so that it makes up for their errors as well.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from backend.config import EngineConfig, LayerSpec, ModelConfig, QuantizeConfig
from backend.digests import revision_of
from backend.errors import CheckpointError
from backend.kernels.linear import PackedWeight
from backend.kv.storage import KVStorage
from backend.layers.attention import AttentionContext
from backend.layers.gated_delta import GatedDeltaNet
from backend.layers.linear import Linear
from backend.layers.moe import MoE
from backend.layers.moe_variants import SharedMoE
from backend.layers.step_input import step_of_tables
from backend.models.build import DecoderBuilder
from backend.models.decoder import Decoder, DecoderLayer, open_context
from backend.models.names import StackedNames, WeightNames
from backend.models.precision import Precision
from backend.models.quantization import check_unquantized
from backend.models.weights import WeightReader
from backend.quant.calibrate import FORMATS, round_weight, stored
from backend.quant.kept import KeptWeights, RoundedWeights
from backend.quant.prompts import open_prompts, read_prompts
from backend.types import PAGE_TOKENS

_VERSION = 1
"""The number to raise when rounding changes: kept weights of another one are not read."""
_SHOWN_LAYERS = 8

logger = logging.getLogger(__name__)


def served_revision(checkpoint: Path, config: QuantizeConfig | None) -> str:
    """What identifies the weights that are served: the checkpoint's, and how they are rounded."""
    revision = revision_of(checkpoint)
    if config is None:
        return revision
    prompts = ""
    if config.calibration:
        with open_prompts(Path(config.calibration)) as file:
            prompts = hashlib.file_digest(file, "sha256").hexdigest()
    return hashlib.sha256(f"{_VERSION} {revision} {config.scheme} {prompts}".encode()).hexdigest()


def build_quantized(
    config: EngineConfig,
    model: ModelConfig,
    names: WeightNames,
    reader: WeightReader,
    precision: Precision,
    kept: KeptWeights,
) -> tuple[DecoderBuilder, Decoder]:
    """The decoder of rounded weights, read from what was kept or computed. Raises CheckpointError."""
    quantize = config.quantize
    assert quantize is not None
    check_unquantized(model)
    if isinstance(names.experts, StackedNames) and model.experts is not None:
        raise CheckpointError(
            f"{config.checkpoint} has stacked experts, which `quantize` cannot round: remove `quantize`, or "
            "give the checkpoint in mxfp4"
        )
    if quantize.calibration and any(_is_entangled(layer) for layer in model.layers):
        raise CheckpointError(
            f"{config.checkpoint} has layers that read more than the layer before them gave, so prompts "
            "cannot be computed layer by layer: remove `calibration`"
        )
    builder: DecoderBuilder
    with kept.locked():
        found = kept.read()
        if found is None:
            logger.info(
                "rounding weights of model %r to %s, which may take minutes", config.model, quantize.scheme
            )
            prompts: list[list[int]] = []
            if quantize.calibration:
                place, length = Path(quantize.calibration), model.max_position_tokens
                prompts = read_prompts(place, Path(config.checkpoint), length)
            builder = rounding = RoundingBuilder(model, names, reader, precision, quantize, prompts)
            decoder = builder.build()
            reader.check_all_read(is_quantized=False)
            kept.write(rounding.rounded)
            _log(config.model, quantize, rounding.rounded.errors)
            return builder, decoder
    _log(config.model, quantize, found.errors)
    reader.put(found.tensors)
    builder = DecoderBuilder(replace(model, quantization=FORMATS[quantize.scheme]), names, reader, precision)
    return builder, builder.build()


def _is_entangled(layer: LayerSpec) -> bool:
    return layer.inputs is not None or layer.attention.kv_source is not None


def _log(name: str, quantize: QuantizeConfig, errors: list[float]) -> None:
    """Say how weights were rounded, and which layers suffer most."""
    how, measure = "by GPTQ", "error of layers' outputs"
    if not quantize.calibration:
        how, measure = "to nearest, as quantize.calibration names no prompts", "error of layers' weights"
    worst = sorted(range(len(errors)), key=lambda layer: -errors[layer])[:_SHOWN_LAYERS]
    shown = ", ".join(f"layer {layer} {errors[layer]:.2%}" for layer in worst)
    logger.info(
        "model %r is served in %s, rounded %s; relative %s, worst first: %s",
        *(name, quantize.scheme, how, measure, shown),
    )


class _Recorder:
    """A product that adds up xᵀx of its inputs."""

    __slots__ = ("_multiply", "products")

    def __init__(self, linear: Linear) -> None:
        self._multiply: PackedWeight = linear.multiply
        self.products = torch.zeros(linear.in_features, linear.in_features)

    def __call__(self, x: Tensor) -> Tensor:
        """[T, K] → [T, N]."""
        inputs = x.float().cpu()
        self.products.addmm_(inputs.T, inputs)
        return self._multiply(x)


class RoundingBuilder(DecoderBuilder):
    """Builds each layer as it is stored, to see its inputs and outputs, and then of rounded weights."""

    def __init__(
        self,
        config: ModelConfig,
        names: WeightNames,
        reader: WeightReader,
        precision: Precision,
        quantize: QuantizeConfig,
        prompts: list[list[int]],
    ) -> None:
        super().__init__(replace(config, quantization=FORMATS[quantize.scheme]), names, reader, precision)
        self.rounded = RoundedWeights({}, [])
        self._scheme = quantize.scheme
        self._exact = DecoderBuilder(config, names, reader, precision)
        self._prompts = list(self._open(prompts)) if prompts else []

    def layer(self, layer: int) -> DecoderLayer:
        """One layer of rounded weights."""
        self._exact.sites = {}
        exact = self._exact.layer(layer)
        expected, products = self._observe(exact)
        error = size = 0.0
        for module, part in self._exact.sites.items():
            if isinstance(exact.mixer, GatedDeltaNet) and part.linear is exact.mixer.gates:
                continue  # a few rows that tell how fast a state decays: errors there last
            name = f"{module}.weight"
            weight = self.reader.get(name, (part.columns, part.in_features)).float()
            if not weight.isfinite().all():
                raise self.reader.error(name, "holds numbers that are not finite")
            inputs = products.get(part.linear)
            if inputs is not None and not inputs.isfinite().all():
                raise self.reader.error(
                    name, "gets inputs from the prompts of quantize.calibration that are not finite"
                )
            rounded = round_weight(weight, self._scheme, inputs)
            error += float((rounded.dequantize() - weight).square().sum())
            size += float(weight.square().sum())
            tensors = stored(name, rounded)
            self.reader.put(tensors)
            self.rounded.tensors.update(tensors)
        built = super().layer(layer)
        if self._prompts:
            error = size = 0.0
        for (hidden, context), wanted in zip(self._prompts, expected, strict=True):
            size += float((wanted - hidden).float().square().sum())
            hidden += built(hidden, context)
            error += float((wanted - hidden).float().square().sum())
        self.rounded.errors.append((error / size) ** 0.5 if size else 0.0)
        return built

    def _observe(self, layer: DecoderLayer) -> tuple[list[Tensor], Mapping[Linear, Tensor]]:
        """The layer's outputs, and xᵀx of what its projections get."""
        block = layer.feed_forward
        if isinstance(experts := block.experts if isinstance(block, SharedMoE) else block, MoE):
            experts.fused = None  # it calls no Linear
        if not self._prompts:
            return [], {}
        recorders = {part.linear: _Recorder(part.linear) for part in self._exact.sites.values()}
        for linear, recorder in recorders.items():
            linear.multiply = recorder
        outputs = []
        for hidden, context in self._prompts:
            output = hidden.clone()
            output += layer(output, context)
            outputs.append(output)
        return outputs, {linear: recorder.products for linear, recorder in recorders.items()}

    def _open(self, prompts: list[list[int]]) -> Iterator[tuple[Tensor, AttentionContext]]:
        """Each prompt embedded, and what attention needs; all use the same KV memory, one after another."""
        config, precision, device = self.config, self.precision, self.precision.device
        table = self.reader.get(self.names.embedding, (config.vocab_size, config.hidden_size)).to(device)
        embedding, ropes = self.embedding(table, table.dtype), self.ropes()
        pages = np.arange(-(-max(map(len, prompts)) // PAGE_TOKENS))[None]
        kv = KVStorage(precision.kv_layout(config), pages.size)
        for tokens in prompts:
            length = [len(tokens)]
            step = step_of_tables(torch.tensor(tokens), length, length, pages, device)
            yield embedding(step.token_ids), open_context(config, ropes, step, kv, precision.compute)
