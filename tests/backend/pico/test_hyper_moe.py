"""HyperExperts start without effect, depend on layer and selected set, and have plain torch's gradients."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from backend.models.hyper_moe import HyperMoEConfig
from backend.pico.hyper_moe import HyperNetwork, attach, load_sparse
from backend.pico.model import build_model

CONFIG = HyperMoEConfig(embedding_size=5, hidden_size=7, condition_size=6, rank=3)
SHAPE = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 12,
    "moe_intermediate_size": 16,
    "num_experts": 5,
    "num_experts_per_tok": 2,
    "norm_topk_prob": True,
}


def network(seed: int = 0) -> HyperNetwork:
    """A network after its first step: `up` is not zero any more."""
    torch.manual_seed(seed)
    hyper = HyperNetwork(CONFIG, num_layers=2, num_experts=5, chosen_experts=2, hidden_size=24)
    nn.init.normal_(hyper.up.weight)
    return hyper


def one_by_one(hyper: HyperNetwork, layer: int, x: Tensor, chosen: Tensor) -> Tensor:
    """The definition, token by token."""
    rows = []
    for token, row in zip(x, chosen.tolist(), strict=True):
        others = [expert for expert in range(5) if expert not in row]
        aggregate = hyper.expert_embeddings[layer, others].mean(0)
        place = torch.cat((aggregate, hyper.layer_embeddings[layer]))
        condition = hyper.condition(nn.functional.silu(hyper.hidden(place)))
        condition = condition / condition.norm()
        down = hyper.down(condition).view(3, 24)
        up = hyper.up(condition).view(24, 3)
        rows.append(up @ nn.functional.silu(down @ token))
    return torch.stack(rows)


def test_equals_the_definition_and_its_gradients() -> None:
    hyper = network()
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(40, 24, generator=generator, requires_grad=True)
    chosen = torch.stack([torch.randperm(4, generator=generator)[:2] for _ in range(40)])  # some sets unused
    leaves = [x, *hyper.parameters()]
    weights = torch.randn(40, 24, generator=generator)
    results = [function(1, x, chosen) for function in (hyper, lambda *args: one_by_one(hyper, *args))]
    torch.testing.assert_close(results[0], results[1])
    ours, theirs = (torch.autograd.grad((result * weights).sum(), leaves) for result in results)
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def test_a_fresh_network_changes_nothing_and_learns(tmp_path: Path) -> None:
    model = build_model("tiny", vocab_size=50, seed=0, shapes={"tiny": SHAPE})
    ids = torch.arange(30)[None]
    before = model(ids).logits.detach()
    hyper = attach(model, CONFIG)
    torch.testing.assert_close(model(ids).logits, before)
    model(ids, labels=ids).loss.backward()
    assert hyper.up.weight.grad is not None and hyper.up.weight.grad.abs().max() > 0
    model.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["hyper_moe"]["rank"] == 3
    stored = load_file(tmp_path / "model.safetensors")
    assert {name for name in stored if name.startswith("hyper.")} == {
        f"hyper.{n}" for n in hyper.state_dict()
    }
    assert "model.layers.1.mlp.experts.4.up_proj.weight" in stored


@pytest.mark.parametrize("has_hyper", [True, False])
def test_a_stored_model_comes_back(tmp_path: Path, has_hyper: bool) -> None:
    model = build_model("tiny", vocab_size=50, seed=0, shapes={"tiny": SHAPE})
    if has_hyper:
        nn.init.normal_(attach(model, CONFIG).up.weight)
    model.save_pretrained(tmp_path)
    ids = torch.arange(30)[None]
    torch.testing.assert_close(load_sparse(tmp_path)(ids).logits, model(ids).logits)


def test_refuses_more_sets_than_training_can_generate() -> None:
    with pytest.raises(ValueError, match="64 experts"):
        HyperNetwork(CONFIG, num_layers=1, num_experts=64, chosen_experts=8, hidden_size=24)
