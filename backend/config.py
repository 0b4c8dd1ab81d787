"""What an engine process is configured with (EngineConfig) and the shape of its model (ModelConfig).

Records only, without torch. `models/checkpoint_config.py` reads a ModelConfig from a checkpoint.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import msgspec

DeviceName = str  # auto, cpu, cuda or cuda:N
DtypeName = Literal["auto", "float32", "bfloat16"]
KVDtypeName = Literal["auto", "float32", "bfloat16", "int8", "fp8"]
RopeType = Literal["default", "linear", "llama3", "yarn", "longrope", "proportional"]
Activation = Literal["silu", "gelu_tanh", "relu2", "plain_gelu_tanh", "xielu"]
"""The first two gate a second projection; the others are applied to the only one."""
NormKind = Literal["rms", "layer", "biased_layer"]
QKNorm = Literal["head", "rotated_head", "all", "layer", "unit"]
"""RMSNorm of each query and key head with weights of its size, the same after rotation, or of all query heads
and all key heads; LayerNorm of each head with weights of its own; or RMSNorm of each head without weights."""
OutputGateKind = Literal["sigmoid", "softplus", "head_softplus"]
"""Each feature of what attention gives has a gate, or each head."""
RouterScores = Literal["softmax", "sigmoid"]
GroupScore = Literal["top2", "max"]
"""A group of experts by the sum of its two highest scores, or by its highest."""
GatedNorm = Literal["gated", "before_gate"]
"""RMSNorm, within groups of heads, of what silu(z) was multiplied with, or before that."""
RoundingScheme = Literal["int8", "fp8", "int4"]
WeightScheme = Literal["int8", "fp8", "int4", "mxfp4", "w8a16"]
"""int8: rows of x are rounded as well (W8A8). Else only weights: fp8 E4M3, mxfp4 E2M1, others integers."""


class SpeculativeConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Speculative decoding: which drafter proposes the tokens that one step of the model verifies."""

    drafter: str = "none"
    max_tokens: int = 8  # drafted per step and sequence; fewer where measurements say so
    tree_nodes: int = 0  # nodes of a draft tree, `max_tokens` deep; 0: drafts are chains
    adaptive: bool = True  # False: always max_tokens, even where that is slower
    folders: dict[str, str] = {}  # drafter → absolute folder of its weights; all of them are loaded


class QuantizeConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How weights of a checkpoint in floats are rounded when it is loaded."""

    scheme: RoundingScheme
    calibration: str = ""  # absolute path of a file of prompts; "": round to nearest
    folder: str = ""  # where rounded weights are kept; "": each start computes them


class ParallelConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many processes, ranks, share one engine, by what they split."""

    tensor: int = 1  # heads, feed-forward blocks and vocabulary
    pipeline: int = 1
    expert: int = 1
    sequence: int = 1

    @property
    def width(self) -> int:
        """Ranks that compute a layer together: those of one stage."""
        return self.tensor * self.expert

    @property
    def size(self) -> int:
        """Ranks in total."""
        return self.width * self.pipeline * self.sequence


