"""The results of `penstock eval route`: a table and a plot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from gateway.evaluation.figures import legend_below, save_figure, wrapped
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


def save_plot(document: Document, path: Path) -> None:
    """Accuracy over machine seconds: both curves and what was measured."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 5), layout="constrained")
    axes = figure.add_subplot()
    for (name, curve), color in zip(document["curves"].items(), ("#0072b2", "#d55e00"), strict=True):
        x, y = ([point[key] for point in curve] for key in ("machine_s", "accuracy"))
        axes.plot(x, [100 * value for value in y], ".-", color=color, label=f"{name}, other thresholds")
    for each, marker in zip(document["subjects"], ("o", "s", "*"), strict=True):
        percent = 100 * each["accuracy"]
        label = wrapped(f"{each['name']}: {percent:.1f} %, {each['machine_s']:.3g} s", 80)
        style: dict[str, Any] = {"markersize": 10, "markeredgecolor": "#222222", "linestyle": "none"}
        axes.plot(each["machine_s"], percent, marker=marker, markerfacecolor="none", label=label, **style)
    axes.set_xlabel("seconds that engines worked")
    axes.set_ylabel("right answers, %")
    axes.grid(alpha=0.3)
    legend_below(figure)
    save_figure(figure, path)
