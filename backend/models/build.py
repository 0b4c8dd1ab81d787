"""Builds a Decoder from a checkpoint: reads the family's tensors and stacks those that share an input."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial

import torch
from torch import Tensor

from backend.config import (
    AttentionSpec,
    DenseSpec,
    HybridSpec,
    LayerInputSpec,
    LayerSpec,
    ModelConfig,
    MoEConfig,
    RopeConfig,
    RoutingConfig,
    StateSpec,
)
from backend.kernels.device import uses_triton
from backend.kernels.experts import BiasedExperts, FusedExperts, StackedExperts
from backend.kernels.linear import PlainWeight, WeightLayout, keeps_float32
from backend.layers.attention import Attention, AttentionShape
from backend.layers.attention_values import ValueAttention
from backend.layers.attention_variants import VariantAttention
from backend.layers.embedding import Embedding, embedding_of, rounded
from backend.layers.latent_attention import LatentAttention
from backend.layers.layer_inputs import LayerInputBlock, LayerInputs
from backend.layers.linear import Linear, LinearPart
from backend.layers.mamba2 import HybridMixer
from backend.layers.mlp import MLP, XIELU, ScaledMLP
from backend.layers.moe import MoE
from backend.layers.moe_variants import BesideNorms, LatentMoE, NormedExperts, ScoredChoice, SharedMoE
from backend.layers.norm import LayerNorm, NoNorm, Norm, RMSNorm, Scale
from backend.layers.output_gate import OutputGate
from backend.layers.rope import Rope, halves_order
from backend.models.decoder import (
    Decoder,
    DecoderLayer,
    FeedForwardLayer,
    LayerInputDecoder,
    MixerLayer,
    Nothing,
    OutputNormLayer,
    ParallelLayer,
    ScaledLayer,
)
from backend.models.hyper_moe import open_hyper_moe
from backend.models.latent import build_latent
from backend.models.names import SHARED, XIELU_PREFIX, ExpertNames, StackedNames, WeightNames
from backend.models.precision import Precision
from backend.models.stacked_experts import ExpertReader
from backend.models.staging import mover
from backend.models.state_mixers import StateMixer, build_mamba, build_state_mixer
from backend.models.weights import WeightReader, read_weight
from backend.quant.products import dense, place
from backend.quant.schemes import QuantizedWeight
from backend.quant.stored import FLOATS


class DecoderBuilder:
    """Reads one checkpoint's tensors in the order of use; every method may raise CheckpointError."""

    def __init__(
        self, config: ModelConfig, names: WeightNames, reader: WeightReader, precision: Precision
    ) -> None:
        self.config = config
        self.names = names
        self.reader = reader
        self.first_layer = 0  # its number in the checkpoint; a stage of several has some of the layers
        self.precision = precision
        self._move = mover(precision.device)
        self.sites: dict[str, LinearPart] = {}  # by module name, filled by build: what adapters can change
        self._extra_terms = open_hyper_moe(config, reader, precision)

    def build(self) -> Decoder:
        """Read all weights."""
        config, names = self.config, self.names
        shape = (config.vocab_size, config.hidden_size)
        table = self._move(self.reader.finite(names.embedding, shape))
        layers = [self.layer(number) for number in range(config.num_layers)]
        # A head that is there counts, whatever config.json says: tools leave false switches in nested ones.
        is_tied = config.tie_word_embeddings and self.reader.shape(names.head) is None
        stored = table if is_tied else self._read(names.head, shape)
        head = Linear(self._placed([stored]), None, self.precision.weights)
        is_shared = is_tied and isinstance(head.multiply, PlainWeight)  # other layouts have no rows
        self.sites[names.head.removesuffix(".weight")] = LinearPart(head, 0)
        make: Callable[..., Decoder] = Decoder
        if (inputs := config.layers[0].inputs) is not None:
            make = partial(LayerInputDecoder, layer_inputs=self._layer_inputs(inputs))
        return make(
            config=config,
            embedding=self.embedding(head.matrix if is_shared else _own(table), table.dtype),
            ropes=self.ropes(),
            layers=layers,
            final_norm=self._own_norm(names.final_norm),
            head=head,
        )

    def embedding(self, table: Tensor, stored: torch.dtype) -> Embedding:
        """The embedding of tokens, which keeps `table`; the checkpoint's has the dtype `stored`."""
        config = self.config
        return embedding_of(table, stored, self.precision.compute, config.scalars, config.rms_norm_eps)

    def _layer_inputs(self, spec: LayerInputSpec) -> LayerInputs:
        names, width = self.names.layer_inputs, spec.size * self.config.num_layers
        table = self.reader.get(names.embedding, (spec.vocab_size, width))
        return LayerInputs(
            Embedding(_own(self._move(table)), self.precision.compute, rounded(spec.size**0.5, table.dtype)),
            self.linear({names.projection: width}, self.config.hidden_size),
            self.norm(names.norm, spec.size),
        )

    def _layer_input_block(self, prefix: str, spec: LayerInputSpec) -> LayerInputBlock:
        names, size = self.names.layer_inputs, self.config.hidden_size
        gate = self.linear({prefix + names.gate: spec.size}, size)
        return LayerInputBlock(
            gate, self.linear({prefix + names.out: size}, spec.size), self.norm(prefix + names.out_norm)
        )

    def ropes(self) -> list[Rope]:
        """The rotary embeddings of the layers: one for each of config.rotations."""
        precision = self.precision
        found = self.config.rotations or ((RopeConfig(), self.config.attention.head_dim),)  # all have angles
        return [Rope(rope, head_dim, precision.compute, precision.device) for rope, head_dim in found]

    def layer(self, layer: int) -> DecoderLayer:
        """One decoder layer."""
        spec, names = self.config.layers[layer], self.names
        stored = self.first_layer + layer
        prefix = names.layer.format(layer=stored)
        if spec.mixer is None or spec.feed_forward is None:
            return self._one_block(layer, prefix, spec)
        feed_forward = self._feed_forward(stored, prefix, spec.feed_forward)
        sublayers = (
            self._input_norm(prefix, names.attention_norm),
            self._mixer(layer, prefix, spec.mixer),
            NoNorm() if isinstance(feed_forward, NormedExperts) else self._input_norm(prefix, names.mlp_norm),
            feed_forward,
        )
        if spec.is_parallel:
            return ParallelLayer(*sublayers)
        if names.attention_out_norm and names.mlp_out_norm:
            names_out = names.attention_out_norm, names.mlp_out_norm
            attention_out, mlp_out = (self._own_norm(prefix + name) for name in names_out)
            if (eps := self.config.scalars.out_norm_eps) is not None:
                attention_out.eps = mlp_out.eps = eps
            if names.layer_scale is None:
                return OutputNormLayer(*sublayers, attention_out, mlp_out)
            inputs = None if spec.inputs is None else self._layer_input_block(prefix, spec.inputs)
            number = self.reader.get(prefix + names.layer_scale, (1,))
            return ScaledLayer(*sublayers, attention_out, mlp_out, number.item(), inputs)
        if self.config.scalars.residual != 1:
            scale = Scale(self.config.scalars.residual)
            return OutputNormLayer(*sublayers, scale, scale)
        return DecoderLayer(*sublayers)

    def _one_block(self, layer: int, prefix: str, spec: LayerSpec) -> DecoderLayer:
        names, none = self.names, NoNorm()
        if spec.mixer is not None:
            norm = self._input_norm(prefix, names.attention_norm)
            return MixerLayer(norm, self._mixer(layer, prefix, spec.mixer), none, Nothing())
        norm = self._input_norm(prefix, names.mlp_norm)
        return FeedForwardLayer(none, Nothing(), norm, self._feed_forward(layer, prefix, spec.block))

    def _feed_forward(self, layer: int, prefix: str, spec: DenseSpec | MoEConfig) -> MLP | MoE | SharedMoE:
        if isinstance(spec, DenseSpec):
            return self._mlp(prefix, spec, self.names)
        return self._experts(layer, prefix, spec)

    def _input_norm(self, prefix: str, name: str | None) -> Norm | NoNorm:
        return NoNorm() if name is None else self._own_norm(prefix + name)

    def _mixer(
        self, layer: int, prefix: str, spec: AttentionSpec | StateSpec | HybridSpec
    ) -> Attention | LatentAttention | StateMixer | HybridMixer:
        """Layers of each kind have numbers of their own in KV memory."""
        before = [each for other in self.config.layers[:layer] for each in other.mixers]
        attending = sum(isinstance(each, AttentionSpec) for each in before)
        number = len(before) - attending
        if isinstance(spec, HybridSpec):
            own = self._attention(attending, prefix, spec.attention)
            mamba = build_mamba(self, number, prefix, spec.state)
            return HybridMixer(own, mamba, spec.in_factor, spec.out_factor)
        if not isinstance(spec, AttentionSpec):
            return build_state_mixer(self, number, prefix, spec)
        if spec.latent is not None:
            return build_latent(self, attending, prefix, spec, spec.latent)
        return self._attention(attending, prefix, spec)

    def _attention(self, layer: int, prefix: str, spec: AttentionSpec) -> Attention:
        names, hidden_size = self.names, self.config.hidden_size
        queries, keys = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
        parts = {names.query: 2 * queries if spec.has_gate else queries, names.key: keys, names.value: keys}
        if names.qkv is not None:
            parts = {names.qkv: queries + 2 * keys}
        if spec.value_is_key:
            del parts[names.value]
        if spec.kv_source is not None:
            parts = {names.query: queries}
        qkv = {prefix + name: rows for name, rows in parts.items()}
        shape = AttentionShape(layer, spec.num_heads, spec.num_kv_heads, spec.head_dim, spec.window)
        orders = {
            prefix + name: self._order(spec, count)
            for name, count in ((names.query, spec.num_heads), (names.key, spec.num_kv_heads))
        }
        linears = (
            self.linear(qkv, hidden_size, bias=spec.qkv_bias, orders=orders),
            self.linear({prefix + names.out: hidden_size}, queries, bias=spec.o_bias),
        )
        qk_norm = self._qk_norm(prefix, spec) if spec.qk_norm else None
        if self._is_plain(spec):
            return Attention(shape, *linears, qk_norm)
        rope = None if spec.rope is None else self.config.rotations.index((spec.rope, spec.head_dim))
        if spec.value_norm:
            assert qk_norm is not None
            return ValueAttention(shape, spec, rope, linears, qk_norm)
        sinks = None
        if spec.has_sinks:
            sinks = _own(self.reader.get(prefix + names.sinks, (spec.num_heads,)))
            sinks = sinks.to(self.precision.device, torch.float32)
        gate = None
        if spec.output_gate is not None:
            rows = spec.num_heads if spec.output_gate == "head_softplus" else queries
            gate = OutputGate(self.linear({prefix + names.output_gate: rows}, hidden_size), spec.output_gate)
        return VariantAttention(shape, spec, rope, linears, qk_norm, sinks, gate)

    def _order(self, spec: AttentionSpec, num_heads: int) -> Tensor | None:
        return None if spec.rope is None else halves_order(spec.rope, spec.head_dim, num_heads)

    def _is_plain(self, spec: AttentionSpec) -> bool:
        """Whether the layer has only parts that all kernels know."""
        has_one_rope = spec.rope is not None and spec.rope.rotated == 1 and len(self.config.ropes) == 1
        has_rope_everywhere = all(attention.rope is not None for attention in self.config.attentions)
        has_plain_scores = (spec.scale, spec.softcap, spec.query_growth) == (None,) * 3 and not spec.has_sinks
        is_gated = spec.has_gate or spec.output_gate is not None
        has_known_parts = spec.qk_norm in (None, "head") and not spec.value_norm and not is_gated
        return has_one_rope and has_rope_everywhere and has_plain_scores and has_known_parts

    def _qk_norm(self, prefix: str, spec: AttentionSpec) -> Norm:
        """One norm for queries and keys, with one row of weights per head, or one number for each feature."""
        if spec.qk_norm == "layer":
            return self._qk_layer_norm(prefix, spec)
        if spec.qk_norm == "unit":
            ones = torch.ones(spec.num_heads + spec.num_kv_heads, spec.head_dim)
            return RMSNorm(self._place(ones), self.config.rms_norm_eps)
        if spec.kv_source is not None:
            weight = self._norm_weight(prefix + self.names.query_norm, spec.head_dim)
            return RMSNorm(weight.expand(spec.num_heads, -1), self.config.rms_norm_eps)
        heads = (spec.num_heads, spec.num_kv_heads) if spec.qk_norm == "all" else (1, 1)
        query, key = (
            self._norm_weight(prefix + name, count * spec.head_dim)
            for name, count in zip((self.names.query_norm, self.names.key_norm), heads, strict=True)
        )
        if (order := self._order(spec, 1)) is not None:
            query, key = query[order], key[order]
        if spec.qk_norm == "all":
            return RMSNorm(torch.cat((query, key)), self.config.rms_norm_eps)
        weight = torch.cat((query.expand(spec.num_heads, -1), key.expand(spec.num_kv_heads, -1)))
        return RMSNorm(weight, self.config.rms_norm_eps)

    def _qk_layer_norm(self, prefix: str, spec: AttentionSpec) -> LayerNorm:
        order, size = self._order(spec, 1), spec.head_dim
        pairs = ((self.names.query_norm, spec.num_heads), (self.names.key_norm, spec.num_kv_heads))
        weights = [self.reader.get(prefix + name, (count, size)) for name, count in pairs]
        weight = self._place(torch.cat(weights))
        return LayerNorm(weight if order is None else weight[:, order], None, self.config.rms_norm_eps)

    def _mlp(self, prefix: str, spec: DenseSpec, names: WeightNames) -> MLP:
        wide, narrow = spec.intermediate_size, self.config.hidden_size
        gate_up = {prefix + names.gate: wide, prefix + names.up: wide}
        if not spec.is_gated:
            gate_up = {prefix + names.up: wide}
        elif names.gate_up is not None:
            gate_up = {prefix + names.gate_up: 2 * wide}
        linears = (
            self.linear(gate_up, narrow, bias=spec.has_bias),
            self.linear({prefix + names.down: narrow}, wide, bias=spec.has_bias),
        )
        if spec.factors is not None:
            return ScaledMLP(*linears, spec.factors)
        gate = self._xielu(prefix + XIELU_PREFIX) if spec.activation == "xielu" else None
        return MLP(*linears, spec.activation, gate)

    def _xielu(self, prefix: str) -> XIELU:
        names = ("alpha_p", "alpha_n", "beta", "eps")
        tensors = [self.reader.read(prefix + name, FLOATS) for name in names]
        for name, tensor in zip(names, tensors, strict=True):
            if tensor.numel() != 1 or not tensor.isfinite().all():
                raise self.reader.error(prefix + name, "is not one finite number")
        return XIELU(*(tensor.item() for tensor in tensors))

    def _experts(self, layer: int, prefix: str, config: MoEConfig) -> MoE | SharedMoE:
        """A mixture of experts, and the dense block beside it where there is one."""
        names = self.names.experts
        assert names is not None, "a family with experts names their tensors"
        if isinstance(names, StackedNames):
            experts = self._stacked_moe(prefix, config, names)
            return self._normed_experts(prefix, config, experts) if config.has_own_norms else experts
        stacked = names.stacked
        if stacked is not None and self.reader.shape(prefix + stacked.gate_up) is not None:
            experts = self._stacked_moe(prefix, config, stacked)
        else:
            experts = self._moe(layer, prefix, config, names)
        if not config.shared_size:
            return experts
        shared = self._mlp(prefix + names.shared, config.shared, names.shared_names or SHARED)
        gate = self._router(prefix + names.shared_gate, 1) if config.has_shared_gate else None
        return SharedMoE(experts, shared, gate)

    def _moe(self, layer: int, prefix: str, moe: MoEConfig, names: ExpertNames) -> MoE:
        wide, hidden_size = moe.intermediate_size, self.config.hidden_size
        narrow = moe.latent_size or hidden_size
        gate_up, down = [], []
        stacked = None if moe.gate == "relu2" else self._stacked_experts(moe)
        for own, expert in enumerate(self._experts_of(moe)):
            gate, up, back = (
                prefix + name.format(expert=expert) for name in (names.gate, names.up, names.down)
            )
            both = {up: wide} if moe.gate == "relu2" else {gate: wide, up: wide}
            gate_up.append(self.linear(both, narrow))
            down.append(self.linear({back: narrow}, wide))
            if stacked is not None:
                gate_up[-1].move_to(stacked.gate_up, own)
                down[-1].move_to(stacked.down, own)
        router = self._router(prefix + names.router, moe.num_experts)
        extra_term = None if self._extra_terms is None else self._extra_terms(layer)
        fused = stacked or self._fused_experts(prefix, moe, names)
        choose = None if moe.routing is None else self._choice(prefix, moe, moe.routing)
        if moe.latent_size is not None:
            into, out = (prefix + name for name in names.latent)
            latent = self.linear({into: narrow}, hidden_size), self.linear({out: hidden_size}, narrow)
            return LatentMoE(moe, router, (gate_up, down), choose, *latent)
        return MoE(moe, router, gate_up, down, fused, extra_term, choose)

    def _experts_of(self, moe: MoEConfig) -> range:
        return range(moe.num_experts)

    def _normed_experts(self, prefix: str, config: MoEConfig, experts: MoE) -> NormedExperts:
        names, size, eps = self.names.beside, self.config.hidden_size, self.config.rms_norm_eps
        assert self.names.mlp_norm is not None
        norms = BesideNorms(
            router=RMSNorm(self._norm_weight(prefix + names.router, size) * size**-0.5, eps),
            experts=self.norm(prefix + names.experts),
            experts_out=self.norm(prefix + names.experts_out),
            shared=self.norm(prefix + self.names.mlp_norm),
            shared_out=self.norm(prefix + names.shared_out),
        )
        dense = DenseSpec(intermediate_size=config.shared_size, activation="gelu_tanh")
        scale = self.reader.get(prefix + names.expert_scale, (config.num_experts,))
        own = _own(scale.to(self.precision.device, torch.float32))
        return NormedExperts(experts, self._mlp(prefix, dense, self.names), norms, own)

    def _router(self, name: str, rows: int, *, bias: bool = False) -> Linear:
        """A router's choice is discrete, so it keeps full precision."""
        layout = keeps_float32(self.precision.weights)
        return self.linear({name: rows}, self.config.hidden_size, bias=bias, layout=layout)

    def _choice(self, prefix: str, moe: MoEConfig, routing: RoutingConfig) -> ScoredChoice:
        bias, names = None, self.names.experts
        if routing.has_bias and isinstance(names, ExpertNames):
            name, count = prefix + names.router_bias, moe.num_experts
            stored = self.reader.get(name, (1, count) if self.reader.shape(name) == (1, count) else (count,))
            bias = _own(stored.flatten().to(self.precision.device, torch.float32))
        return ScoredChoice(moe, routing, bias)

    def _stacked_moe(self, prefix: str, moe: MoEConfig, names: StackedNames) -> MoE:
        """Experts that the checkpoint stacks; no adapter can change them."""
        reader = ExpertReader(self.reader, names, self.config, moe, prefix)
        memory = self._stacked_experts(moe)
        biases = [self._place(bias) for bias in reader.biases()] if moe.has_bias else None
        both: tuple[list[Linear], list[Linear]] = [], []
        for expert, matrices in enumerate(reader.matrices()):
            for number, weights in enumerate(matrices):
                bias = None if biases is None else [biases[number][expert]]
                both[number].append(self._assemble(weights, bias, self.precision.weights))
                if memory is not None:
                    both[number][-1].move_to((memory.gate_up, memory.down)[number], expert)
        router = self._router(prefix + names.router, moe.num_experts, bias=moe.has_bias)
        built = MoE(moe, router, *both, memory)
        if memory is not None and moe.gate is not None:
            none = self._place(torch.zeros(moe.num_experts, 1))
            built.fused = BiasedExperts(memory, biases or (none, none), built.gate)
        return built

    def _stacked_experts(self, moe: MoEConfig) -> StackedExperts | None:
        """Memory of a layer's experts on a GPU."""
        precision = self.precision
        if precision.device.type == "cpu" and not uses_triton(torch.empty(0)):
            return None
        return StackedExperts(len(self._experts_of(moe)), precision.compute)

    def _fused_experts(self, prefix: str, moe: MoEConfig, names: ExpertNames) -> FusedExperts | None:
        """A second copy of the experts for the fused loop, if they are small and run on a CPU in float32."""
        wide, narrow, experts = moe.intermediate_size, self.config.hidden_size, self._experts_of(moe)
        on_cpu = self.precision.device.type == "cpu" and self.precision.compute is torch.float32
        fits = self.config.quantization is None and FusedExperts.fits(len(experts), wide, narrow)
        if not on_cpu or not fits or moe.gate is not None:
            return None

        def read(name: str, shape: tuple[int, int]) -> list[Tensor]:
            keys = [prefix + name.format(expert=expert) for expert in experts]
            return [self.reader.get(key, shape) for key in keys]

        gates, ups = read(names.gate, (wide, narrow)), read(names.up, (wide, narrow))
        return FusedExperts(gates, ups, read(names.down, (narrow, wide)), moe.experts_per_token)

    def linear(
        self,
        rows: dict[str, int],
        columns: int,
        *,
        bias: bool = False,
        layout: WeightLayout | None = None,
        orders: Mapping[str, Tensor | None] | None = None,
    ) -> Linear:
        """Stack the weights named by `rows` (name → number of rows) and, with `bias`, their biases.

        `orders`: name → the order in which rows are to be, where it is another one than the checkpoint's.
        """
        order = {name: found for name, found in (orders or {}).items() if found is not None}
        stored = [self._read(name, (count, columns)) for name, count in rows.items()]
        if order:
            stored = [
                dense(weight)[order[name]] if name in order else weight
                for name, weight in zip(rows, stored, strict=True)
            ]
        biases = None
        sizes = {name.removesuffix("weight") + "bias": count for name, count in rows.items()}
        if bias:
            biases = [self._place(self.reader.get(name, (count,))) for name, count in sizes.items()]
            biases = [
                own[order[name]] if name in order else own for name, own in zip(rows, biases, strict=True)
            ]
        elif self.config.quantization is not None:
            self._check_biases(sizes)
        is_site = layout is None
        layout = layout or self.precision.weights
        if not is_site:
            stored = [dense(weight) for weight in stored]
        linear = self._assemble(stored, biases, layout)
        if is_site:  # adapters cannot change a router
            parts = {name: LinearPart(linear, i, order.get(name)) for i, name in enumerate(rows)}
            self.sites.update({name.removesuffix(".weight"): part for name, part in parts.items()})
        return linear

    def _assemble(
        self, stored: list[Tensor | QuantizedWeight], biases: list[Tensor] | None, layout: WeightLayout
    ) -> Linear:
        if any(isinstance(weight, Tensor) and weight.dtype == torch.float32 for weight in stored):
            layout = keeps_float32(layout)
        return Linear(self._placed(stored), biases, layout)

    def norm(self, name: str, size: int | None = None) -> RMSNorm:
        """The RMSNorm with this weight, over the hidden size unless another is given."""
        return RMSNorm(self._norm_weight(name, size or self.config.hidden_size), self.config.rms_norm_eps)

    def _own_norm(self, name: str) -> Norm:
        """The same, or LayerNorm where the model has that."""
        if self.config.norm == "rms":
            return self.norm(name)
        size, eps = self.config.hidden_size, self.config.rms_norm_eps
        weight = self._norm_weight(name, size)
        has_bias = self.config.norm == "biased_layer"
        bias = self.reader.get(name.removesuffix("weight") + "bias", (size,)) if has_bias else None
        return LayerNorm(weight, None if bias is None else _own(self._place(bias)), eps)

    def _norm_weight(self, name: str, size: int) -> Tensor:
        """With the family's offset; in 32 bits where RMSNorm is rounded once, with its weight."""
        weight, scalars = self.reader.finite(name, (size,)), self.config.scalars
        final_offset = scalars.final_norm_offset if name == self.names.final_norm else None
        offset = scalars.norm_offset if final_offset is None else final_offset
        if scalars.exact_norms and self.config.norm == "rms":
            return (weight.float() + offset).to(self.precision.device)
        return _own(self._place(weight.float() + offset if offset else weight))

    def _check_biases(self, names: Iterable[str]) -> None:
        """Some tools write biases of zeros for all modules; others would be lost."""
        for name in names:
            if self.reader.shape(name) is not None and self.reader.read(name, FLOATS).any():
                raise self.reader.error(name, "is a bias, which this architecture does not have")

    def _read(self, name: str, shape: tuple[int, int]) -> Tensor | QuantizedWeight:
        return read_weight(self.reader, name, shape, self.config)

    def _placed(self, stored: list[Tensor | QuantizedWeight]) -> list[Tensor | QuantizedWeight]:
        precision = self.precision
        return place(stored, precision.weights, precision.device, precision.compute, self._move)

    def _place(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.precision.device, self.precision.compute)


def _own(tensor: Tensor) -> Tensor:
    """A copy: the original would keep the checkpoint's file mapped."""
    return tensor.clone()
