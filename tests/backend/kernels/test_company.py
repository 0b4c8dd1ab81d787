"""On a CPU, what a step computes of a row is the same bits however many rows are computed beside it.

Attention, int4, int8 and the loops of adapters and of fused experts have such tests of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from backend.kernels.experts import run_experts
from backend.kernels.linear import WeightLayout, available_layouts, pack
from backend.kernels.rms_norm import rms_norm
from backend.kernels.rotary import Angles, rotate
from backend.kernels.swiglu import swiglu
from backend.layers.linear import Linear
from backend.models.hyper_moe import apply_adapters
from backend.sampling.logprobs import token_logprobs
from backend.sampling.sampler import Sampler, SamplingBatch

MOST, EXPERTS, TOP_K, WIDTH = 40, 8, 2, 192
VOCAB = 1537
Operation = Callable[[Tensor], Tensor]


@pytest.fixture(autouse=True, params=[1, 3])
def threads(request: pytest.FixtureRequest) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


def check(operation: Operation, width: int) -> None:
    """`operation` on the first n of 40 rows of this width, and on each alone."""
    x = torch.randn(MOST, width, generator=torch.Generator().manual_seed(width))
    with torch.inference_mode():
        alone = torch.cat([operation(x[row : row + 1].clone()) for row in range(MOST)])
        for count in range(2, MOST + 1):
            first = MOST - count
            assert torch.equal(operation(x[first:].clone()), alone[first:]), f"{count} rows"


@pytest.mark.parametrize("layout", ["packed", "half", "bf16"])
@pytest.mark.parametrize(("columns", "k"), [(8, 192), (100, 33), (1030, 300), (150, 2050), (257, 1100)])
@pytest.mark.parametrize("with_bias", [False, True])
def test_products(layout: WeightLayout, columns: int, k: int, *, with_bias: bool) -> None:
    if not {"packed", "half"} <= available_layouts():
        pytest.skip("the fallback is the plain layout, whose sums have no fixed order")
    weight = torch.randn(columns, k).bfloat16().float()
    check(pack(weight, torch.randn(columns) if with_bias else None, layout), k)


@pytest.mark.parametrize("size", [24, 33, 192, 1030])
def test_norms_gates_and_softmax(size: int) -> None:
    weight = torch.rand(size)
    check(lambda x: rms_norm(x, weight, 1e-6), size)
    check(swiglu, 2 * size)
    check(lambda x: x.softmax(dim=-1), size)


@pytest.mark.parametrize("head_dim", [24, 32, 128])
def test_rotation(head_dim: int) -> None:
    weight, angles = torch.rand(3, head_dim), torch.rand(head_dim)

    def operation(x: Tensor) -> Tensor:
        heads = x.view(len(x), 3, head_dim)
        table = torch.stack((angles.cos(), angles.sin()))[:, None]
        rotate(heads, Angles(table, torch.zeros(len(x), dtype=torch.int32)), weight, 1e-6)
        return heads

    check(operation, 3 * head_dim)


@pytest.mark.parametrize("layout", ["packed", "half", "bf16"])
@pytest.mark.parametrize("top_k", [2, 8])
def test_a_choice_of_experts(layout: WeightLayout, top_k: int) -> None:
    if not {"packed", "half"} <= available_layouts():
        pytest.skip("the fallback is the plain layout, whose sums have no fixed order")
    router = pack(torch.randn(EXPERTS, WIDTH), None, "packed")
    gate_up = [Linear([torch.randn(2 * 96, WIDTH).bfloat16().float()], None, layout) for _ in range(EXPERTS)]
    down = [Linear([torch.randn(WIDTH, 96).bfloat16().float()], None, layout) for _ in range(EXPERTS)]

    def operation(x: Tensor) -> Tensor:
        weights, chosen = router(x).softmax(dim=-1).topk(top_k, dim=-1)
        return run_experts(x, chosen, weights / weights.sum(dim=-1, keepdim=True), gate_up, down)

    check(operation, WIDTH)


def test_what_skipped_experts_add() -> None:
    down, up = torch.randn(28, WIDTH, 4), torch.randn(28, 4, WIDTH)
    check(lambda x: apply_adapters(x, (x[:, 0].abs() * 9).long(), down, up), WIDTH)


def test_draws_and_their_log_probabilities() -> None:
    sampler = Sampler(VOCAB, torch.device("cpu"))

    def operation(x: Tensor) -> Tensor:
        seeds = (x[:, 0].abs() * 1e6).numpy().astype(np.uint64)
        count = len(x)
        batch = SamplingBatch(
            seeds=seeds,
            positions=seeds.astype(np.int64) % 100,
            temperature=np.where(seeds % 3 == 0, 0, 1.2).astype(np.float32),
            top_k=np.where(seeds % 5 == 0, 20, 0),
            top_p=np.full(count, 0.95, np.float32),
            min_p=np.zeros(count, np.float32),
        )
        token_ids, _ = sampler.sample(x, batch)
        return torch.tensor([_numbers(x, row, token) for row, token in enumerate(token_ids.tolist())])

    check(operation, VOCAB)


def _numbers(logits: Tensor, row: int, token: int) -> Sequence[float]:
    scored = token_logprobs(logits, [token] * len(logits), [3] * len(logits))[row]
    return [token, scored.logprob, *(value for _, value in scored.top)]
