"""The tensor names of a family, as templates; the defaults are Llama's."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StackedNames:
    """A block with all experts in two tensors: gate_up [E, D, 2 I], each gate before its up; down [E, I, D].

    Biases end in `_bias`; quantised matrices are transposed, and end in `_blocks` and `_scales`.
    """

    router: str
    gate_up: str
    down: str
    has_gates_first: bool = (
        False  # then they are gate_up [E, 2 I, D], all gates before the ups; down [E, D, I]
    )


@dataclass(frozen=True, slots=True)
class ExpertNames:
    """A mixture-of-experts block; `{expert}` is replaced by the expert's index.

    The defaults are those of most families.
    """

    router: str = "mlp.gate.weight"
    gate: str = "mlp.experts.{expert}.gate_proj.weight"
    up: str = "mlp.experts.{expert}.up_proj.weight"
    down: str = "mlp.experts.{expert}.down_proj.weight"
    router_bias: str = "mlp.gate.e_score_correction_bias"  # added to scores to choose experts
    shared: str = "mlp.shared_experts."  # prefix of the dense block beside the experts
    shared_gate: str = "mlp.shared_expert_gate.weight"
    shared_names: WeightNames | None = None  # within that prefix; None: SHARED
    stacked: StackedNames | None = None  # of checkpoints that keep the same experts in two tensors
    latent: tuple[str, str] = ("mixer.fc1_latent_proj.weight", "mixer.fc2_latent_proj.weight")  # in and out


@dataclass(frozen=True, slots=True)
class BesideNames:
    """Tensors beside experts and a dense block that are normalised on their own."""

    router: str = "router.scale"  # the router's norm has these weights, divided by sqrt(D)
    expert_scale: str = "router.per_expert_scale"
    experts: str = "pre_feedforward_layernorm_2.weight"
    experts_out: str = "post_feedforward_layernorm_2.weight"
    shared_out: str = "post_feedforward_layernorm_1.weight"


@dataclass(frozen=True, slots=True)
class LayerInputNames:
    """Embeddings for each layer alone: three tensors of the model, and three of a layer."""

    embedding: str = "model.embed_tokens_per_layer.weight"
    projection: str = "model.per_layer_model_projection.weight"
    norm: str = "model.per_layer_projection_norm.weight"
    gate: str = "per_layer_input_gate.weight"
    out: str = "per_layer_projection.weight"
    out_norm: str = "post_per_layer_input_norm.weight"


@dataclass(frozen=True, slots=True)
class DeltaNames:
    """A gated delta net; names follow the layer's prefix."""

    inputs: tuple[str, ...] = ("linear_attn.in_proj_qkv.weight", "linear_attn.in_proj_z.weight")
    gates: tuple[str, ...] = ("linear_attn.in_proj_a.weight", "linear_attn.in_proj_b.weight")
    conv: str = "linear_attn.conv1d.weight"
    log_rate: str = "linear_attn.A_log"
    bias: str = "linear_attn.dt_bias"
    norm: str = "linear_attn.norm.weight"
    out: str = "linear_attn.out_proj.weight"


@dataclass(frozen=True, slots=True)
class ShortConvNames:
    """A gated short convolution; names follow the layer's prefix."""

    inputs: str = "conv.in_proj.weight"
    conv: str = "conv.conv.weight"
    out: str = "conv.out_proj.weight"


@dataclass(frozen=True, slots=True)
class LatentNames:
    """Multi-head latent attention; without a latent of queries `query`, else the three after it."""

    query: str = "self_attn.q_proj.weight"
    query_down: str = "self_attn.q_a_proj.weight"
    query_norm: str = "self_attn.q_a_layernorm.weight"
    query_up: str = "self_attn.q_b_proj.weight"
    down: str = "self_attn.kv_a_proj_with_mqa.weight"  # to the latent, and the rotated key
    norm: str = "self_attn.kv_a_layernorm.weight"
    up: str = "self_attn.kv_b_proj.weight"  # each head's keys, then its values
    out: str = "self_attn.o_proj.weight"


@dataclass(frozen=True, slots=True)
class WeightNames:
    """A decoder; names within a layer follow the prefix `layer`. A bias ends in `.bias`, not `.weight`."""

    embedding: str = "model.embed_tokens.weight"
    final_norm: str = "model.norm.weight"
    head: str = "lm_head.weight"
    layer: str = "model.layers.{layer}."
    attention_norm: str | None = "input_layernorm.weight"  # None: attention's input is not normalised
    query: str = "self_attn.q_proj.weight"
    key: str = "self_attn.k_proj.weight"
    value: str = "self_attn.v_proj.weight"
    qkv: str | None = None  # query, key and value in one tensor
    out: str = "self_attn.o_proj.weight"
    query_norm: str = "self_attn.q_norm.weight"
    key_norm: str = "self_attn.k_norm.weight"
    sinks: str = "self_attn.sinks"
    output_gate: str = "self_attn.gate_proj.weight"
    attention_out_norm: str | None = None  # of what attention adds to the residual stream
    mlp_norm: str | None = "post_attention_layernorm.weight"
    mlp_out_norm: str | None = None
    gate: str = "mlp.gate_proj.weight"
    up: str = "mlp.up_proj.weight"
    gate_up: str | None = None  # gate and up in one tensor
    down: str = "mlp.down_proj.weight"
    experts: ExpertNames | StackedNames | None = None
    layer_scale: str | None = None  # one number that the residual stream is multiplied by after the layer
    layer_inputs: LayerInputNames = LayerInputNames()
    beside: BesideNames = BesideNames()
    delta: DeltaNames = DeltaNames()
    short_conv: ShortConvNames = ShortConvNames()
    mamba: str = "mamba."  # prefix of a Mamba-2 layer's tensors
    latent: LatentNames = LatentNames()

    @property
    def norms_inputs_alone(self) -> bool:
        """Whether norms are before sublayers and nowhere else, as in Llama."""
        has_inputs = self.attention_norm is not None and self.mlp_norm is not None
        return has_inputs and self.attention_out_norm is None and self.mlp_out_norm is None


SHARED = WeightNames(gate="gate_proj.weight", up="up_proj.weight", down="down_proj.weight")
"""Names of the dense block beside experts, behind the prefix `ExpertNames.shared`."""

XIELU_PREFIX = "mlp.act_fn."
"""Precedes the four numbers of a layer's activation, where they are learnt."""


def in_one_block(model: str, block: str) -> WeightNames:
    """Names where a layer is one block, whatever it is, behind one norm; `model` and `block` are prefixes."""
    return WeightNames(
        embedding=model + "embeddings.weight",
        final_norm=model + "norm_f.weight",
        layer=model + "layers.{layer}.",
        attention_norm="norm.weight",
        query=block + "q_proj.weight",
        key=block + "k_proj.weight",
        value=block + "v_proj.weight",
        out=block + "o_proj.weight",
        mlp_norm="norm.weight",
        up=block + "up_proj.weight",
        down=block + "down_proj.weight",
        experts=ExpertNames(
            router=block + "gate.weight",
            up=block + "experts.{expert}.up_proj.weight",
            down=block + "experts.{expert}.down_proj.weight",
            router_bias=block + "gate.e_score_correction_bias",
            shared=block + "shared_experts.",
        ),
        mamba=block,
    )
