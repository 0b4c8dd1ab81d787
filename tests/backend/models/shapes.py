"""A model built from its configuration alone: every tensor that it asks for is zeros of that shape."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from backend.layers.rope import Rope
from backend.models.build import DecoderBuilder
from backend.models.checkpoint_config import read_model_config
from backend.models.decoder import Decoder
from backend.models.families import FAMILIES
from backend.models.names import StackedNames, WeightNames
from backend.models.precision import Precision
from backend.models.weights import WeightReader
from tests.backend.models.checkpoints import make_config
from tests.backend.models.variant import Variant

PRECISION = Precision(torch.device("cpu"), torch.bfloat16, "plain", torch.bfloat16)


class ZeroReader(WeightReader):
    """Has all tensors that are asked for, but of those that checkpoints may lack only stacked experts."""

    def __init__(self, names: WeightNames) -> None:
        self.matrices: set[str] = set()
        self._stacked = _stacked(names)

    def __contains__(self, name: str) -> bool:
        return False

    def shape(self, name: str) -> tuple[int, ...] | None:
        """Some shape, or None: not in the checkpoint."""
        return () if name.endswith(self._stacked) else None

    def get(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Zeros."""
        if len(shape) > 1 and 1 not in shape[1:]:  # no convolution
            self.matrices.add(name.removesuffix(".weight"))
        return torch.zeros(shape)

    def read(self, name: str, dtypes: Collection[torch.dtype]) -> Tensor:
        """One zero."""
        return torch.zeros(1)


class ShapeBuilder(DecoderBuilder):
    """Builds no table of angles."""

    def ropes(self) -> list[Rope]:
        """None."""
        return []


@dataclass(frozen=True, slots=True)
class Shapes:
    """A decoder, and its projections that no adapter can change, apart from routers."""

    decoder: Decoder
    fixed: set[str]


def build_shapes(variant: Variant, folder: Path) -> Shapes:
    """The variant's decoder; `folder` gets its config.json."""
    make_config(variant).save_pretrained(folder)
    config = read_model_config(folder)
    names = FAMILIES[config.architecture].names
    reader = ZeroReader(names)
    builder = ShapeBuilder(config, names, reader, PRECISION)
    with torch.inference_mode():
        decoder = builder.build()
    fixed = reader.matrices - set(builder.sites) - _no_projections(names)
    fixed = {name for name in fixed if not _is_router(name, names) and "norm" not in name}
    return Shapes(decoder, {_short(name, names) for name in fixed})


def _no_projections(names: WeightNames) -> set[str]:
    tables = (names.embedding, names.layer_inputs.embedding)
    return {name.removesuffix(".weight") for name in tables}


def _is_router(name: str, names: WeightNames) -> bool:
    listed = [getattr(own, key, None) for own in _experts(names) for key in ("router", "shared_gate")]
    return name.endswith(tuple(each.removesuffix(".weight") for each in listed if each))


def _stacked(names: WeightNames) -> tuple[str, ...]:
    """How names of tensors with all experts of a layer end."""
    both = [own for own in _experts(names) if isinstance(own, StackedNames)]
    ends = [name.removesuffix(".weight") for own in both for name in (own.gate_up, own.down)]
    return tuple(each + end for each in ends for end in ("", ".weight", "_bias"))


def _experts(names: WeightNames) -> list[object]:
    return [names.experts, getattr(names.experts, "stacked", None)]


def _short(name: str, names: WeightNames) -> str:
    return "experts" if name.endswith(_stacked(names)) else name.rpartition(".")[2]
