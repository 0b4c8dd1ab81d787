"""What is planned and measured: one record for each part of a step, with its bytes and FLOPs in bfloat16.

T tokens are computed for B sequences with C tokens each; D hidden size, H and K heads of queries and keys of
size S, I inner size, V vocabulary, L layers. A record of a layer counts one layer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from backend.config import DenseSpec, ModelConfig, MoEConfig
from tests.bench.gpu.trace import ADAPTER_RANK, Work

_BYTES, _LOGIT_BYTES = 2, 4
Count = Callable[[ModelConfig, Work], float]

DECODE, PREFILL = Work(32, context=4096), Work(1, 16_384, 16_384)


@dataclass(frozen=True)
class Section:
    """One line of the plan."""

    name: str
    ops: tuple[str, ...]  # folders of kernels whose launches it counts; (): all launches of a layer
    work: Work
    num_bytes: Count
    num_flops: Count
    share: float  # of the floor's rate that is asked for
    is_layer: bool = True  # else what a step has beside its layers
    needs_experts: bool = False


def experts_of(m: ModelConfig) -> MoEConfig | None:
    """The experts of a layer; all layers of these models are alike."""
    found = m.layers[0].feed_forward
    return found if isinstance(found, MoEConfig) else None


def _inner(m: ModelConfig) -> int:
    found = m.layers[0].feed_forward
    return found.intermediate_size if isinstance(found, DenseSpec) else 0


def _tokens(work: Work) -> int:
    return work.streams * work.queries


def _attended(m: ModelConfig, w: Work) -> float:
    """Pairs of a query and a key that it sees, in all query heads."""
    return m.attention.num_heads * w.streams * w.queries * (w.context - (w.queries - 1) / 2)


def _kv_bytes(m: ModelConfig, w: Work) -> float:
    return 2 * _BYTES * w.streams * w.context * m.attention.num_kv_heads * m.attention.head_dim


def _heads(m: ModelConfig) -> int:
    return (m.attention.num_heads + 2 * m.attention.num_kv_heads) * m.attention.head_dim


def _sites(m: ModelConfig) -> list[tuple[int, int]]:
    """Inputs and outputs of a dense layer's products."""
    inner, hidden = _inner(m), m.hidden_size
    dense = [(hidden, 2 * inner), (inner, hidden)] if inner else []
    return [(hidden, _heads(m)), (m.attention.num_heads * m.attention.head_dim, hidden), *dense]


def _weights(m: ModelConfig) -> int:
    """Elements of those, and of the router."""
    moe = experts_of(m)
    router = moe.num_experts * m.hidden_size if moe else 0
    return sum(wide * high for wide, high in _sites(m)) + router


def _experts(m: ModelConfig, w: Work) -> tuple[float, float]:
    """Elements of the experts that random tokens reach, and those that all tokens multiply."""
    moe = experts_of(m)
    if moe is None:
        return 0, 0
    own, top = 3 * m.hidden_size * moe.intermediate_size, moe.experts_per_token
    reached = moe.num_experts * (1 - (1 - top / moe.num_experts) ** _tokens(w))
    return reached * own, _tokens(w) * top * own


def _adapter_elements(m: ModelConfig, w: Work) -> int:
    return ADAPTER_RANK * sum(wide + high for wide, high in _sites(m))


def step_bytes(m: ModelConfig, w: Work) -> float:
    """Weights that a step reads, the head's included, and the keys and values of all sequences."""
    weights = m.num_layers * (_weights(m) + _experts(m, w)[0]) + m.vocab_size * m.hidden_size
    return _BYTES * weights + m.num_layers * _kv_bytes(m, w) + _LOGIT_BYTES * w.streams * m.vocab_size


def step_flops(m: ModelConfig, w: Work) -> float:
    """FLOPs of all products and of attention."""
    products = m.num_layers * (_tokens(w) * _weights(m) + _experts(m, w)[1])
    head = w.streams * m.vocab_size * m.hidden_size
    return 2 * (products + head) + 4 * m.num_layers * m.attention.head_dim * _attended(m, w)


def _none(m: ModelConfig, w: Work) -> float:
    return 0.0


def _logits(m: ModelConfig, w: Work) -> float:
    return _LOGIT_BYTES * w.streams * m.vocab_size


SECTIONS = (
    # Reads the residual stream and what is added to it, writes the sum and the normalised, twice a layer.
    Section(
        "rms_norm", ("rms_norm",), DECODE, lambda m, w: 8 * _BYTES * _tokens(w) * m.hidden_size, _none, 0.8
    ),
    Section(
        "kv_write",
        ("kv_write", "rotary"),
        DECODE,
        lambda m, w: 2 * _BYTES * _tokens(w) * _heads(m),
        _none,
        0.8,
    ),
    Section(
        "paged_attention decode",
        ("paged_attention",),
        DECODE,
        lambda m, w: _kv_bytes(m, w) + 2 * _BYTES * _tokens(w) * m.attention.num_heads * m.attention.head_dim,
        lambda m, w: 4 * m.attention.head_dim * _attended(m, w),
        0.85,
    ),
    Section(
        "paged_attention prefill",
        ("paged_attention",),
        PREFILL,
        lambda m, w: _kv_bytes(m, w) + 2 * _BYTES * _tokens(w) * m.attention.num_heads * m.attention.head_dim,
        lambda m, w: 4 * m.attention.head_dim * _attended(m, w),
        400 / 989,  # 400 TFLOP/s of an H100's
    ),
    Section("swiglu", ("swiglu",), DECODE, lambda m, w: 3 * _BYTES * _tokens(w) * _inner(m), _none, 0.8),
    Section(
        "products",
        ("products",),
        DECODE,
        lambda m, w: _BYTES * (_weights(m) + _tokens(w) * sum(sum(site) for site in _sites(m))),
        lambda m, w: 2 * _tokens(w) * _weights(m),
        0.85,
    ),
    Section(
        "experts",
        ("experts",),
        DECODE,
        lambda m, w: _BYTES * (_experts(m, w)[0] + 2 * _tokens(w) * m.hidden_size),
        lambda m, w: 2 * _experts(m, w)[1],
        0.6,
        needs_experts=True,
    ),
    # Eight adapters in a batch, in all projections.
    Section(
        "lora",
        ("lora",),
        replace(DECODE, adapters=8),
        lambda m, w: _BYTES * w.adapters * _adapter_elements(m, w),
        lambda m, w: 2 * _tokens(w) * _adapter_elements(m, w),
        0.6,
    ),
    # The floor reads logits once; the filters' passes over them are what is measured.
    Section(
        "sampling", ("sampling",), replace(DECODE, draws="filtered"), _logits, _none, 0.2, is_layer=False
    ),
    Section("logprobs", ("logprobs",), replace(DECODE, draws="scored"), _logits, _none, 0.5, is_layer=False),
)
STEPS = ((1, 0.78), (32, 0.7), (256, 0.6))
"""Streams of a whole step, and the share of its floor's rate that is asked for."""
