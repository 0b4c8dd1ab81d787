"""What PEFT adds to a layer's stacked experts (`target_parameters`), split into adapters of single experts.

Current transformers keep `experts.gate_up_proj` and `experts.down_proj` as one tensor each; PEFT also turns
`target_modules` that name experts' projections into these.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from torch import Tensor

from backend.layers.linear import LinearPart

PARAMETERS = ("gate_up_proj", "down_proj")
_EXPERT = re.compile(r"(?P<layer>.+)\.\w+\.experts\.(?P<expert>\d+)\.\w+")
_STACKED = re.compile(r"(?P<layer>.+)\.\w+\.experts(\.base_layer)?")  # the inner of two has the suffix


@dataclass(frozen=True, slots=True, eq=False)
class Pair:
    """A module's two matrices as PEFT saves them."""

    down: Tensor  # [rank, K]
    up: Tensor  # [N, rank]
    key: str  # what the config's patterns call it


class StackedExperts:
    """Finds a base model's experts by the names that PEFT has for all of a layer together."""

    def __init__(self, sites: Mapping[str, LinearPart]) -> None:
        self._sites = sites
        # Layer → parameter → by expert the modules whose outputs lie one behind the other.
        self._layers: dict[str, dict[str, dict[int, list[str]]]] = {}
        for module, site in sites.items():
            match = _EXPERT.fullmatch(module)
            if match is not None:
                parameter = PARAMETERS[0] if len(site.linear.part_features) > 1 else PARAMETERS[1]
                experts = self._layers.setdefault(match["layer"], {}).setdefault(parameter, {})
                experts.setdefault(int(match["expert"]), []).append(module)

    def has(self, module: str) -> bool:
        """Whether `module` is a layer's experts."""
        match = _STACKED.fullmatch(module)
        return match is not None and match["layer"] in self._layers

    def split(self, module: str, down: Tensor, up: Tensor) -> dict[str, Pair]:
        """Each expert's own pairs; none when the shapes [experts · rank, K], [N, rank · experts] do not fit.

        PEFT does not say which parameter it is: K and N do.
        """
        layer = _STACKED.fullmatch(module)
        assert layer is not None
        for parameter, experts in self._layers[layer["layer"]].items():
            sites = [self._sites[each] for each in experts[0]]
            features, columns, count = sites[0].in_features, sum(s.columns for s in sites), len(experts)
            rows = len(down)
            if rows and rows % count == 0 and (down.shape, up.shape) == ((rows, features), (columns, rows)):
                downs, ups = down.reshape(count, -1, features), up.reshape(columns, -1, count)
                key = f"{module.removesuffix('.base_layer')}.{parameter}"
                return dict(self._pairs(experts, downs, ups, key))
        return {}

    def _pairs(
        self, experts: Mapping[int, list[str]], downs: Tensor, ups: Tensor, key: str
    ) -> Iterator[tuple[str, Pair]]:
        for expert, modules in experts.items():
            begin = 0
            for module in modules:
                end = begin + self._sites[module].columns
                yield module, Pair(downs[expert], ups[begin:end, :, expert], key)
                begin = end
