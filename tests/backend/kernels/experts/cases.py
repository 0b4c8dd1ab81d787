"""Experts in Triton: ragged groups and idle experts, and the shapes of Qwen3-30B-A3B."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from backend.kernels.experts.kernel import Scales, choose_experts, run_experts
from tests.backend.kernels.cases import COMPILED, Cases, Launch, Value


@dataclass(frozen=True)
class Shape:
    """A layer and its tokens."""

    tokens: int
    experts: int = 5
    top_k: int = 2
    features: int = 64
    width: int = 48
    chosen_experts: int | None = None  # the others get no token
    block: tuple[int, int] | None = None  # of float8; None: in floats


QWEN = Shape(0, experts=128, top_k=8, features=2048, width=768)  # Qwen3-30B-A3B


def value(shape: Shape, dtype: torch.dtype, device: str) -> tuple[Tensor, Tensor]:
    """The result, and one expert after the other in float64; idle experts have weights of NaN."""
    active = shape.chosen_experts or shape.experts
    x = torch.randn(shape.tokens, shape.features).to(dtype)
    gate_up = torch.randn(shape.experts, 2 * shape.width, shape.features) / shape.features**0.5
    down = torch.randn(shape.experts, shape.features, shape.width) / shape.width**0.5
    scales: tuple[Scales | None, Scales | None] = None, None
    weights = exact = gate_up.to(dtype), down.to(dtype)
    for each in weights:
        each[active:] = float("nan")
    if shape.block is not None:
        narrow = [rounded(each, shape.block, device) for each in (gate_up, down)]
        weights, scales, exact = zip(*narrow, strict=True)
    chosen = torch.rand(shape.tokens, active).topk(shape.top_k).indices
    shares = torch.rand(shape.tokens, shape.top_k)
    expected = torch.zeros(shape.tokens, shape.features, dtype=torch.float64)
    for token, experts in enumerate(chosen.tolist()):
        for share, expert in zip(shares[token].double(), experts, strict=True):
            gate, up = (exact[0][expert].double() @ x[token].double()).chunk(2)
            expected[token] += share * (exact[1][expert].double() @ (torch.nn.functional.silu(gate) * up))
    x, chosen, shares, gate_up, down = (each.to(device) for each in (x, chosen, shares, *weights))
    return run_experts(x, chosen, shares, (gate_up, down), scales), expected.to(device)


def rounded(matrices: Tensor, block: tuple[int, int], device: str) -> tuple[Tensor, Scales, Tensor]:
    """Experts' matrices in float8, as the kernel reads them: values, scales, and what they stand for."""
    values = (matrices * 100).to(torch.float8_e4m3fn)
    (experts, *size), (height, width) = (
        matrices.shape,
        (min(pair) for pair in zip(block, matrices.shape[1:], strict=True)),
    )
    scales = torch.rand(experts, -(-size[0] // height), -(-size[1] // width)) / 100
    by_row, by_column = torch.arange(size[0]) // height, torch.arange(size[1]) // width
    exact = values.double() * scales.double()[:, by_row[:, None], by_column]
    return values.view(torch.uint8), (scales.to(device), (height, width)), exact


def launched(tokens: int, dtype: torch.dtype, block: tuple[int, int] | None = None) -> Tensor:
    """One layer of Qwen3-30B-A3B; compiled only: the experts' memory is not touched."""
    x = torch.zeros(tokens, QWEN.features, dtype=dtype)
    sizes = (QWEN.experts, 2 * QWEN.width, QWEN.features), (QWEN.experts, QWEN.features, QWEN.width)
    gate_up, down = (torch.empty(size, dtype=torch.uint8 if block else dtype) for size in sizes)
    scales: tuple[Scales | None, Scales | None] = None, None
    if block is not None:
        scales = tuple((torch.ones(size[0], size[1] // 128, size[2] // 128), block) for size in sizes)
    shares, chosen = choose_experts(
        torch.zeros(tokens, QWEN.experts, dtype=dtype), QWEN.top_k, normalise=True
    )
    return run_experts(x, chosen, shares, (gate_up, down), scales)


def shared(num_experts: int, top_k: int, dtype: torch.dtype, device: str) -> tuple[Tensor, Tensor]:
    """What each expert adds, by the router's choice: shares of float64 whose order is that of the logits."""
    logits = (torch.randn(9, num_experts) * 3).to(dtype)
    shares, chosen = choose_experts(logits.to(device), top_k, normalise=num_experts > 5)
    found = torch.zeros(logits.shape, device=device).scatter_add_(1, chosen, shares)
    exact = logits.double().softmax(1)
    last = exact.sort(dim=1, descending=True, stable=True).indices[:, top_k:]
    exact.scatter_(1, last, 0.0)
    return found.to(dtype), exact / exact.sum(1, keepdim=True) if num_experts > 5 else exact


SHAPES = {
    "ragged": Shape(21),
    "one token": Shape(1),
    "an expert without tokens": Shape(9, chosen_experts=4),
    "all tokens to one expert": Shape(40, top_k=1, chosen_experts=1),
    "64 experts": Shape(3, experts=64, top_k=8, features=40, width=24),
    "no whole blocks": Shape(5, features=72, width=37),
    "many rows": Shape(60, experts=3, features=136, width=72),
    "float8 by row": Shape(9, features=72, width=37, block=(1, 1 << 30)),
    "float8 in blocks": Shape(5, features=136, width=256, block=(128, 128)),
    "float8, many rows": Shape(60, experts=3, features=256, width=128, block=(128, 128)),
}
CASES = Cases(
    [
        *(Value(name, partial(value, shape)) for name, shape in SHAPES.items()),
        *(
            Value(f"router of {experts}", partial(shared, experts, top_k))
            for experts, top_k in ((5, 2), (64, 8))
        ),
    ],
    [
        Launch(
            f"{kind} of {tokens}",
            partial(launched, tokens),
            ["_multiply"],
            narrow=["_choose", "_sort", "_add"],
            is_large=kind == "prefill",
            dtypes=COMPILED if tokens == 32 else (torch.bfloat16,),
        )
        for kind, tokens in (("decode", 1), ("decode", 32), ("prefill", 2048))
    ]
    + [
        Launch(
            f"float8 {kind}",
            partial(launched, tokens, block=(128, 128)),
            ["_multiply"],
            narrow=["_choose", "_sort", "_add"],
            is_large=kind == "prefill",
        )
        for kind, tokens in (("decode", 32), ("prefill", 2048))
    ],
)
