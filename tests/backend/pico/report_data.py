"""Invented results in the format of `backend.pico.results`."""

from __future__ import annotations

from typing import Any

from backend.pico.tasks import FAMILIES


def accuracy(right: int) -> dict[str, Any]:
    cells = [[name, tier, 4, max(0, right - tier)] for name in FAMILIES for tier in range(1, 6)]
    perplexity = {str(tier): 1.0 + tier / 10 for tier in range(1, 6)}
    return {"cells": cells, "perplexity": perplexity, "generated_tokens": 4 * len(cells) * 7}


def summary(share: float) -> dict[str, Any]:
    shares = [share, share / 2]
    return {"rounds": 5, "mean_accepted_length": 1 + share, "conditional": shares, "cumulative": shares}


def acceptance(share: float) -> dict[str, Any]:
    modes = {"chain": summary(share), "top-2 tree": summary(share / 2)}
    return {group: modes for group in ("all", "direct", "thinking")}


def results() -> dict[str, Any]:
    score = {"kind": "all", "asked": 36, "behaviour": 98.5, "right": 97.0}
    score |= {"base_behaviour": None, "base_right": 99.0}
    return {
        "small": accuracy(4),
        "large": accuracy(5),
        "large-thinking": accuracy(9) | {"cells": [[*c[:3], 4] for c in accuracy(9)["cells"]]},
        "load": {"counts": [[2, 2, 2, 2], [1, 1, 3, 3]], "tokens": 4, "conversations": 1},
        "acceptance": {"draft": acceptance(0.8), "medusa": acceptance(0.6)},
        "adapters": {"json": {"base": "pico-small", "rank": 8, "scores": [score]}},
    }
