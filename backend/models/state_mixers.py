"""Builds the mixers that have a recurrent state."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from backend.config import ConvSpec, DeltaSpec, ModelConfig, StateSpec
from backend.kernels.gated_delta import DeltaWeights
from backend.layers.gated_delta import GatedDeltaNet, grouped_order
from backend.layers.linear import Linear
from backend.layers.norm import RMSNorm
from backend.layers.short_conv import ShortConv
from backend.models.names import WeightNames
from backend.models.precision import Precision
from backend.models.weights import WeightReader

StateMixer = GatedDeltaNet | ShortConv


class Parts(Protocol):
    """What a DecoderBuilder reads."""

    config: ModelConfig
    names: WeightNames
    reader: WeightReader
    precision: Precision

    def linear(self, rows: dict[str, int], columns: int, *, bias: bool = False) -> Linear:
        """Stack the weights named by `rows`."""


def build_state_mixer(parts: Parts, number: int, prefix: str, spec: StateSpec) -> StateMixer:
    """The mixer of one layer; `number`: which of those with a state. Raises CheckpointError."""
    if isinstance(spec, DeltaSpec):
        return _delta_net(parts, number, prefix, spec)
    return _short_conv(parts, number, prefix, spec)


def _delta_net(parts: Parts, number: int, prefix: str, spec: DeltaSpec) -> GatedDeltaNet:
    names, hidden_size, heads = parts.names.delta, parts.config.hidden_size, spec.num_value_heads
    values = heads * spec.value_head_dim
    is_grouped = len(names.inputs) == 1  # by key head
    inputs = [spec.num_channels + values] if is_grouped else [spec.num_channels, values]
    gates = [2 * heads] if is_grouped else [heads, heads]
    linears = (
        parts.linear({prefix + name: n for name, n in zip(names.inputs, inputs, strict=True)}, hidden_size),
        parts.linear({prefix + name: n for name, n in zip(names.gates, gates, strict=True)}, hidden_size),
        parts.linear({prefix + names.out: hidden_size}, values),
    )
    conv = _conv(parts, prefix + names.conv, spec.num_channels, spec.conv_tokens)
    rate = _float(parts, prefix + names.log_rate, (heads,)).exp().neg()
    weights = DeltaWeights(conv, rate, _float(parts, prefix + names.bias, (heads,)))
    norm = RMSNorm(_norm(parts, prefix + names.norm, spec.value_head_dim), parts.config.rms_norm_eps)
    order = grouped_order(spec).to(parts.precision.device) if is_grouped else None
    return GatedDeltaNet(number, spec, linears, weights, norm, order)


def _short_conv(parts: Parts, number: int, prefix: str, spec: ConvSpec) -> ShortConv:
    names, size = parts.names.short_conv, parts.config.hidden_size
    inputs = parts.linear({prefix + names.inputs: 3 * size}, size, bias=spec.has_bias)
    out = parts.linear({prefix + names.out: size}, size, bias=spec.has_bias)
    weight = _conv(parts, prefix + names.conv, size, spec.conv_tokens)
    bias = torch.zeros(size, device=weight.device)
    if spec.has_bias:
        bias = _float(parts, prefix + names.conv.removesuffix("weight") + "bias", (size,))
    return ShortConv(number, inputs, out, weight, bias)


def _conv(parts: Parts, name: str, channels: int, taps: int) -> Tensor:
    return _float(parts, name, (channels, 1, taps)).squeeze(1).contiguous()


def _float(parts: Parts, name: str, shape: tuple[int, ...]) -> Tensor:
    """A copy: the original would keep the checkpoint's file mapped."""
    return parts.reader.get(name, shape).to(parts.precision.device, torch.float32).clone()


def _norm(parts: Parts, name: str, size: int) -> Tensor:
    """The weight of a norm, without the offset that other norms of a family may have."""
    return parts.reader.get(name, (size,)).to(parts.precision.device, parts.precision.compute).clone()
