"""What each part of a step costs on a named card at least, and what our launches are: no GPU needed."""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import Any

from tests.bench.gpu.cards import Card
from tests.bench.gpu.sections import SECTIONS, STEPS, Section, experts_of, step_bytes, step_flops
from tests.bench.gpu.shapes import MODELS, config_of
from tests.bench.gpu.trace import Kernel, Trace, Work, traced

Row = dict[str, Any]
DENSE, SPARSE = "Qwen3-8B", "Qwen3-30B-A3B"
_FEW, _MORE = 2, 3  # layers: their difference is one layer


@cache
def _traces(model: str, work: Work, arch: int) -> tuple[Trace, Trace]:
    few, more = (traced({**MODELS[model], "num_hidden_layers": count}, work, arch) for count in (_FEW, _MORE))
    return few, more


def launches(model: str, work: Work, arch: int) -> tuple[list[Kernel], list[Kernel]]:
    """The launches of one layer, and those of a step beside its layers."""
    few, more = _traces(model, work, arch)
    assert not more.error, more.error
    layer = list((Counter(more.kernels) - Counter(few.kernels)).elements())
    rest = list((Counter(few.kernels) - Counter(layer * _FEW)).elements())
    return layer, rest


def section_row(section: Section, model: str, card: Card) -> Row:
    """One section's line."""
    config = config_of(MODELS[model])
    num_bytes, num_flops = (count(config, section.work) for count in (section.num_bytes, section.num_flops))
    own, error = [], _traces(model, section.work, card.arch)[-1].error
    if not error:
        layer, rest = launches(model, section.work, card.arch)
        own = [kernel for kernel in (layer if section.is_layer else rest) if kernel.op in section.ops]
    grids = sorted({kernel.programs for kernel in own if kernel.programs}, reverse=True)
    return {
        "section": section.name,
        "work": _name(section.work),
        "launches": len(own) or None,
        "programs/SM": ", ".join(_short(programs / card.multiprocessors) for programs in grids) or None,
        **_floor(card, num_bytes, num_flops, section.share),
        **({"waits in": error} if error else {}),
    }


def step_row(model: str, streams: int, share: float, card: Card) -> Row:
    """A whole step's line."""
    work, config = Work(streams), config_of(MODELS[model])
    row: Row = {"model": model, "work": _name(work)}
    floor = _floor(card, step_bytes(config, work), step_flops(config, work), share)
    row |= floor | {"tok/s": streams / floor["at most µs"] * 1e6}
    if error := _traces(model, work, card.arch)[-1].error:
        return row | {"waits in": error}
    layer, rest = launches(model, work, card.arch)
    copies = _traces(model, work, card.arch)[-1].copies
    row |= {"launches a layer": len(layer), "others": len(rest)}
    return row | {name: copies[name] for name in ("uploads", "downloads")}


def rows(model: str | None, card: Card) -> tuple[list[Row], list[Row]]:
    """All sections, and whole steps; of one model, or of those that the targets name."""
    own = [
        section_row(section, model or (SPARSE if section.needs_experts else DENSE), card)
        for section in SECTIONS
        if model is None or not section.needs_experts or experts_of(config_of(MODELS[model]))
    ]
    steps = [
        step_row(name, streams, share, card)
        for name in ([model] if model else [name for name in MODELS if name != "tiny"])
        for streams, share in STEPS
    ]
    return own, steps


def _floor(card: Card, num_bytes: float, num_flops: float, share: float) -> Row:
    floor_us = card.floor_us(num_bytes, num_flops)
    return {
        "MB": num_bytes / 1e6,
        "GFLOP": num_flops / 1e9,
        "floor µs": floor_us,
        "target": f"{share:.0%}",
        "at most µs": floor_us / share,
    }


def _short(value: float) -> str:
    return f"{value:.2g}" if value < 10 else f"{value:.0f}"


def _name(work: Work) -> str:
    return f"{work.streams} x {work.queries} of {work.context}"
