"""HyperMoE (Zhao et al., 2024, arXiv:2402.12656): the experts that a token skips modulate those it chose.

A hypernetwork, shared by all layers, turns the mean embedding of the unselected experts and the embedding of
the layer into a low-rank adapter; its output is added to that of the selected experts. The adapter depends
only on the layer and the set of chosen experts: where there are few sets, all adapters are generated at load,
else those of the sets, or on a GPU of the tokens, in a step are generated in that step.

Everything that serving needs is here: the rest of the engine sees an `ExtraTerm` of its MoE layers. Training
is in backend/pico/hyper_moe.py.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from itertools import combinations
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from backend.config import ModelConfig, MoEConfig
from backend.errors import CheckpointError
from backend.kernels.device import uses_triton
from backend.layers.moe import ExtraTerm
from backend.models.config_reader import ConfigReader
from backend.models.precision import Precision
from backend.models.weights import WeightReader

MAX_TABLE_BYTES = 1 << 24
"""Size of one layer's precomputed adapters, in the dtype of computation."""

_MAX_GATHERED_ELEMENTS = 1 << 22
"""Adapter elements gathered at once; bounds the memory that long prompts take."""


@dataclass(frozen=True, slots=True)
class HyperMoEConfig:
    """The section "hyper_moe" of config.json, where all four are required; the defaults are for training."""

    embedding_size: int = 16  # e, of an expert and of a layer
    hidden_size: int = 64  # h, of the network between embeddings and condition
    condition_size: int = 24  # c, of the vector that an adapter is generated from
    rank: int = 4  # r, of an adapter


def open_hyper_moe(
    model: ModelConfig, weights: WeightReader, precision: Precision
) -> Callable[[int], ExtraTerm] | None:
    """A checkpoint's HyperMoE: layer index → what that MoE layer adds; None if the checkpoint has none.

    Raises CheckpointError where section, model and tensors do not fit together.
    """
    config = _read_config(model)
    if config is None:
        if "hyper.up.weight" in weights:
            raise CheckpointError(
                f"{model.checkpoint} has a tensor 'hyper.up.weight', but its config.json no 'hyper_moe': "
                "without that the model would answer wrongly; restore the key or download it again"
            )
        return None
    moe = model.experts
    assert moe is not None, "_read_config refuses models without experts"
    network = HyperNetwork.read(config, model, moe, weights, precision.device)
    return lambda layer: HyperExperts(network, layer, moe, precision.compute)


def _read_config(model: ModelConfig) -> HyperMoEConfig | None:
    path = Path(model.checkpoint) / "config.json"
    reader = ConfigReader(path, json.loads(path.read_text(encoding="utf-8")))
    found = reader.raw.get("hyper_moe")
    if found is None:
        return None
    if model.experts is None:
        expected = f"no such key for {model.architecture}, which has no experts"
        raise reader.error("hyper_moe", found, expected)
    if model.experts.experts_per_token == model.experts.num_experts:
        expected = "fewer than all experts (hyper_moe)"
        raise reader.error("num_experts_per_tok", model.experts.experts_per_token, expected)
    names = [field.name for field in fields(HyperMoEConfig)]
    if not isinstance(found, dict) or set(found) != set(names):
        raise reader.error("hyper_moe", found, f"an object with {', '.join(names)}")
    section = ConfigReader(path, found)
    return HyperMoEConfig(**{name: section.positive(name) for name in names})


@dataclass(frozen=True, slots=True)
class HyperNetwork:
    """Generates adapters; always in float32: it is small and seldom runs."""

    rank: int
    expert_embeddings: Tensor  # [layers, experts, e]
    layer_embeddings: Tensor  # [layers, e]
    hidden: Tensor  # [h, 2e]
    hidden_bias: Tensor  # [h]
    condition: Tensor  # [c, h]
    down: Tensor  # [r·D, c]
    up: Tensor  # [D·r, c]

    @classmethod
    def read(
        cls,
        config: HyperMoEConfig,
        model: ModelConfig,
        moe: MoEConfig,
        weights: WeightReader,
        device: torch.device,
    ) -> HyperNetwork:
        """Read the tensors `hyper.*`. Raises CheckpointError when one is missing or misshapen."""
        embedding, adapter = config.embedding_size, config.rank * model.hidden_size
        shapes: dict[str, tuple[int, ...]] = {  # in the order of the fields
            "hyper.expert_embeddings": (model.num_layers, moe.num_experts, embedding),
            "hyper.layer_embeddings": (model.num_layers, embedding),
            "hyper.hidden.weight": (config.hidden_size, 2 * embedding),
            "hyper.hidden.bias": (config.hidden_size,),
            "hyper.condition.weight": (config.condition_size, config.hidden_size),
            "hyper.down.weight": (adapter, config.condition_size),
            "hyper.up.weight": (adapter, config.condition_size),
        }
        # Copied: a view would keep the checkpoint's file mapped.
        tensors = [
            weights.get(name, shape).to(device, torch.float32).clone() for name, shape in shapes.items()
        ]
        return cls(config.rank, *tensors)

    def generate(self, layer: int, subsets: Tensor) -> tuple[Tensor, Tensor]:
        """Adapters of S sets of chosen experts, subsets [S, k]: down [S, D, r], up [S, r, D]."""
        embeddings = self.expert_embeddings[layer]
        num_experts, (num_sets, size) = len(embeddings), subsets.shape
        is_unselected = embeddings.new_ones(num_sets, num_experts).scatter_(1, subsets, 0.0)
        mean = is_unselected @ embeddings / (num_experts - size)
        position = self.layer_embeddings[layer].expand(num_sets, -1)
        hidden = F.silu(F.linear(torch.cat((mean, position), dim=1), self.hidden, self.hidden_bias))
        condition = F.normalize(F.linear(hidden, self.condition), dim=1)
        down = F.linear(condition, self.down).view(num_sets, self.rank, -1).mT
        up = F.linear(condition, self.up).view(num_sets, -1, self.rank).mT
        return down, up


