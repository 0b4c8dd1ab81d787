"""An EAGLE head (arXiv 2401.15077): its arithmetic, and its weights on a target."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from backend.kv.storage import KVLayout
from backend.layers.linear import Linear
from backend.layers.norm import RMSNorm
from backend.layers.rope import Rope
from backend.models import LoadedModel
from backend.models.weights import WeightReader
from backend.speculative.compiled_layer import Norm
from backend.speculative.heads import HeadReader, LayerShape, read_shape
from backend.speculative.round_layer import Angles, Few, RoundAttention
from backend.speculative.target_parts import Guess, target_guess


@dataclass(frozen=True, slots=True)
class EagleNetwork:
    """Weights and arithmetic; holds no state of any sequence."""

    fused: Tensor  # [vocabulary, D]: what an embedding adds to the layer's input
    fuse: Few[Tensor]  # what a state adds to it
    attention: RoundAttention
    closing: Few[Tensor]
    rope: Rope
    target_norm: RMSNorm
    head: Linear  # the target's
    guess: Guess  # by the target's head
    kv_layout: KVLayout

    def inputs(self, token_ids: Tensor, features: Tensor) -> Tensor:
        """What enters the layer: token p + 1 and state p, after the final norm → [n, D]."""
        return F.embedding(token_ids, self.fused).add_(self.fuse(features))

    def predicted(self, x: Tensor) -> Tensor:
        """What leaves the attention → the next state, after the final norm."""
        return self.closing(x)

    def best(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """The likeliest token by each predicted state [B, D], and how likely it is; [B] both."""
        return self.guess(features)

    def angles(self, positions: list[int]) -> Angles:
        """Of slots at these positions."""
        longest = max(positions) + 1
        angles = Angles(*self.rope(torch.tensor(positions, device=self.fused.device), longest))
        return angles if self.attention.head_norm is None else self.attention.head_norm.angles(angles)


def load_eagle(folder: str, model: LoadedModel) -> EagleNetwork:
    """The head in `folder` on this target. Raises CheckpointError."""
    shape = read_shape(folder, LayerShape, model)
    width, eps = shape.hidden_size, shape.rms_norm_eps
    decoder, precision = model.decoder, model.precision
    with torch.inference_mode(), WeightReader(folder) as reader:
        head = HeadReader(reader, model)
        place = head.place
        fc = head.tensor("fc.weight", width, 2 * width)
        embedding = place.norm(width, eps)
        # All embeddings go through their norm and half of `fc` once and for all.
        by_embedding = place.behind(embedding, head.tensor("embed_norm.weight", width), [fc[:, :width]])
        table = decoder.embedding.weight.to(precision.compute)
        return EagleNetwork(
            fused=F.linear(embedding(table), place.tensor(by_embedding[0])),
            fuse=head.projection(Norm(head.tensor("feature_norm.weight", width), eps), fc[:, width:]),
            attention=head.attention(shape, "self_attn", "input_layernorm"),
            closing=head.closing(shape, "post_attention_layernorm", "norm"),
            rope=head.rope(shape),
            target_norm=decoder.final_norm,
            head=decoder.head,
            guess=target_guess(model, place, is_normed=True),
            kv_layout=KVLayout(1, shape.num_key_value_heads, shape.head_dim, precision.kv, precision.device),
        )
