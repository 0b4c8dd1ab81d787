"""From a Mixture-of-Attentions head's folder to what can compute it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from backend.errors import CheckpointError
from backend.kernels.mixture_chain import LayerMixWeights, can_chain
from backend.kernels.tiles import in_tiles
from backend.kv.storage import KVLayout
from backend.models import LoadedModel
from backend.models.weights import WeightReader
from backend.speculative.compiled_layer import compiles
from backend.speculative.compiled_mixture import as_array, compile_mixture
from backend.speculative.heads import HeadReader, LayerShape, read_shape
from backend.speculative.mixture_network import CrossAttention, LayerAttention, MixtureNetwork
from backend.speculative.mixture_rounds import MixtureHead, TorchMixture
from backend.speculative.round_layer import Placement
from backend.speculative.target_parts import guess_weights, torch_guess


class MixtureShape(LayerShape, frozen=True):
    """Its config.json."""

    num_target_layers: int
    layer_attention_heads: int
    target_layers: int


def load_mixture(folder: str, model: LoadedModel, max_model_tokens: int, num_positions: int) -> MixtureHead:
    """The head in `folder` on this target, whose drafts end below `num_positions`. Raises CheckpointError."""
    shape = read_shape(folder, MixtureShape, model)
    _check(folder, shape, model, max_model_tokens)
    with torch.inference_mode(), WeightReader(folder) as reader:
        head = HeadReader(reader, model, compiles_parts=False)
        mix = LayerMix.read(head, shape)
        network = _network(head, shape, mix, model)
        guess = guess_weights(model, head.place, is_normed=False)
        if guess is None or not _compiles(head.place, shape):
            return TorchMixture(network)
        return compile_mixture(head, shape, network, mix.compiled(shape.rms_norm_eps), guess, num_positions)


def _compiles(place: Placement, shape: MixtureShape) -> bool:
    """Whether all of the head is computed faster in one loop, and that knows how."""
    wide, layer_heads = 2 * shape.intermediate_size, 3 * shape.layer_attention_heads * shape.head_dim
    heads = (shape.num_attention_heads + 2 * shape.num_key_value_heads) * shape.head_dim
    widest = shape.hidden_size * max(wide, layer_heads, heads)
    return (
        not shape.target_layers and can_chain(shape.head_dim) and compiles(place.device, place.dtype, widest)
    )


def _network(head: HeadReader, shape: MixtureShape, mix: LayerMix, model: LoadedModel) -> MixtureNetwork:
    width, eps, place, precision = shape.hidden_size, shape.rms_norm_eps, head.place, model.precision
    decoder, embed_norm = model.decoder, place.norm(width, eps)
    gains = place.tensor(head.tensor("embed_norm.weight", width) * embed_norm.gain)
    return MixtureNetwork(
        embedded=embed_norm(decoder.embedding.weight.to(precision.compute)) * gains,
        self_attention=head.attention(shape, "self_attn", "input_layernorm"),
        layer_attention=_layer_attention(place, shape, mix),
        cross=_cross_attention(head, shape),
        closing=head.closing(shape, "post_attention_layernorm", "output_norm"),
        rope=head.rope(shape),
        target=decoder,
        target_layers=list(decoder.layers[model.config.num_layers - shape.target_layers :]),
        guess=torch_guess(model, is_normed=False),
        kv_layout=KVLayout(2, shape.num_key_value_heads, shape.head_dim, precision.kv, precision.device),
    )


def _check(folder: str, shape: MixtureShape, model: LoadedModel, max_model_tokens: int) -> None:
    layers = model.config.num_layers
    if shape.num_target_layers != layers or not 0 <= shape.target_layers < layers:
        raise CheckpointError(
            f"{folder} reads {shape.num_target_layers} layers of its target and runs the last "
            f"{shape.target_layers}, but the target has {layers}; give the head that was trained for it"
        )
    windows = model.config.windows[layers - shape.target_layers :]
    if any(window is not None and window < max_model_tokens for window in windows):
        raise CheckpointError(
            f"{folder} runs the target's last layers, which have a sliding window of "
            f"{min(filter(None, windows))} tokens; lower max_model_tokens, or choose another drafter"
        )


@dataclass(frozen=True, slots=True)
class LayerMix:
    """Tensors of the attention between layers."""

    gains: Tensor  # [D], of the norm of streams
    embed: Tensor  # [layers, D]
    qkv: list[Tensor]
    qk_gains: Tensor  # [2, heads, head_dim]
    out: Tensor

    @classmethod
    def read(cls, head: HeadReader, shape: MixtureShape) -> LayerMix:
        """Raises CheckpointError."""
        width, dim, count = shape.hidden_size, shape.head_dim, shape.layer_attention_heads
        prefix = "layer_attention"
        qk = [head.tensor(f"{prefix}.attention.{part}_norm.weight", dim).expand(count, -1) for part in "qk"]
        return cls(
            gains=head.tensor(f"{prefix}.stream_norm.weight", width),
            embed=head.tensor(f"{prefix}.layer_embed", shape.num_target_layers, width),
            qkv=[head.tensor(f"{prefix}.attention.{part}_proj.weight", count * dim, width) for part in "qkv"],
            qk_gains=torch.stack(qk),
            out=head.tensor(f"{prefix}.attention.o_proj.weight", width, count * dim),
        )

    def compiled(self, eps: float) -> LayerMixWeights:
        """For compiled loops."""
        size = self.qk_gains.shape[-1]
        return LayerMixWeights(
            norm=as_array(self.gains),
            eps=np.float32(eps),
            embed=as_array(self.embed),
            matrix=in_tiles([torch.cat(self.qkv)]),
            gains=as_array(self.qk_gains * math.sqrt(size)),
            floor=np.float32(size * eps),
            out=in_tiles([self.out]),
        )


def _layer_attention(place: Placement, shape: MixtureShape, mix: LayerMix) -> LayerAttention:
    width, dim, eps = shape.hidden_size, shape.head_dim, shape.rms_norm_eps
    stream_norm, qk_norm = place.norm(width, eps), place.norm(dim, eps)
    return LayerAttention(
        num_heads=shape.layer_attention_heads,
        head_dim=dim,
        stream_norm=stream_norm,
        gains=place.tensor(mix.gains * stream_norm.gain),
        layer_embed=place.tensor(mix.embed),
        qkv=place.linear(mix.qkv),
        qk_norm=qk_norm,
        qk_gains=place.tensor(mix.qk_gains.flatten(0, 1) * qk_norm.gain),
        out=place.linear([mix.out]),
    )


def _cross_attention(head: HeadReader, shape: MixtureShape) -> CrossAttention:
    width, heads, eps, place = shape.hidden_size, shape.heads, shape.rms_norm_eps, head.place
    queries, keys = heads.num_heads * heads.head_dim, heads.num_kv_heads * heads.head_dim
    memory_norm, norm = place.norm(width, eps), place.norm(width, eps)
    kv = [head.tensor(f"cross_attn.{part}_proj.weight", keys, width) for part in "kv"]
    q = head.tensor("cross_attn.q_proj.weight", queries, width)
    out = head.tensor("cross_attn.o_proj.weight", width, queries)
    by_memory = head.tensor("layer_attention.output_norm.weight", width)
    by_token = head.tensor("cross_attn_layernorm.weight", width)
    return CrossAttention(
        memory_norm=memory_norm,
        keys_values=place.linear(place.behind(memory_norm, by_memory, kv)),
        key_norm=head.head_norm(eps, [("cross_attn.k_norm.weight", heads.num_kv_heads)], heads.head_dim),
        norm=norm,
        queries=place.linear(place.behind(norm, by_token, [q])),
        query_norm=head.head_norm(eps, [("cross_attn.q_norm.weight", heads.num_heads)], heads.head_dim),
        out=place.linear([out]),
    )
