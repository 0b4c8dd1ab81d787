"""What adapters can change on any rank, so that rank 0 can read whole adapters."""

from __future__ import annotations

import msgspec
import torch

from backend.config import ParallelConfig
from backend.layers.linear import Linear, LinearPart
from backend.lora.adapter_weights import Sites
from backend.parallel.group import Group


class Elsewhere(Linear):
    """A projection of another stage or expert: here it has a shape, and no weight."""

    def __init__(self, in_features: int, part_features: tuple[int, ...]) -> None:
        self.in_features, self.part_features = in_features, part_features
        self.out_features, self.adapters = sum(part_features), None


class _Site(msgspec.Struct, frozen=True, array_like=True):
    in_features: int
    columns: int
    part: int
    num_parts: int
    order: list[int] | None


def sites_of_all(group: Group, own: Sites, parallel: ParallelConfig) -> Sites:
    """This rank's, and the shapes of those that others have."""
    if group.size == parallel.tensor:  # all have parts of the same
        return own
    described = msgspec.msgpack.encode({name: _describe(site) for name, site in own.items()})
    found: dict[str, LinearPart] = {}
    for rank in range(group.size):
        told = msgspec.msgpack.decode(group.broadcast(described, rank), type=dict[str, _Site])
        found |= {name: _elsewhere(site) for name, site in told.items() if name not in found}
    return {**found, **own}


def _describe(site: LinearPart) -> _Site:
    order = None if site.order is None else site.order.tolist()
    return _Site(site.in_features, site.columns, site.part, len(site.linear.part_features), order)


def _elsewhere(site: _Site) -> LinearPart:
    order = None if site.order is None else torch.tensor(site.order)
    return LinearPart(Elsewhere(site.in_features, (site.columns,) * site.num_parts), site.part, order)