class RestoredAdapter(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An adapter that was loaded when the engine process ended."""

    folder: str  # absolute
    digest: str  # content hash of what was loaded; if the folder holds other weights now, it is not restored


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole configuration of one engine process, passed to it as JSON."""

    model: str  # the name in client requests
    checkpoint: str  # absolute folder, Hugging Face format
    # Path → SHA-256 of files to check at start; with one of the checkpoint, all of its weights must be there.
    sha256: dict[str, str] = {}
    device: DeviceName = "auto"
    card: str = ""  # the GPU that engine processes see, by its uuid; "": all
    dtype: DtypeName = "auto"  # auto: on a GPU the checkpoint's, on a CPU float32
    kv_dtype: KVDtypeName = "auto"  # of stored keys and values; fp8 is E4M3
    quantize: QuantizeConfig | None = None
    max_model_tokens: int | None = None  # None: from the checkpoint, capped by the KV memory
    # None: on a CPU 25 % of the free memory, at most 1 GiB; on CUDA what is left of `gpu_memory`
    kv_cache_bytes: int | None = None
    gpu_memory: float = 0.85  # share of the card's memory for weights, KV memory and steps
    num_pages: int | None = None  # overrides kv_cache_bytes
    enforce_eager: bool = False  # no CUDA graphs
    offload_after_s: float | None = None  # idle seconds after which it leaves the GPU; None: never
    max_batch_tokens: int = 2048
    max_running: int = 128
    max_queue: int = 512
    num_threads: int | None = None  # of torch; None: 1 for small models, else torch's default
    parallel: ParallelConfig = ParallelConfig()  # threads and KV memory are divided among ranks
    prefix_cache: bool = True
    grammar_cache_bytes: int = 512 << 20  # compiled grammars, those in use included
    speculative: SpeculativeConfig = SpeculativeConfig()
    adapters: dict[str, str] = {}  # name → absolute folder in PEFT's format; loaded at start
    forced_adapters: list[str] = []  # those of them that may name another base model
    # By name; loaded at start as well, but one that can no longer be read is skipped.
    restored_adapters: dict[str, RestoredAdapter] = {}
    adapter_slots: int = 8  # different adapters in one batch
    max_adapter_rank: int = 64
    adapter_host_bytes: int = 1 << 30  # host memory for adapters
    otlp_endpoint: str = ""  # "" disables engine spans
    otlp_protocol: str = "http/protobuf"  # or "grpc"
    otlp_headers: dict[str, str] = {}


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary position embedding: base frequencies and how they are scaled to longer contexts."""

    rope_type: RopeType = "default"
    theta: float = 10_000.0
    factor: float = 1.0
    original_max_tokens: int = 0  # llama3, yarn, longrope: the context length before scaling
    low_freq_factor: float = 1.0  # llama3
    high_freq_factor: float = 4.0  # llama3
    beta_fast: float = 32.0  # yarn
    beta_slow: float = 1.0  # yarn
    attention_factor: float = 1.0  # yarn, longrope: multiplies cos and sin
    rotated: float = 1.0  # the share of each head's dimensions that is rotated; see layers/rope.py
    is_interleaved: bool = False  # neighbours are pairs, not dimensions half a head apart
    truncate: bool = True  # yarn: round the correction range to whole dimensions
    factors: tuple[float, ...] = ()  # longrope: each pair's frequency is divided by its own
    long_factors: tuple[
        float, ...
    ] = ()  # longrope: in place of these in contexts above `original_max_tokens`


@dataclass(frozen=True, slots=True)
class QueryGrowth:
    """A query at position p is multiplied by 1 + beta * log(1 + floor(p / period))."""

    beta: float
    period: int  # tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentSpec:
    """Multi-head latent attention: what a layer projects its keys and values from (arXiv:2405.04434)."""

    rank: int  # of a token's latent
    query_rank: int | None  # of the latent of queries; None: they are projected at once
    plain_dim: int  # of a head's query and key that is not rotated
    rotated_dim: int  # of them that is; all heads share that of keys
    value_dim: int  # of a head
    eps: float  # of the norms of latents


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionSpec:
    """The attention of one layer."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    rope: RopeConfig | None  # None: positions are not encoded
    kv_source: int | None = None  # the earlier layer whose keys and values it reads; None: it has its own
    window: int | None = None  # tokens, the query's own included; None: full attention
    qkv_bias: bool = False
    o_bias: bool = False
    qk_norm: QKNorm | None = None
    value_norm: bool = False  # RMSNorm without weights of each value head
    value_is_key: bool = False  # values are what keys are before norm and rotation
    scale: float | None = None  # of scores; None: 1 / sqrt(head_dim)
    query_growth: QueryGrowth | None = None
    softcap: float | None = None  # scores become softcap * tanh(scores / softcap)
    has_sinks: bool = False  # softmax is over the keys and one score more per head, which has no value
    has_gate: bool = False  # the query projection also has a gate for each head's output, after its query
    output_gate: OutputGateKind | None = None  # times what a projection of its own makes of the input
    latent: LatentSpec | None = None  # then one key head has the latent and the rotated key, and no values

    @property
    def rotary_dim(self) -> int:
        """The size of what `rope` is of: a head, or its part that is rotated."""
        return self.head_dim if self.latent is None else self.latent.rotated_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaSpec:
    """The gated delta rule of one layer, whose memory is a state of fixed size."""

    num_key_heads: int
    num_value_heads: int  # a multiple of that
    key_head_dim: int
    value_head_dim: int
    conv_tokens: int  # the convolution's taps, the token's own included

    @property
    def num_channels(self) -> int:
        """What the convolution mixes: queries, keys and values."""
        return 2 * self.num_key_heads * self.key_head_dim + self.num_value_heads * self.value_head_dim

    @property
    def row_width(self) -> int:
        """Numbers of a token's input, see kernels/gated_delta."""
        return self.num_channels + 2 * self.num_value_heads

    @property
    def state_shape(self) -> tuple[int, ...]:
        """What is kept beside the last inputs."""
        return self.num_value_heads, self.key_head_dim, self.value_head_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvSpec:
    """A gated short convolution, whose memory is its last inputs."""

    num_channels: int  # the hidden size
    conv_tokens: int
    has_bias: bool = False

    @property
    def row_width(self) -> int:
        """Numbers of a token's input, see kernels/short_conv."""
        return self.num_channels

    @property
    def state_shape(self) -> tuple[int, ...]:
        """Nothing but the last inputs is kept."""
        return (0,)


@dataclass(frozen=True, slots=True, kw_only=True)
class MambaSpec:
    """Mamba-2."""

    num_heads: int
    num_groups: int  # a divisor of that; heads of a group share keys and queries, B and C
    head_dim: int
    state_size: int
    conv_tokens: int
    conv_bias: bool = True
    in_bias: bool = False  # of the projection of the layer's input
    out_bias: bool = False
    time_step_limits: tuple[float, float] = (0.0, math.inf)
    norm: GatedNorm | None = "gated"
    in_factor: float = 1.0  # times the layer's input
    factors: tuple[float, float, float, float, float] | None = None  # times z, x, B, C and time steps
    out_factor: float = 1.0  # times the layer's output

    @property
    def inner_size(self) -> int:
        """Numbers that all heads give."""
        return self.num_heads * self.head_dim

    @property
    def num_channels(self) -> int:
        """What the convolution mixes: x, B and C."""
        return self.inner_size + 2 * self.num_groups * self.state_size

    @property
    def row_width(self) -> int:
        """Numbers of a token's input, see kernels/mamba2."""
        return self.num_channels + self.num_heads

    @property
    def state_shape(self) -> tuple[int, ...]:
        """What is kept beside the last inputs."""
        return self.num_heads, self.state_size, self.head_dim


StateSpec = DeltaSpec | ConvSpec | MambaSpec
"""What has a recurrent state: `conv_tokens`, `row_width` and `state_shape` say what a slot of it holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HybridSpec:
    """Attention and a state side by side: out_factor * attention(in_factor * x) + state(x)."""

    attention: AttentionSpec
    state: MambaSpec
    in_factor: float = 1.0
    out_factor: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseSpec:
    """A feed-forward block without experts."""

    intermediate_size: int
    has_bias: bool = False
    activation: Activation = "silu"
    factors: tuple[float, float] | None = None  # times what the gate gets, and times the output

    @property
    def is_gated(self) -> bool:
        """Whether there are two projections, gate and up, and not the second alone."""
        return self.activation in ("silu", "gelu_tanh")


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingConfig:
    """How a router chooses experts, where it is not by the largest shares of a softmax alone."""

    scores: RouterScores = "softmax"
    has_bias: bool = False  # added to the scores of experts to choose them, not to their shares
    num_groups: int = 1  # experts are in groups, and chosen from the best `kept_groups` of these
    kept_groups: int = 1
    group_score: GroupScore = "top2"
    share_factor: float = 1.0
    sum_offset: float = 0.0  # plus the sum that the chosen experts' scores are divided by
    softcap: float | None = None  # the router's logits become softcap * tanh(logits / softcap)


@dataclass(frozen=True, slots=True)
class ClampedGate:
    """(up + 1) * gate * sigmoid(alpha * gate), of gate up to `limit` and up within ± `limit`."""

    alpha: float
    limit: float


ExpertGate = ClampedGate | Literal["gelu_tanh", "relu2"]
"""relu2 is the square of relu of the only projection; the others gate a second one."""


@dataclass(frozen=True, slots=True)
class MoEConfig:
    """A feed-forward block that is a mixture of experts."""

    num_experts: int
    experts_per_token: int
    intermediate_size: int  # of one expert
    normalise_top_k: bool  # the chosen experts' router weights are scaled to sum to 1
    routing: RoutingConfig | None = None  # None: the largest shares of a softmax
    shared_size: int = 0  # of a dense block beside the experts that every token goes through
    has_shared_gate: bool = False  # its output is multiplied by a sigmoid of the input
    has_bias: bool = False  # of the router and of all experts
    gate: ExpertGate | None = None  # None: silu(gate) * up
    has_own_norms: bool = False  # experts, router and dense block each normalise the residual stream
    latent_size: int | None = None  # of what experts read and write, between two projections; None: D

    @property
    def shared(self) -> DenseSpec:
        """The dense block beside the experts."""
        activation: Activation = "relu2" if self.gate == "relu2" else "silu"
        return DenseSpec(intermediate_size=self.shared_size, activation=activation)


@dataclass(frozen=True, slots=True)
class LayerInputSpec:
    """An embedding of each token for one layer alone, beside the one that all layers share."""

    size: int
    vocab_size: int


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """One layer of a decoder."""

    mixer: AttentionSpec | StateSpec | HybridSpec | None  # None: a feed-forward block alone
    feed_forward: DenseSpec | MoEConfig | None
    inputs: LayerInputSpec | None = None
    is_parallel: bool = False  # both get the same input, and their outputs are added together

    @property
    def attention(self) -> AttentionSpec:
        """The mixer of a layer that attends."""
        assert isinstance(self.mixer, AttentionSpec)
        return self.mixer

    @property
    def mixers(self) -> tuple[AttentionSpec | StateSpec, ...]:
        """What it has of attention and states."""
        if isinstance(self.mixer, HybridSpec):
            return self.mixer.attention, self.mixer.state
        return () if self.mixer is None else (self.mixer,)

    @property
    def block(self) -> DenseSpec | MoEConfig:
        """The feed-forward block of a layer that has one."""
        assert self.feed_forward is not None
        return self.feed_forward


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """How quantised weights of a checkpoint are stored, by its config.json."""

    scheme: WeightScheme
    bits: int
    block: tuple[int, int]  # rows and columns that share a scale; 0: all
    is_symmetric: bool = True  # without zero points
    is_packed: bool = True  # several values in a word
    rounds_inputs: bool = False  # of fp8: products may round activations to it, each row by its own scale


@dataclass(frozen=True, slots=True)
class QuantizationConfig:
    """The formats of a checkpoint's quantised weights; which weights they are, its tensors tell."""

    method: Literal["awq", "compressed-tensors", "fp8", "gptq", "gptq_v2", "mxfp4"]
    formats: tuple[WeightFormat, ...]  # several, where modules differ
    is_reordered: bool = False  # each weight says which group its columns are in (GPTQ's act-order)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scalars:
    """Numbers that some families multiply by, or add."""

    embedding: float = 1.0  # times the embeddings
    rounds_embedding: bool = False  # that number, to the dtype of the table
    residual: float = 1.0  # times what attention and feed-forward add to the residual stream
    logits: float = 1.0  # times the logits
    softcap: float | None = None  # then logits become softcap * tanh(logits / softcap)
    norm_offset: float = 0.0  # plus the weights of norms
    final_norm_offset: float | None = None  # in place of it for the last norm
    exact_norms: bool = False  # weights of RMSNorm in 32 bits: the result is rounded once
    out_norm_eps: float | None = None  # of norms after sublayers, where it is another one
    embedding_norm: bool = False  # RMSNorm without weights of each token's embedding


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """The shape of a decoder of any family."""

    architecture: str  # key of models.families.FAMILIES, as in config.json
    checkpoint: str
    vocab_size: int
    hidden_size: int
    layers: tuple[LayerSpec, ...]
    max_position_tokens: int
    rms_norm_eps: float
    tie_word_embeddings: bool
    norm: NormKind = "rms"
    scalars: Scalars = Scalars()
    quantization: QuantizationConfig | None = None

    @property
    def num_layers(self) -> int:
        """How many layers there are."""
        return len(self.layers)

    @property
    def attention(self) -> AttentionSpec:
        """The first attention."""
        return self.attentions[0]

    @property
    def attentions(self) -> tuple[AttentionSpec, ...]:
        """The attention of each layer that has one, and keys and values."""
        return tuple(
            each for layer in self.layers for each in layer.mixers if isinstance(each, AttentionSpec)
        )

    @property
    def states(self) -> tuple[StateSpec, ...]:
        """The mixer of each layer that has a recurrent state."""
        return tuple(each for layer in self.layers for each in layer.mixers if isinstance(each, StateSpec))

    @property
    def ropes(self) -> tuple[RopeConfig, ...]:
        """The rotary embedding of each of `rotations`."""
        return tuple(rope for rope, _ in self.rotations)

    @property
    def rotations(self) -> tuple[tuple[RopeConfig, int], ...]:
        """The distinct rotary embeddings of the layers, each with its `rotary_dim`."""
        found = ((each.rope, each.rotary_dim) for each in self.attentions)
        return tuple(dict.fromkeys((rope, size) for rope, size in found if rope is not None))

    @property
    def windows(self) -> tuple[int | None, ...]:
        """The sliding window of each layer that attends."""
        return tuple(attention.window for attention in self.attentions)

    @property
    def experts(self) -> MoEConfig | None:
        """The experts of the layers that have some; None: all layers are dense."""
        blocks = (layer.feed_forward for layer in self.layers)
        return next((block for block in blocks if isinstance(block, MoEConfig)), None)
