"""The task families, one file each; FAMILIES maps names to them."""

from __future__ import annotations

from backend.pico.tasks import (
    arithmetic,
    categories,
    comparison,
    counting,
    dates,
    extraction,
    facts,
    instructions,
    json_extraction,
    logic,
    number_facts,
    out_of_scope,
    references,
    sequences,
    smalltalk,
    sorting,
    strings,
    tables,
    tools,
    units,
    word_problems,
)
from backend.pico.tasks.base import DRILL, Family, Instance, Split, split_of

__all__ = ["DRILL", "FAMILIES", "Family", "Instance", "Split", "split_of"]

FAMILIES: dict[str, Family] = {
    module.FAMILY.name: module.FAMILY
    for module in (
        arithmetic,
        word_problems,
        comparison,
        sorting,
        counting,
        strings,
        units,
        dates,
        extraction,
        tables,
        json_extraction,
        sequences,
        number_facts,
        categories,
        facts,
        logic,
        instructions,
        references,
        tools,
        smalltalk,
        out_of_scope,
    )
}
