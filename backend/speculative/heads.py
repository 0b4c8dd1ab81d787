"""What heads on a target share: their configuration, their weights as the engine's layers, the target's
states.

A head is a folder with config.json and model.safetensors, trained for one target;
backend/pico/drafters/README.md has the formats. Its decoder layer has the tensor names of a Qwen3 layer, so
the models' builder reads it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import msgspec
import torch
from torch import Tensor

from backend.config import AttentionSpec, DenseSpec, EngineConfig, LayerSpec, ModelConfig, RopeConfig
from backend.errors import CheckpointError
from backend.kernels.draft_chain import ChainWeights
from backend.kernels.linear import keeps_float32
from backend.kv.storage import KVLayout, KVShape
from backend.layers.norm import RMSNorm
from backend.layers.rope import Rope
from backend.layers.step_input import StepInput
from backend.models.build import DecoderBuilder
from backend.models.decoder import DecoderLayer
from backend.models.families import FAMILIES
from backend.models.loaded import LoadedModel
from backend.models.names import WeightNames
from backend.models.precision import Precision
from backend.models.weights import WeightReader, read_weight
from backend.quant.products import dense
from backend.speculative.rollout import compile_chain, compiled_precision, num_elements
from backend.types import PAGE_TOKENS, Plan, Sequence

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
        """Refuse heads that do not share keys evenly."""
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"'num_attention_heads' {self.num_attention_heads} is no multiple of "
                f"'num_key_value_heads' {self.num_key_value_heads}"
            )


def read_shape(folder: str, kind: type[Shape], model: LoadedModel) -> Shape:
    """The head's configuration. Raises CheckpointError when it is wrong or for another target."""
    path = Path(folder) / "config.json"
    try:
        shape = msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.MsgspecError) as error:
        raise CheckpointError(f"{path} describes no head ({error}); train it again") from None
    if shape.hidden_size != model.config.hidden_size:
        raise CheckpointError(
            f"{path}: 'hidden_size' is {shape.hidden_size!r}, the target's is {model.config.hidden_size}; "
            "give the head that was trained for this target"
        )
    return shape


def head_precision(model: LoadedModel) -> Precision:
    """The target's, but without 16-bit storage: heads are small, half the bytes gain nothing."""
    precision = model.precision
    return replace(precision, weights=keeps_float32(precision.weights))


class HeadReader:
    """Reads the tensors of a head with a decoder layer. Every method raises CheckpointError."""

    def __init__(self, reader: WeightReader, shape: LayerShape, model: LoadedModel, num_others: int) -> None:
        """`num_others`: weights of other matrices that a draft token needs, the target's head aside."""
        config = model.config
        rope = RopeConfig(theta=shape.rope_theta)
        attention = AttentionSpec(
            num_heads=shape.num_attention_heads,
            num_kv_heads=shape.num_key_value_heads,
            head_dim=shape.head_dim,
            rope=rope,
            qk_norm="head",
        )
        layer = ModelConfig(
            architecture="",
            checkpoint=config.checkpoint,
            vocab_size=config.vocab_size,
            hidden_size=shape.hidden_size,
            layers=(LayerSpec(attention, DenseSpec(intermediate_size=shape.intermediate_size)),),
            max_position_tokens=config.max_position_tokens,
            rms_norm_eps=shape.rms_norm_eps,
            tie_word_embeddings=True,
        )
        plain = head_precision(model)
        compiled = compiled_precision(plain, num_elements(layer) + num_others)
        self._is_compiled = compiled is not None
        self.precision = precision = compiled or plain
        self.builder = DecoderBuilder(layer, WeightNames(layer=""), reader, precision)
        self.rope = Rope(rope, shape.head_dim, precision.compute, precision.device)
        self._reader = reader
        self._shape = shape
        self._model = model

    def tensor(self, name: str, *shape: int) -> Tensor:
        """A copy on the device, in the dtype of computation."""
        precision = self.precision
        return self._reader.get(name, shape).to(precision.device, precision.compute, copy=True)

    def head_norm(self, heads: dict[str, int]) -> RMSNorm:
        """One row per head; `heads` has the number of heads that share each weight."""
        dim = self._shape.head_dim
        rows = [self.tensor(name, dim).expand(count, -1) for name, count in heads.items()]
        return RMSNorm(torch.cat(rows), self._shape.rms_norm_eps)

    def kv_layout(self, num_layers: int) -> KVLayout:
        """The shape of its KV memory."""
        shape, precision = self._shape, self.precision
        layers = (KVShape(shape.num_key_value_heads, shape.head_dim),) * num_layers
        return KVLayout(layers, precision.kv, precision.device)

    def chain(self, embedding: Tensor, layer: DecoderLayer, config: EngineConfig) -> ChainWeights | None:
        """What every head has of the compiled roll-out; None where it is not used."""
        if not self._is_compiled:
            return None
        num_positions = max_model_tokens(config, self._model) + config.speculative.max_tokens
        angles = self.rope(torch.arange(num_positions), num_positions)
        return compile_chain(embedding, [layer], self._output_matrix(), angles, self._shape.rms_norm_eps)

    def _output_matrix(self) -> Tensor:
        """The target's output matrix [vocabulary, D] as it is stored."""
        config, decoder = self._model.config, self._model.decoder
        if config.tie_word_embeddings:
            return decoder.embedding.weight
        with WeightReader(config.checkpoint) as reader:
            names = FAMILIES[config.architecture].names
            shape = (config.vocab_size, config.hidden_size)
            return dense(read_weight(reader, names.head, shape, config)).clone()


def max_model_tokens(config: EngineConfig, model: LoadedModel) -> int:
    """The longest sequence that the engine computes."""
    return config.max_model_tokens or model.config.max_position_tokens


class HiddenStates:
    """A StepObserver that keeps the target's residual stream after its last layer, by slot of its KV memory.

    States follow the target's pages: they are right for prefix hits and after preemption.
    """

    wants_layers = False

    def __init__(self, num_pages: int, hidden_size: int, dtype: torch.dtype, device: torch.device) -> None:
        # zeros, not empty, also commits the memory now, as in KVStorage.
        self._slots = torch.zeros(num_pages * PAGE_TOKENS, hidden_size, dtype=dtype, device=device)
        self.memory = [self._slots]

    def see(self, plan: Plan, step: StepInput, layers: list[Tensor], hidden: Tensor) -> None:
        """Keep the states of the step."""
        self._slots.index_copy_(0, step.slots, hidden)

    def at(self, slots: Tensor) -> Tensor:
        """[n] → [n, D], finite: what is multiplied by 0 must leave no trace."""
        return torch.nan_to_num_(self._slots.index_select(0, slots))


def slots_of(sequence: Sequence, positions: Iterable[int]) -> list[int]:
    """The slots in KV memory of the sequence's tokens at these positions."""
    pages = sequence.pages
    return [pages[place // PAGE_TOKENS] * PAGE_TOKENS + place % PAGE_TOKENS for place in positions]
