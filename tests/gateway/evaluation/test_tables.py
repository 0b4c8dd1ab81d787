"""How tables look."""

from __future__ import annotations

from rich.console import Console

from gateway.evaluation.tables import new_table


def test_numbers_are_on_the_right() -> None:
    console = Console(width=40)
    with console.capture() as shown:
        for is_plain in (False, True):
            table = new_table("title", "name", "n", is_plain=is_plain)
            table.add_row("a", "1")
            table.add_row("long name", "1000")
            console.print(table)
    lines = [line.strip(" │┃") for line in shown.get().splitlines()]
    assert lines.count("title") == 2
    assert {len(line) for line in lines if line.endswith(("   1", "1000"))} >= {len("long name │ 1000")}
