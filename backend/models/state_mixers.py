"""Builds the mixers that have a recurrent state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor

from backend.config import ConvSpec, DeltaSpec, MambaSpec, ModelConfig, StateSpec
from backend.kernels.gated_delta import DeltaWeights
from backend.kernels.mamba2 import MambaWeights
from backend.layers.gated_delta import GatedDeltaNet, grouped_order
from backend.layers.linear import Linear
from backend.layers.mamba2 import Mamba2
from backend.layers.norm import RMSNorm
from backend.layers.short_conv import ShortConv
from backend.models.names import WeightNames
from backend.models.precision import Precision
from backend.models.weights import WeightReader

StateMixer = GatedDeltaNet | ShortConv | Mamba2


class Parts(Protocol):
    """What a DecoderBuilder reads."""

    config: ModelConfig
    names: WeightNames
    reader: WeightReader
    precision: Precision

    def linear(
        self,
        rows: dict[str, int],
        columns: int,
        *,
        bias: bool = False,
        orders: Mapping[str, Tensor | None] | None = None,
    ) -> Linear:
        """Stack the weights named by `rows`."""

    def norm(self, name: str, size: int | None = None) -> RMSNorm:
        """The RMSNorm with this weight."""


def build_state_mixer(parts: Parts, number: int, prefix: str, spec: StateSpec) -> StateMixer:
    """The mixer of one layer; `number`: which of those with a state. Raises CheckpointError."""
    if isinstance(spec, DeltaSpec):
        return _delta_net(parts, number, prefix, spec)
    if isinstance(spec, MambaSpec):
        return build_mamba(parts, number, prefix, spec)
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
    conv = _conv(parts, prefix + names.conv, size, spec.conv_tokens)
    return ShortConv(number, inputs, out, conv, _conv_bias(parts, prefix + names.conv, size, spec.has_bias))


def build_mamba(parts: Parts, number: int, prefix: str, spec: MambaSpec) -> Mamba2:
    """Mamba-2 of one layer. Raises CheckpointError."""
    prefix, size, heads = prefix + parts.names.mamba, parts.config.hidden_size, (spec.num_heads,)
    linears = (
        parts.linear({prefix + "in_proj.weight": spec.inner_size + spec.row_width}, size, bias=spec.in_bias),
        parts.linear({prefix + "out_proj.weight": size}, spec.inner_size, bias=spec.out_bias),
    )
    name, channels = prefix + "conv1d.weight", spec.num_channels
    weights = MambaWeights(
        conv=_conv(parts, name, channels, spec.conv_tokens),
        conv_bias=_conv_bias(parts, name, channels, spec.conv_bias),
        rate=_float(parts, prefix + "A_log", heads).exp().neg(),
        bias=_float(parts, prefix + "dt_bias", heads),
        skip=_float(parts, prefix + "D", heads),
    )
    norm = factors = None
    if spec.norm is not None:
        weight = _norm(parts, prefix + "norm.weight", spec.inner_size).view(spec.num_groups, -1)
        norm = RMSNorm(weight, parts.config.rms_norm_eps)
    if spec.factors is not None:
        sizes = (spec.inner_size,) * 2 + (spec.num_groups * spec.state_size,) * 2 + heads
        both = zip(spec.factors, sizes, strict=True)
        factors = torch.cat([torch.full((count,), factor) for factor, count in both])
        factors = factors.to(parts.precision.device, parts.precision.compute)
    return Mamba2(number, spec, linears, weights, norm, factors)


def _conv(parts: Parts, name: str, channels: int, taps: int) -> Tensor:
    return _float(parts, name, (channels, 1, taps)).squeeze(1).contiguous()


def _conv_bias(parts: Parts, name: str, channels: int, has_bias: bool) -> Tensor:
    """Zeros where there is none."""
    if has_bias:
        return _float(parts, name.removesuffix("weight") + "bias", (channels,))
    return torch.zeros(channels, device=parts.precision.device)


def _float(parts: Parts, name: str, shape: tuple[int, ...]) -> Tensor:
    """A copy: the original would keep the checkpoint's file mapped."""
    return parts.reader.finite(name, shape).to(parts.precision.device, torch.float32).clone()


def _norm(parts: Parts, name: str, size: int) -> Tensor:
    """The weight of a norm, without the offset that other norms of a family may have."""
    return parts.reader.finite(name, (size,)).to(parts.precision.device, parts.precision.compute).clone()
