"""Rank 0 of two stages knows what adapters can change in the other."""

from __future__ import annotations

from backend.parallel.sites import Elsewhere
from tests.backend.parallel.conftest import TwoRanks


def test_modules_of_all_ranks_have_the_shapes_of_the_whole_model(two_ranks: TwoRanks) -> None:
    alone = two_ranks.alone()
    assert alone.adapters is not None
    whole, found = alone.adapters._sites, two_ranks.model.sites
    assert found.keys() == whole.keys()
    for name, site in found.items():
        assert (site.in_features, site.columns, site.part) == (
            whole[name].in_features,
            whole[name].columns,
            whole[name].part,
        )
    is_elsewhere = any(isinstance(site.linear, Elsewhere) for site in found.values())
    assert is_elsewhere is (two_ranks.model.mirror.group.num_stages == 2)
    alone.close()
