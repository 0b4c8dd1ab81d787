"""The results of `penstock eval router`: tables and a plot."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from gateway.evaluation.plot import COLOURS, GREY, Panel, Plot, Series
from gateway.evaluation.tables import new_table

Document = dict[str, Any]


def show(console: Console, document: Document) -> None:
    """Print the tables."""
    console.print(_routing_table(document), _models_table(document["models"]))
    if document["flips"]:
        console.print(_flips_table(document["flips"]))


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f}"


def _routing_table(document: Document) -> Table:
    title = (
        f"Estimate: {document['estimate']}; scores in %, APGR (random 0.5; oracle's in brackets),\n"
        "strong calls in % for 95 and 99 % of the strong score (at random in brackets)"
    )
    table = new_table(title, "source", "n", "weak", "strong", "oracle", "AUC", "APGR", "95 %", "99 %")
    table.columns[0].overflow = "fold"
    for each in document["results"]:
        shares = (
            f"{_percent(each[f'strong_share_{part}'])} ({_percent(each[f'random_share_{part}'])})"
            for part in (95, 99)
        )
        table.add_row(
            f"{each['source']}, {each['kind']}",
            str(each["num_questions"]),
            *(_percent(each[name]) for name in ("weak", "strong", "oracle")),
            f"{each['auc']:.3f}",
            f"{each['apgr']:.3f} ({each['oracle_apgr']:.2f})",
            *shares,
        )
    return table


def _models_table(models: Document) -> Table:
    table = new_table("Always one model, by mean score", "source and model", "score %", "USD per 1,000")
    for source, found in models.items():
        for name, each in sorted(found.items(), key=lambda item: item[1]["score"]):
            cost = each["usd_per_1000"]
            table.add_row(
                f"{source}: {name}", _percent(each["score"]), "–" if cost is None else f"{cost:.4f}"
            )
    return table


def _flips_table(robustness: Document) -> Table:
    names = list(next(iter(robustness.values())))
    table = new_table("Decisions at the median that a change of the text flips, %", "source", *names)
    for source, found in robustness.items():
        table.add_row(source, *(_percent(found[name]) for name in names))
    return table


DRAWN_KINDS = ("shipped", "in domain", "trained elsewhere")


def plot_of(document: Document) -> Plot:
    """Mean score over the share of strong calls, a panel per source, beside random."""
    return Plot(small=[_panel(each) for each in document["results"] if each["kind"] in DRAWN_KINDS])


def _panel(result: Document) -> Panel:
    curve, best = [100 * score for score in result["curve"]], 100 * result["oracle"]
    shares = [100 * number / (len(curve) - 1) for number in range(len(curve))]
    return Panel(
        series=[
            Series("estimate", shares, curve, COLOURS[0]),
            Series("random", (0, 100), (curve[0], curve[-1]), GREY, "--"),
            Series("oracle", (0, 100), (best, best), COLOURS[2]),
        ],
        title=f"{result['source']}: APGR {result['apgr']:.2f}",
        x_label=f"calls of {result['strong']}, %",
        y_label="mean score, %",
    )
