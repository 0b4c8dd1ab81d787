"""Reads the matrices of experts that a checkpoint keeps in one tensor for each projection of a layer."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from backend.config import ModelConfig, MoEConfig
from backend.errors import CheckpointError
from backend.models.names import StackedNames
from backend.models.weights import WeightReader
from backend.quant.checkpoint import read_quantized
from backend.quant.schemes import QuantizedWeight
from backend.quant.stored import Shape

Weights = list[Tensor | QuantizedWeight]


@dataclass(frozen=True, slots=True)
class ExpertReader:
    """Reads the experts of one layer, whose names follow `prefix`."""

    reader: WeightReader
    names: StackedNames
    config: ModelConfig
    moe: MoEConfig
    prefix: str

    def matrices(self) -> Iterator[tuple[Weights, Weights]]:
        """For each expert: gate and up [I, D], and down [D, I]. Raises CheckpointError, as all here do."""
        wide, narrow = 2 * self.moe.intermediate_size, self.config.hidden_size
        gate_up, down = self.prefix + self.names.gate_up, self.prefix + self.names.down
        for expert in range(self.moe.num_experts):
            both = self._matrix(gate_up, expert, (wide, narrow))
            pairs = [both[::2], both[1::2]]
            if self.names.has_gates_first:
                pairs = [both[: wide // 2], both[wide // 2 :]]
            yield pairs, [self._matrix(down, expert, (narrow, wide // 2))]

    def biases(self) -> tuple[Tensor, Tensor]:
        """The biases of gates and then ups [E, 2 I], and of downs [E, D]."""
        count, wide = self.moe.num_experts, 2 * self.moe.intermediate_size
        gate_up = self.reader.get(f"{self.prefix}{self.names.gate_up}_bias", (count, wide))
        down = self.reader.get(f"{self.prefix}{self.names.down}_bias", (count, self.config.hidden_size))
        return torch.cat((gate_up[:, ::2], gate_up[:, 1::2]), 1), down.clone()

    def _is_transposed(self) -> bool:
        """Whether both tensors are [E, K, N]: some formats differ from transformers' in that alone."""
        count, wide, narrow = self.moe.num_experts, self.moe.intermediate_size, self.config.hidden_size
        found = [self.reader.shape(self.prefix + name) for name in (self.names.gate_up, self.names.down)]
        return found == [(count, narrow, 2 * wide), (count, wide, narrow)]

    def _matrix(self, name: str, expert: int, shape: tuple[int, int]) -> Tensor | QuantizedWeight:
        if self.config.quantization is not None:
            own = _OneExpert(self.reader, expert, self.moe.num_experts)
            found = read_quantized(own, name, shape, self.config.quantization)
            if found is not None:
                return found
        if self.names.has_gates_first and not self._is_transposed():
            return self.reader.get(name, (self.moe.num_experts, *shape))[expert]
        return self.reader.get(name, (self.moe.num_experts, *reversed(shape)))[expert].T


@dataclass(frozen=True, slots=True)
class _OneExpert:
    """A checkpoint's tensors of all experts, of which one is seen."""

    tensors: WeightReader
    expert: int
    num_experts: int

    def shape(self, name: str) -> Shape | None:
        """Without the number of experts."""
        found = self.tensors.shape(name)
        if found is not None and found[:1] != (self.num_experts,):
            raise self.error(name, f"has shape {list(found)}, config.json implies {self.num_experts} experts")
        return None if found is None else found[1:]

    def read(self, name: str, dtypes: Collection[torch.dtype]) -> Tensor:
        """The expert's part of the tensor."""
        return self.tensors.read(name, dtypes)[self.expert]

    def error(self, name: str, problem: str) -> CheckpointError:
        """The error about this tensor."""
        return self.tensors.error(name, problem)
