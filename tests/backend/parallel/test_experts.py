"""Ranks with different experts of the same layers give, together, what all experts give."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from backend.kernels.lora import AdapterRows
from backend.lora.adapter_weights import Adapter
from backend.lora.placement import AdapterPlacement
from backend.models.loaded import load_model
from tests.backend.models.driver import Driver, Track
from tests.backend.models.variant import MOE, Variant
from tests.backend.parallel.test_part import EXPERTS, TOKENS, config_of
from tests.backend.parallel.threads import load_ranks, on_all

VARIANTS = [Variant("mixtral", "mixtral", MOE), Variant("qwen3-moe", "qwen3_moe", EXPERTS)]


@pytest.mark.parametrize("variant", VARIANTS, ids=[variant.name for variant in VARIANTS])
@pytest.mark.parametrize("num_stages", [1, 2])
def test_logits_are_those_of_the_whole_model(variant: Variant, num_stages: int, tmp_path: Path) -> None:
    config = config_of(variant, tmp_path)
    whole, ranks = load_model(config), load_ranks(config, 3, num_stages, splits_experts=True)
    (want,) = Driver(whole).step([(Track(TOKENS), len(TOKENS))])
    found, *_ = on_all(ranks, lambda rank: Driver(rank).step([(Track(TOKENS), len(TOKENS))])[0])
    torch.testing.assert_close(found, want, rtol=1e-4, atol=1e-5)
    experts = [{name for name in rank.sites if ".experts." in name} for rank in ranks]
    assert sum(map(len, experts)) == len(set.union(*experts))  # each is on one rank
    assert {name for rank in ranks for name in rank.sites} == set(whole.sites)


def test_parts_add_up_for_one_token_and_for_some_with_an_adapter(tmp_path: Path) -> None:
    config = config_of(VARIANTS[1], tmp_path)
    whole, ranks = load_model(config), load_ranks(config, 2, splits_experts=True)
    draw = torch.Generator().manual_seed(0)
    factors = {
        name: (torch.randn(2, site.in_features, generator=draw), torch.randn(2, site.columns, generator=draw))
        for name, site in whole.sites.items()
        if ".experts." in name
    }
    for model in (whole, *ranks):
        own = {name: factors[name] for name in factors.keys() & model.sites.keys()}
        placement = AdapterPlacement(model.sites, 1, model.dtype, model.device)
        placement.place(0, Adapter("digest", "", 2, own, 0))
    layers = [model.decoder.layers[0].feed_forward for model in (whole, *ranks)]
    x = torch.randn(5, whole.config.hidden_size, generator=draw)
    rows = AdapterRows(np.array([0, -1, -1, 0, 0]), whole.device)
    with torch.inference_mode():
        for tokens, of_tokens in ((x, None), (x, rows), *((row[None], None) for row in x)):
            want, *parts = (layer(tokens, of_tokens) for layer in layers)  # type: ignore[operator, arg-type]
            torch.testing.assert_close(parts[0] + parts[1], want, rtol=1e-4, atol=1e-5)
        assert not torch.allclose(layers[0](x, rows), layers[0](x))  # type: ignore[operator, arg-type]
