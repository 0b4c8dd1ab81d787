"""Reads a head: a folder with config.json and model.safetensors, made for one target."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import msgspec
import torch
from torch import Tensor

from backend.config import RopeConfig
from backend.errors import CheckpointError
from backend.kernels.round_layer import FeedForwardWeights
from backend.layers.rope import Rope
from backend.models import LoadedModel
from backend.models.weights import WeightReader
from backend.speculative.compiled_layer import (
    CompiledAttention,
    CompiledFeedForward,
    CompiledProjection,
    Norm,
    compiles,
    feed_forward_weights,
    most_rows,
)
from backend.speculative.round_layer import Few, HeadNorm, Heads, Placement, RoundAttention, RoundMLP

Shape = TypeVar("Shape", bound="HeadShape")


class HeadShape(msgspec.Struct, frozen=True):
    """What every head's config.json says."""

    hidden_size: int


class LayerShape(HeadShape, frozen=True):
    """A head with a decoder layer of its own."""

    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float

    def __post_init__(self) -> None:
        """Queries share keys evenly."""
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"'num_attention_heads' {self.num_attention_heads} is no multiple of "
                f"'num_key_value_heads' {self.num_key_value_heads}"
            )

    @property
    def heads(self) -> Heads:
        """Of its self-attention."""
        return Heads(self.num_attention_heads, self.num_key_value_heads, self.head_dim)


def read_shape(folder: str, kind: type[Shape], model: LoadedModel) -> Shape:
    """Its configuration. Raises CheckpointError when that is wrong or for another target."""
    path = Path(folder) / "config.json"
    try:
        shape = msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.MsgspecError) as error:
        raise CheckpointError(f"{path} describes no head ({error}); train it anew") from None
    if shape.hidden_size != model.config.hidden_size:
        raise CheckpointError(
            f"{path}: 'hidden_size' is {shape.hidden_size!r}, the target's is {model.config.hidden_size}; "
            "give the head that was trained for this target"
        )
    return shape


class HeadReader:
    """Gives a head's tensors laid out for drafting. Every method raises CheckpointError."""

    def __init__(self, reader: WeightReader, model: LoadedModel, *, compiles_parts: bool = True) -> None:
        """`compiles_parts`: where that makes them faster."""
        precision = model.precision
        # A head is small: half the bytes gain nothing there.
        layout = "packed" if precision.weights == "half" else precision.weights
        self.place = Placement(layout, precision.compute, precision.device)
        self._reader = reader
        self._compiles_parts = compiles_parts

    def tensor(self, name: str, *shape: int) -> Tensor:
        """As stored, in float32."""
        return self._reader.get(name, shape).float()

    def rope(self, shape: LayerShape) -> Rope:
        """The rotations of its heads."""
        config = RopeConfig(theta=shape.rope_theta)
        return Rope(config, shape.head_dim, self.place.dtype, self.place.device)

    def attention(self, shape: LayerShape, name: str, norm: str) -> RoundAttention:
        """The self-attention `name` behind the norm called `norm`."""
        width, heads, eps = shape.hidden_size, shape.heads, shape.rms_norm_eps
        queries, keys = heads.num_heads * heads.head_dim, heads.num_kv_heads * heads.head_dim
        unit, gains = self.place.norm(width, eps), self.tensor(f"{norm}.weight", width)
        qkv = [
            self.tensor(f"{name}.{part}_proj.weight", rows, width)
            for part, rows in (("q", queries), ("k", keys), ("v", keys))
        ]
        out = self.tensor(f"{name}.o_proj.weight", width, queries)
        parts = [(f"{name}.q_norm.weight", heads.num_heads), (f"{name}.k_norm.weight", heads.num_kv_heads)]
        return RoundAttention(
            heads,
            unit,
            self.place.linear(self.place.behind(unit, gains, qkv)),
            self.place.linear([out]),
            self.head_norm(eps, parts, heads.head_dim),
            CompiledAttention(heads, Norm(gains, eps), torch.cat(qkv), out)
            if self._compiles(*qkv, out)
            else None,
        )

    def projection(self, norm: Norm, matrix: Tensor) -> Few[Tensor]:
        """`matrix` [N, K] behind a norm."""
        unit = self.place.norm(matrix.shape[1], norm.eps)
        linear = self.place.linear(self.place.behind(unit, norm.gains, [matrix]))
        compiled = CompiledProjection(norm, matrix) if self._compiles(matrix) else None
        return Few(lambda x: linear(unit(x)), compiled, most_rows())

    def closing(self, shape: LayerShape, norm: str, last: str) -> Few[Tensor]:
        """What follows attention, x → last norm of (x + feed-forward of x), by the norms' names."""
        width, eps, place = shape.hidden_size, shape.rms_norm_eps, self.place
        unit, last_unit = place.norm(width, eps), place.norm(width, eps)
        first, final, (gate, up, down) = self._closing(shape, norm, last)
        gate_up = place.linear(place.behind(unit, first.gains, [gate, up]))
        mlp = RoundMLP(unit, gate_up, place.linear([down]))
        gains = place.tensor(final.gains * last_unit.gain)
        compiled = None
        if self._compiles(gate, up, down):
            compiled = CompiledFeedForward(self.feed_forward(shape, norm, last))
        return Few(lambda x: last_unit(x + mlp(x)).mul_(gains), compiled, most_rows())

    def feed_forward(self, shape: LayerShape, norm: str, last: str) -> FeedForwardWeights:
        """The same, for compiled loops."""
        first, final, (gate, up, down) = self._closing(shape, norm, last)
        return feed_forward_weights(first, torch.cat((gate, up)), down, final)

    def _closing(self, shape: LayerShape, norm: str, last: str) -> tuple[Norm, Norm, list[Tensor]]:
        narrow, wide, eps = shape.hidden_size, shape.intermediate_size, shape.rms_norm_eps
        first, final = (Norm(self.tensor(f"{name}.weight", narrow), eps) for name in (norm, last))
        shapes = {"gate": (wide, narrow), "up": (wide, narrow), "down": (narrow, wide)}
        return first, final, [self.tensor(f"mlp.{part}_proj.weight", *size) for part, size in shapes.items()]

    def _compiles(self, *matrices: Tensor) -> bool:
        sizes = (matrix.numel() for matrix in matrices)
        return self._compiles_parts and compiles(self.place.device, self.place.dtype, *sizes)

    def head_norm(self, eps: float, parts: Sequence[tuple[str, int]], head_dim: int) -> HeadNorm:
        """One for all heads of `parts`: (name of the weight, heads)."""
        gains = torch.cat([self.tensor(name, head_dim).expand(count, -1) for name, count in parts])
        return HeadNorm(self.place.norm(head_dim, eps), self.place.tensor(gains))
