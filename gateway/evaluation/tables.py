"""How every table of an evaluation looks."""

from __future__ import annotations

from rich.box import HEAVY_HEAD, SIMPLE_HEAD
from rich.table import Table


def new_table(title: str, *columns: str, is_plain: bool = False, wraps: bool = True) -> Table:
    """The first column is text, the others numbers, which stay on one line without `wraps`."""
    made = Table(title=title, title_justify="left", box=SIMPLE_HEAD if is_plain else HEAVY_HEAD)
    for number, column in enumerate(columns):
        made.add_column(column, justify="right" if number else "left", no_wrap=number > 0 and not wraps)
    return made
