"""A slot holds the adapter that was placed last, and nothing of the one before."""

from __future__ import annotations

import torch

from backend.kernels.lora import AdapterRows, Factors
from backend.layers.linear import Linear, LinearPart
from backend.lora.adapter_weights import Adapter
from backend.lora.placement import AdapterPlacement

CPU = torch.device("cpu")
WIDTH = 8


def factors(rank: int) -> Factors:
    return torch.randn(rank, WIDTH), torch.randn(rank, WIDTH)


def adapter(digest: str, changed: dict[str, Factors]) -> Adapter:
    return Adapter(digest, "base", max(len(down) for down, _ in changed.values()), changed, 1)


def test_the_last_adapter_of_a_slot_is_all_that_it_holds() -> None:
    torch.manual_seed(0)
    linears = [Linear([torch.randn(WIDTH, WIDTH)], None, "plain") for _ in range(3)]
    sites = {name: LinearPart(linear, 0) for name, linear in zip("qko", linears, strict=True)}
    placement = AdapterPlacement(sites, 2, torch.float32, CPU)
    first = adapter("first", {"q": factors(2), "k": factors(2)})
    second = adapter("second", {"k": factors(5)})
    x = torch.randn(1, WIDTH)

    def added(slot: int) -> list[torch.Tensor]:
        rows = AdapterRows(torch.tensor([slot]).numpy(), CPU)
        return [linear(x, rows) - linear(x) for linear in linears]

    def expected(placed: Adapter) -> list[torch.Tensor]:
        zero = torch.zeros(1, WIDTH)
        pairs = [placed.factors.get(name) for name in sites]
        return [zero if pair is None else x @ pair[0].T @ pair[1] for pair in pairs]

    placement.place(0, first)
    placement.place(1, second)
    torch.testing.assert_close(added(0), expected(first), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(added(1), expected(second), rtol=1e-4, atol=1e-4)
    assert linears[2].adapters is None, "no adapter changes it: no memory for it"
    placement.place(0, second)
    torch.testing.assert_close(added(0), expected(second), rtol=1e-4, atol=1e-4)


def test_what_is_reserved_is_what_placing_needs() -> None:
    torch.manual_seed(0)
    linears = [Linear([torch.randn(WIDTH, WIDTH)], None, "plain") for _ in range(2)]
    sites = {name: LinearPart(linear, 0) for name, linear in zip("qk", linears, strict=True)}
    placement = AdapterPlacement(sites, 2, torch.float32, CPU)
    large = adapter("large", {"q": factors(9)})
    placement.reserve(large)
    reserved = linears[0].adapters
    assert reserved is not None and reserved.rank == 12 and not reserved.down.any()
    placement.reserve(adapter("small", {"q": factors(2)}))
    placement.place(0, large)
    assert linears[0].adapters is reserved and linears[1].adapters is None


def test_the_version_grows_with_the_memory_of_layers() -> None:
    linears = [Linear([torch.randn(WIDTH, WIDTH)], None, "plain") for _ in range(2)]
    placement = AdapterPlacement(
        {name: LinearPart(linear, 0) for name, linear in zip("qk", linears, strict=True)},
        *(2, torch.float32, CPU),
    )
    versions = [placement.version]
    for changed in ({"q": 4}, {"q": 2}, {"q": 4, "k": 1}, {"q": 5}, {"q": 5}):
        own = adapter("a", {name: factors(rank) for name, rank in changed.items()})
        before = [linear.adapters for linear in linears]
        placement.place(0, own)
        versions.append(placement.version)
        is_same = before == [linear.adapters for linear in linears]
        assert (versions[-1] == versions[-2]) is is_same
    assert len(set(versions)) == 4
