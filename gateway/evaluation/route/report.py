"""The results of `penstock eval route`: a table and a plot."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from gateway.evaluation.plot import COLOURS, GREY, Panel, Plot, Series
from gateway.evaluation.tables import new_table

Document = dict[str, Any]


def show(console: Console, document: Document) -> None:
    """Print what was measured."""
    first, *_, last = document["subjects"]
    engines = list(first["tokens"])
    table = new_table(
        f"{document['questions']} questions of pico",
        "asked",
        "right, %",
        *(f"tokens of {name}" for name in engines),
        "machine s",
        "measured s",
        "failed",
    )
    for each in document["subjects"]:
        table.add_row(
            each["name"],
            f"{100 * each['accuracy']:.1f}",
            *(str(each["tokens"][name]) for name in engines),
            f"{each['machine_s']:.2f}",
            f"{each['measured_s']:.2f}",
            str(each["failed"]),
        )
    console.print(table, _families_table(document["families"]))
    shares = ", ".join(f"{name} {100 * share:.1f} %" for name, share in document["share"].items())
    told = (
        f"{what} {100 * value:.1f} % ({100 * low:.1f} to {100 * high:.1f})"
        for what, (value, low, high) in document["of_strong"].items()
    )
    console.print(
        f"{last['name']} is answered by {shares}; of always {document['subjects'][1]['name']}, with 95 % "
        f"intervals over questions: {', '.join(told)}. Cost is in machine seconds: the tokens of both "
        "engines, rejected answers included, at the seconds that a token took each engine when it answered "
        "all questions alone. Measured seconds depend on the load: a route makes batches smaller."
    )


def _families_table(families: Document) -> Table:
    columns = ("family", "questions", "route, % right", "strong, % right", "cost, % of strong")
    table = new_table("By family", *columns)
    for family, each in families.items():
        shares = (f"{100 * each[name]:.1f}" for name in ("route", "strong", "cost"))
        table.add_row(family, str(each["questions"]), *shares)
    return table


def plot_of(document: Document) -> Plot:
    """Accuracy over machine seconds: both curves and what was measured."""
    curves = [
        Series(
            f"{name}, other thresholds",
            [point["machine_s"] for point in curve],
            [100 * point["accuracy"] for point in curve],
            colour,
            marker="o",
        )
        for (name, curve), colour in zip(document["curves"].items(), COLOURS[:2], strict=True)
    ]
    points = [
        Series(
            f"{each['name']}: {100 * each['accuracy']:.1f} %, {each['machine_s']:.3g} s",
            [each["machine_s"]],
            [100 * each["accuracy"]],
            GREY,
            line="",
            marker=marker,
            is_hollow=True,
        )
        for each, marker in zip(document["subjects"], ("o", "s", "*"), strict=True)
    ]
    return Plot(
        Panel(series=[*curves, *points], x_label="seconds that engines worked", y_label="right answers, %")
    )
