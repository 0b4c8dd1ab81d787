"""The frozen target model, and the states of it that drafters read, computed on the fly."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from backend.pico.batches import Batch
from backend.pico.hyper_moe import load_sparse

if TYPE_CHECKING:
    from backend.pico.model import Model


@dataclass(frozen=True, slots=True)
class View:
    """A padded batch of conversations with the target's states."""

    ids: Tensor  # [rows, length]
    predicts: Tensor  # [rows, length] bool: the model generates the next token
    hidden: Tensor  # [rows, length, D]: after the final norm
    layers: tuple[Tensor, ...]  # each [rows, length, D]: the residual stream after each layer


@dataclass(frozen=True, slots=True)
class TargetShape:
    """Sizes of the target, named as in its config.json."""

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float


class Target:
    """A causal language model of transformers (Qwen3 or Qwen3-MoE) in fp32, without gradients."""

    def __init__(self, model: Model) -> None:
        self.model = model.requires_grad_(False).train(False)
        config = model.config.to_dict()
        config["rope_theta"] = config["rope_parameters"]["rope_theta"]
        self.shape = TargetShape(**{field.name: config[field.name] for field in fields(TargetShape)})
        self.embed: nn.Module = model.get_input_embeddings()
        self.decoder_layers = list(model.get_submodule("model.layers").children())
        self.norm = model.get_submodule("model.norm")
        self._seen: list[Tensor] = []
        for layer in self.decoder_layers:
            layer.register_forward_hook(self._record)

    def _record(self, _layer: nn.Module, _inputs: object, output: Tensor) -> None:
        self._seen.append(output)

    def logits(self, hidden: Tensor) -> Tensor:
        """Map [..., D] after the final norm → [..., vocabulary]."""
        found: Tensor = self.model.lm_head(hidden)
        return found

    @torch.no_grad()
    def observe(self, batch: Batch) -> View:
        """Run the target over the batch."""
        self._seen.clear()
        hidden = self.model.model(input_ids=batch.ids, use_cache=False).last_hidden_state
        predicts = torch.zeros(batch.ids.numel(), dtype=torch.bool, device=batch.ids.device)
        predicts[batch.predict_from] = True
        return View(batch.ids, predicts.view(batch.ids.shape), hidden, tuple(self._seen))


def load_target(folder: Path) -> Target:
    """Load a checkpoint in fp32, a mixture of experts with the training blocks."""
    from transformers import AutoConfig, Qwen3ForCausalLM

    if hasattr(AutoConfig.from_pretrained(folder), "num_experts"):
        return Target(load_sparse(folder))
    return Target(Qwen3ForCausalLM.from_pretrained(folder, dtype=torch.float32))