class HyperExperts:
    """One layer's adapters: an ExtraTerm."""

    __slots__ = ("_binomials", "_compute", "_layer", "_network", "_table")

    def __init__(self, network: HyperNetwork, layer: int, moe: MoEConfig, compute: torch.dtype) -> None:
        self._network, self._layer, self._compute = network, layer, compute
        num_sets = math.comb(moe.num_experts, moe.experts_per_token)
        num_elements = (network.down.shape[0] + network.up.shape[0]) * num_sets
        self._table: tuple[Tensor, Tensor] | None = None
        if num_elements * compute.itemsize <= MAX_TABLE_BYTES:
            device = network.down.device
            self._binomials = binomial_table(moe.num_experts, moe.experts_per_token).to(device)
            self._table = self._generate(all_subsets(moe.num_experts, moe.experts_per_token).to(device))

    def __call__(self, x: Tensor, chosen: Tensor) -> Tensor:
        """The term for x [T, D] with chosen experts [T, k] → [T, D]."""
        if self._table is not None:
            return apply_adapters(x, subset_numbers(chosen, self._binomials), *self._table)
        if not uses_triton(x):
            subsets, numbers = torch.unique(chosen.sort(dim=1).values, dim=0, return_inverse=True)
            return apply_adapters(x, numbers, *self._generate(subsets))
        # An adapter for each token: how many sets there are would be known to the device alone.
        num_rows = max(1, _MAX_GATHERED_ELEMENTS // (2 * len(self._network.down)))
        pieces = zip(torch.split(x, num_rows), torch.split(chosen, num_rows), strict=True)
        return torch.cat([_apply(rows, *self._generate(own)) for rows, own in pieces])

    def _generate(self, subsets: Tensor) -> tuple[Tensor, Tensor]:
        down, up = self._network.generate(self._layer, subsets)
        return down.to(self._compute).contiguous(), up.to(self._compute).contiguous()


def apply_adapters(x: Tensor, numbers: Tensor, down: Tensor, up: Tensor) -> Tensor:
    """y[t] = silu(x[t] · down[numbers[t]]) · up[numbers[t]].

    x [T, D]; numbers [T] int64, each token's set of chosen experts; down [S, D, r]; up [S, r, D] → [T, D]. A
    token's result does not depend on the other tokens.
    """
    num_rows = max(1, _MAX_GATHERED_ELEMENTS // (2 * down[0].numel()))
    pieces = zip(torch.split(x, num_rows), torch.split(numbers, num_rows), strict=True)
    return torch.cat(
        [_apply(rows, down.index_select(0, own), up.index_select(0, own)) for rows, own in pieces]
    )


def _apply(x: Tensor, down: Tensor, up: Tensor) -> Tensor:
    """silu(x[t] · down[t]) · up[t]; down [T, D, r], up [T, r, D]."""
    inner = torch.bmm(x[:, None], down)
    inner = inner / (1 + torch.exp(-inner))  # not F.silu, which rounds a tensor's last elements otherwise
    return torch.bmm(inner, up)[:, 0]


def all_subsets(num_experts: int, size: int) -> Tensor:
    """Every set of `size` experts, [sets, size] in the order of `subset_numbers`, ascending within a set."""
    # combinations() counts up by the first element, the numbering by the last.
    reverse = [subset[::-1] for subset in combinations(range(num_experts - 1, -1, -1), size)]
    return torch.tensor(reverse[::-1])


def binomial_table(num_experts: int, size: int) -> Tensor:
    """[size, num_experts]: what each expert, at each place of its sorted set, adds to the set's number."""
    rows = [[math.comb(expert, place) for expert in range(num_experts)] for place in range(1, size + 1)]
    return torch.tensor(rows)


def subset_numbers(chosen: Tensor, binomials: Tensor) -> Tensor:
    """Ranks sets of experts: {c₁ < … < c_k} → Σᵢ binomial(cᵢ, i); chosen [T, k] in any order → [T] int64."""
    return binomials.gather(1, chosen.sort(dim=1).values.T).sum(dim=0)
