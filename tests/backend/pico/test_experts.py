"""The fast mixture of experts equals that of transformers, and upcycling keeps the dense model's output."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from backend.pico.experts import balance_loss, replace_blocks, routings, run_experts, run_experts_dense
from backend.pico.model import SHAPES, build_model
from backend.pico.optim import build_optimizers
from backend.pico.upcycle import upcycle

if TYPE_CHECKING:
    from backend.pico.model import Model

TINY: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "head_dim": 16}
TINY_SHAPES = {
    "pico-base": {**SHAPES["pico-base"], **TINY, "intermediate_size": 48},
    "pico-large": {**SHAPES["pico-large"], **TINY, "moe_intermediate_size": 24, "num_experts": 4},
}
IDS = torch.randint(0, 64, (3, 11), generator=torch.Generator().manual_seed(1))


@pytest.fixture
def sparse() -> Model:
    return build_model("pico-large", 64, 0, TINY_SHAPES)


def test_logits_and_gradients_equal_those_of_transformers(sparse: Model) -> None:
    with torch.no_grad():
        for layer in sparse.model.layers:
            layer.mlp.gate.weight.normal_(std=0.5)
    expected = sparse(IDS).logits
    expected.square().mean().backward()
    gradients = {name: p.grad.clone() for name, p in sparse.named_parameters() if p.grad is not None}
    sparse.zero_grad()
    replace_blocks(sparse)
    found = sparse(IDS).logits
    found.square().mean().backward()
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)
    for name, parameter in sparse.named_parameters():
        torch.testing.assert_close(parameter.grad, gradients[name], atol=1e-5, rtol=1e-3)


def test_dense_experts_give_the_same_sums_and_gradients() -> None:
    generator = torch.Generator().manual_seed(2)
    gate_up, down = torch.randn(4, 10, 6, generator=generator), torch.randn(4, 6, 5, generator=generator)
    x, weights = torch.randn(9, 6, generator=generator), torch.rand(9, 2, generator=generator)
    chosen = torch.stack([torch.randperm(4, generator=generator)[:2] for _ in range(9)])
    results = []
    for run in (run_experts, run_experts_dense):
        inputs = [each.clone().requires_grad_() for each in (gate_up, down, x, weights)]
        output = run(*inputs[:3], chosen, inputs[3])
        output.sin().sum().backward()
        results.append([output, *(each.grad for each in inputs)])
    for expected, found in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


def test_padding_does_not_count_in_the_balance(sparse: Model) -> None:
    replace_blocks(sparse)
    padded = torch.cat((IDS, torch.zeros(2, IDS.shape[1], dtype=torch.long)))
    real = torch.arange(len(padded)).repeat_interleave(IDS.shape[1]) < len(IDS)
    sparse(padded)
    found = balance_loss(sparse, real)
    sparse(IDS)
    torch.testing.assert_close(found, balance_loss(sparse, torch.ones(IDS.numel(), dtype=torch.bool)))


def test_balance_is_one_when_even_and_grows_when_not(sparse: Model) -> None:
    replace_blocks(sparse)
    real = torch.ones(IDS.numel(), dtype=torch.bool)
    sparse(IDS)
    even = balance_loss(sparse, real).item()
    with torch.no_grad():
        for layer in sparse.model.layers:
            layer.mlp.gate.weight.zero_()[0] = 1.0
    sparse(IDS)
    assert balance_loss(sparse, real).item() >= 0.99
    assert even == pytest.approx(1.0, abs=0.35)
    assert len(list(routings(sparse))) == TINY["num_hidden_layers"]


def test_a_dense_model_has_no_balance_loss() -> None:
    dense = build_model("pico-base", 64, 0, TINY_SHAPES)
    assert balance_loss(dense, torch.ones(1, dtype=torch.bool)).item() == 0.0


def test_upcycling_keeps_attention_and_most_of_the_output(sparse: Model) -> None:
    dense = build_model("pico-base", 64, 3, TINY_SHAPES)
    with torch.no_grad():
        for layer in dense.model.layers:
            layer.mlp.down_proj.weight.mul_(10)  # so that the feed-forward blocks matter
    before = dense(IDS).logits
    far = (sparse(IDS).logits - before).norm()
    upcycle(dense, sparse, seed=0)
    near = (sparse(IDS).logits - before).norm()
    assert near < 0.5 * far
    key = "model.layers.1.self_attn.q_proj.weight"
    assert torch.equal(sparse.state_dict()[key], dense.state_dict()[key])
    experts = sparse.state_dict()["model.layers.0.mlp.experts.gate_up_proj"]
    assert not torch.equal(experts[0], experts[1])


def test_experts_are_updated_as_matrices(sparse: Model) -> None:
    muon, adamw = build_optimizers(sparse, 0.02, 0.003)
    stacked = [p for group in muon.param_groups for p in group["params"] if p.ndim == 3]
    assert len(stacked) == 2 * TINY["num_hidden_layers"]
    routers = [layer.mlp.gate.weight for layer in sparse.model.layers]
    others = {id(p) for group in adamw.param_groups for p in group["params"]}
    assert all(id(router) in others for router in routers)
    before = stacked[0].detach().clone()
    sparse(IDS).logits.square().mean().backward()
    for optimizer in (muon, adamw):
        optimizer.step()
    assert (stacked[0] - before).flatten(1).norm(dim=1).min() > 0
