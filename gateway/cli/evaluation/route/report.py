"""The results of `penstock eval route`: a table and a plot."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from gateway.cli.evaluation.files import write_file

Document = dict[str, Any]


def show(console: Console, document: Document) -> None:
    """Print what was measured."""
    table = Table(title=f"{document['questions']} questions of pico", title_justify="left")
    for name in ("asked", "right, %", "machine seconds", "failed"):
        table.add_column(name, justify="left" if name == "asked" else "right")
    for each in document["subjects"]:
        table.add_row(
            each["name"], f"{100 * each['accuracy']:.1f}", f"{each['machine_s']:.2f}", str(each["failed"])
        )
    console.print(table)
    shares = ", ".join(f"{name} {100 * share:.1f} %" for name, share in document["share"].items())
    console.print(
        f"answered by {shares}; accuracy {100 * document['accuracy_of_strong']:.1f} % and machine seconds "
        f"{100 * document['machine_s_of_strong']:.1f} % of always {document['subjects'][1]['name']}"
    )


def save_plot(document: Document, path: Path) -> None:
    """Accuracy over machine seconds: both curves and what was measured."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.add_subplot()
    for (name, curve), color in zip(document["curves"].items(), ("#0072b2", "#d55e00"), strict=True):
        x, y = ([point[key] for point in curve] for key in ("machine_s", "accuracy"))
        axes.plot(x, [100 * value for value in y], ".-", color=color, label=f"{name}, other thresholds")
    for each, marker in zip(document["subjects"], ("o", "s", "*"), strict=True):
        axes.plot(each["machine_s"], 100 * each["accuracy"], marker, markersize=9, color="#222222")
        axes.annotate(each["name"], (each["machine_s"], 100 * each["accuracy"]), fontsize="small")
    axes.set_xlabel("seconds that engines worked")
    axes.set_ylabel("right answers, %")
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    data = BytesIO()
    figure.savefig(data, format=path.suffix[1:], metadata={"Date": None} if path.suffix == ".svg" else None)
    write_file(path, data.getvalue())
