"""Parts of all families that can be split, as threads: together they are the whole model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from backend.config import EngineConfig
from backend.models.loaded import LoadedModel, load_model
from backend.parallel.part import PartDecoder, SplitPart
from tests.backend.models.checkpoints import SCALED, write_checkpoint
from tests.backend.models.driver import Driver, Track
from tests.backend.models.plain_variants import GEMMA
from tests.backend.models.variant import MOE, QWEN_MOE, TIED, UNTIED, Variant
from tests.backend.parallel.threads import ThreadGroup, load_ranks, on_all

TOKENS = [3, 198, 57, 100, 99, 5, 7, 120]
EXPERTS = {**QWEN_MOE, "num_hidden_layers": 2}
VARIANTS = [
    (Variant("llama", "llama", {"attention_bias": True, "mlp_bias": True, **UNTIED}), 2),
    (Variant("mistral", "mistral", {"sliding_window": 5, **TIED}), 2),
    (Variant("qwen2", "qwen2", TIED), 4),  # two ranks share each head of keys
    (Variant("qwen3", "qwen3", {"head_dim": 32}), 2),
    (Variant("mixtral", "mixtral", MOE), 2),
    (Variant("qwen3-moe", "qwen3_moe", EXPERTS), 4),
]


def config_of(variant: Variant, folder: Path) -> EngineConfig:
    write_checkpoint(variant, folder)
    return EngineConfig(model="t", checkpoint=str(folder), device="cpu", dtype="float32", num_threads=1)


@pytest.mark.parametrize(("variant", "size"), VARIANTS, ids=[variant.name for variant, _ in VARIANTS])
def test_logits_are_those_of_the_whole_model(variant: Variant, size: int, tmp_path: Path) -> None:
    config = config_of(variant, tmp_path)
    whole, ranks = load_model(config), load_ranks(config, size)
    (want,) = Driver(whole).step([(Track(TOKENS), len(TOKENS))])
    found, *others = on_all(ranks, lambda rank: Driver(rank).step([(Track(TOKENS), len(TOKENS))])[0])
    assert found.shape == want.shape == (len(TOKENS), 199)
    torch.testing.assert_close(found, want, rtol=1e-4, atol=1e-5)
    assert all(each.shape[1] == -(-199 // size) for each in others)


STAGES = [
    Variant("llama", "llama", {"num_hidden_layers": 5, **TIED}),
    Variant("qwen3-moe", "qwen3_moe", EXPERTS),
    Variant("gemma3", "gemma3_text", GEMMA),
    Variant("cohere", "cohere", SCALED),
]


@pytest.mark.parametrize("variant", STAGES, ids=[variant.name for variant in STAGES])
def test_stages_give_the_same_bits(variant: Variant, tmp_path: Path) -> None:
    config = config_of(variant, tmp_path)
    whole, ranks = load_model(config), load_ranks(config, 1, 2)

    def run(model: LoadedModel) -> list[torch.Tensor]:
        driver, track = Driver(model), Track(TOKENS)
        return [torch.cat(driver.step([(track, count)])) for count in (5, 1, 2)]

    want, (found, _) = run(whole), on_all(ranks, run)
    assert all(map(torch.equal, found, want))
    assert {name for rank in ranks for name in rank.sites} == set(whole.sites)
    assert sum(rank.kv_layout.page_bytes for rank in ranks) == whole.kv_layout.page_bytes


def test_stages_whose_layers_are_split_are_the_whole_model(tmp_path: Path) -> None:
    config = config_of(Variant("qwen3-moe", "qwen3_moe", EXPERTS), tmp_path)
    whole, ranks = load_model(config), load_ranks(config, 2, 2)
    (want,) = Driver(whole).step([(Track(TOKENS), len(TOKENS))])
    found, *_ = on_all(ranks, lambda rank: Driver(rank).step([(Track(TOKENS), len(TOKENS))])[0])
    torch.testing.assert_close(found, want, rtol=1e-4, atol=1e-5)


def test_each_rank_reads_and_keeps_its_share(tmp_path: Path) -> None:
    config = config_of(Variant("wide", "qwen3", {"hidden_size": 128, "vocab_size": 512, **UNTIED}), tmp_path)
    whole, ranks = load_model(config), load_ranks(config, 2)
    for rank in ranks:
        assert isinstance(rank.decoder, PartDecoder)
        for part, all_ in zip(rank.sites.values(), whole.sites.values(), strict=True):
            own, other = part.linear, all_.linear
            assert 2 * own.out_features * own.in_features == other.out_features * other.in_features
            assert (part.in_features, part.columns) == (all_.in_features, all_.columns)
        assert 2 * rank.kv_layout.page_bytes == whole.kv_layout.page_bytes
        assert 2 * rank.decoder.embedding.weight.numel() == whole.decoder.embedding.weight.numel()


def test_adapters_are_cut_as_the_weights_are(tmp_path: Path) -> None:
    config = config_of(Variant("qwen3", "qwen3", UNTIED), tmp_path)
    whole, ranks = load_model(config), load_ranks(config, 2)
    draw = torch.Generator().manual_seed(0)
    for name, site in whole.sites.items():
        down = torch.randn(3, site.in_features, generator=draw)
        up = torch.randn(3, site.columns, generator=draw)
        parts = [rank.sites[name] for rank in ranks]
        cut = [part.slice((down, up)) for part in parts if isinstance(part, SplitPart)]
        if cut[0][0].shape != down.shape:
            assert torch.equal(torch.cat([own for own, _ in cut], dim=1), down)
            assert all(torch.equal(own, up) for _, own in cut)
        else:
            assert torch.equal(torch.cat([own for _, own in cut], dim=1)[:, : up.shape[1]], up)


def test_an_error_on_one_rank_keeps_no_other_waiting(tmp_path: Path) -> None:
    config = config_of(Variant("qwen3", "qwen3", {}), tmp_path)
    ranks = load_ranks(config, 2)
    decoder = ranks[1].decoder
    assert isinstance(decoder, PartDecoder)

    class Broken:
        def __getattr__(self, name: str) -> object:
            raise MemoryError("no memory")

    layers = [decoder.layers[0], replace(decoder.layers[1], mixer=Broken()), *decoder.layers[2:]]  # type: ignore[arg-type]
    broken = replace(ranks[1], decoder=replace(decoder, layers=layers))
    logits = on_all([ranks[0], broken], lambda rank: Driver(rank).step([(Track(TOKENS), len(TOKENS))])[0])
    assert all(each.isfinite().all() for each in logits)
    group = decoder.group
    assert isinstance(group, ThreadGroup) and isinstance(group._error, (MemoryError, TypeError))
