"""From a draft model's folder to what can compute it where it is to run."""

from __future__ import annotations

from typing import Protocol

import torch

from backend.config import EngineConfig, ModelConfig
from backend.errors import CheckpointError
from backend.models.checkpoint_config import read_model_config
from backend.models.families import FAMILIES
from backend.models.precision import choose_precision
from backend.models.weights import WeightReader
from backend.speculative.compiled_rounds import compile_model
from backend.speculative.dense_weights import DenseReader
from backend.speculative.draft_network import build_network
from backend.speculative.draft_rounds import DraftRounds, TorchModel
from backend.speculative.round_layer import Placement

COMPILED_SIZE = 1 << 22
"""Elements of the matrices of a model that a CPU's own memory holds: the compiled loop reads them there."""

_SMALL_MODEL = 1 << 26
"""Elements of the matrices of a model that is kept in float32 rather than in 16 bits on a CPU."""


class DraftModel(Protocol):
    """A draft model's weights, before it is known how much memory there is."""

    @property
    def page_bytes(self) -> int:
        """Of its keys and values."""
        ...

    def open(self, num_pages: int) -> DraftRounds:
        """With so many pages of memory."""
        ...


def load_draft_model(config: EngineConfig, folder: str, max_model_tokens: int) -> DraftModel:
    """The dense model in `folder`, for a target configured by `config`. Raises CheckpointError."""
    model = read_model_config(folder)
    if model.moe is not None:
        raise CheckpointError(f"{folder} is a mixture of experts; choose a dense model to draft with")
    if any(window is not None and window < max_model_tokens for window in model.windows):
        raise CheckpointError(
            f"{folder} has a sliding window of {min(filter(None, model.windows))} tokens; choose a model "
            "without one to draft with, or lower max_model_tokens"
        )
    names = FAMILIES[model.architecture].names
    with torch.inference_mode(), WeightReader(folder) as reader:
        precision = choose_precision(config, model, reader.dtype(names.embedding))
        weights = DenseReader(model, names, reader)
        if precision.device.type == "cpu" and _num_elements(model) <= COMPILED_SIZE:
            return compile_model(weights, max_model_tokens)
        layout = precision.weights
        if layout == "half" and _num_elements(model) <= _SMALL_MODEL:
            layout = "packed"
        placement = Placement(layout, precision.compute, precision.device)
        return TorchModel(build_network(weights, placement, precision.kv))


def _num_elements(model: ModelConfig) -> int:
    heads = 2 * (model.num_heads + model.num_kv_heads) * model.head_dim
    layer = model.hidden_size * (heads + 3 * model.intermediate_size)
    return 2 * model.vocab_size * model.hidden_size + model.num_layers * layer
