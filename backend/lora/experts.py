"""Splits what PEFT adds to a layer's stacked experts (`target_parameters`) into adapters of single experts.

Current transformers keep `experts.gate_up_proj` and `experts.down_proj` as one tensor each; PEFT also turns
`target_modules` that name experts' projections into these.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from torch import Tensor

from backend.layers.linear import LinearPart
from backend.lora.adapter_config import PARAMETERS

_EXPERT = re.compile(r"(?P<layer>.+)\.\w+\.experts\.(?P<expert>\d+)\.\w+")
_STACKED = re.compile(
    r"(?P<layer>.+)\.\w+\.experts(\.base_layer)?"
)  # PEFT nests two wrappers; the inner one has the suffix


@dataclass(frozen=True, slots=True, eq=False)
class Pair:
    """A module's two matrices as PEFT saves them."""

    down: Tensor  # [rank, K]
    up: Tensor  # [N, rank]
    key: str  # its name for the config's patterns


class StackedExperts:
    """Finds a base model's experts by PEFT's names for all experts of a layer."""

    def __init__(self, sites: Mapping[str, LinearPart]) -> None:
        self._sites = sites
        # Layer → parameter → expert → modules, in the order in which their outputs are stacked.
        self._layers: dict[str, dict[str, dict[int, list[str]]]] = {}
        for module, site in sites.items():
            match = _EXPERT.fullmatch(module)
            if match is not None:
                parameter = PARAMETERS[0] if len(site.linear.part_features) > 1 else PARAMETERS[1]
                experts = self._layers.setdefault(match["layer"], {}).setdefault(parameter, {})
                experts.setdefault(int(match["expert"]), []).append(module)

    def has(self, module: str) -> bool:
        """Whether `module` names all experts of a layer."""
        match = _STACKED.fullmatch(module)
        return match is not None and match["layer"] in self._layers

    def split(self, module: str, down: Tensor, up: Tensor) -> dict[str, Pair]:
        """The pairs of each expert's modules; {} if shapes are not [experts · rank, K], [N, rank · experts].

        PEFT does not name the parameter: K and N tell which it is.
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
