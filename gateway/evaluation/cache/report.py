"""The results of `penstock eval cache`: a document, tables and a plot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from backend.classifiers import measures
from gateway.evaluation.cache.replay import Outcome
from gateway.evaluation.cache.results import KindResult, PairResult, StreamResult
from gateway.evaluation.plot import COLOURS, Panel, Plot, Series
from gateway.evaluation.tables import new_table

Document = dict[str, Any]


def as_document(
    pairs: Sequence[PairResult],
    streams: Sequence[StreamResult],
    version: str,
    max_false_share: float,
    kinds: Sequence[KindResult] = (),
) -> Document:
    """Everything that was measured, for --json."""
    return {
        "verifier": version,
        "max_false_share": max_false_share,
        "pairs": [
            {
                "file": each.file,
                "source": each.source,
                "num_pairs": len(each.labels),
                "num_same": int(each.labels.sum()),
                "num_stopped": int(each.stopped.sum()),
                "auc": measures.auc(each.probabilities, each.labels),
                "auc_cosine": measures.auc(each.cosines, each.labels),
                "levels": [level._asdict() for level in measures.at_levels(each.served, each.labels)],
                "reliability": [
                    bin_._asdict()
                    for bin_ in measures.reliability(
                        each.probabilities[~each.stopped], each.labels[~each.stopped]
                    )
                ],
            }
            for each in pairs
        ],
        "kinds": [asdict(each) for each in kinds],
        "streams": [
            {
                "file": each.file,
                "num_requests": each.cosine[0].num_requests,
                "exact_hit_ratio": each.cosine[0].num_exact_only / each.cosine[0].num_requests,
                "cosine": [_outcome(one) for one in each.cosine],
                "verifier": [_outcome(one) for one in each.verifier],
                "cosine_best": _outcome(each.cosine_best),
                "verifier_best": _outcome(each.verifier_best),
                "verifier_shipped": _outcome(each.verifier_shipped),
            }
            for each in streams
        ],
    }


def _outcome(outcome: Outcome | None) -> Document | None:
    if outcome is None:
        return None
    low, high = outcome.false_interval
    return {
        "threshold": outcome.threshold,
        "hit_ratio": outcome.hit_ratio,
        "beyond_exact": outcome.beyond_exact,
        "tokens_saved": outcome.saved_share,
        "num_hits": outcome.num_hits,
        "num_semantic": outcome.num_semantic,
        "num_false": outcome.num_false,
        "false_share": outcome.false_share,
        "false_share_low": low,
        "false_share_high": high,
    }


def show(console: Console, document: Document) -> None:
    """Print the tables."""
    if document["pairs"]:
        console.print(_pairs_table(document["pairs"]))
        last = document["pairs"][-1]
        console.print(_levels_table(last), _reliability_table(last))
    if document["kinds"]:
        console.print(_kinds_table(document["kinds"]))
    for stream in document["streams"]:
        console.print(_stream_table(stream, document["max_false_share"]))


def _percent(value: float | None, digits: int = 1) -> str:
    return "–" if value is None else f"{100 * value:.{digits}f} %"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def _pairs_table(pairs: Sequence[Document]) -> Table:
    table = new_table(
        "Pairs", "source", "pairs", "same", "stopped", "AUC", "AUC cosine", "false at P ≥ 0.9", wraps=False
    )
    for each in pairs:
        served = next(level for level in each["levels"] if level["level"] == 0.9)
        different = each["num_pairs"] - each["num_same"]
        share = served["num_false"] / different if different else None
        counts = str(each["num_pairs"]), str(each["num_same"]), str(each["num_stopped"])
        table.add_row(
            each["source"], *counts, _number(each["auc"]), _number(each["auc_cosine"]), _percent(share)
        )
    return table


def _kinds_table(kinds: Sequence[Document]) -> Table:
    table = new_table(
        "Served of each kind", "kind", "different", "served", "", "same", "served", "", wraps=False
    )
    for each in (*kinds, _total(kinds)):
        counts = []
        for total, served in (("num_different", "num_false"), ("num_same", "num_right")):
            share = each[served] / each[total] if each[total] else None
            counts += [str(each[total]), str(each[served]), _percent(share)]
        table.add_row(each["kind"], *counts)
    return table


def _total(kinds: Sequence[Document]) -> Document:
    names = ("num_different", "num_false", "num_same", "num_right")
    return {"kind": "all"} | {name: sum(each[name] for each in kinds) for name in names}


def _levels_table(result: Document) -> Table:
    table = new_table(
        f"Served at a level of P(correct): {result['source']}",
        "P ≥",
        "served",
        "precision",
        "recall",
        wraps=False,
    )
    for level in result["levels"]:
        share = level["num_served"] / result["num_pairs"]
        table.add_row(
            f"{level['level']:.2f}", _percent(share), _percent(level["precision"]), _percent(level["recall"])
        )
    return table


def _reliability_table(result: Document) -> Table:
    table = new_table(
        f"Reliability where no guard stops: {result['source']}",
        "P(correct)",
        "pairs",
        "mean P",
        "in fact right",
        wraps=False,
    )
    for each in result["reliability"]:
        name = f"{each['low']:.2f} to {each['high']:.2f}"
        table.add_row(
            name, str(each["num_pairs"]), _number(each["mean_probability"]), _number(each["share_same"])
        )
    return table


def _stream_table(stream: Document, max_false_share: float) -> Table:
    title = (
        f"Stream {Path(stream['file']).name}: {stream['num_requests']} requests, "
        f"{_percent(stream['exact_hit_ratio'])} exact repeats.\nBest and shipped: within "
        f"{_percent(max_false_share)} false hits. Beyond exact repeats, and tokens saved."
    )
    table = new_table(title, "served by", "hits", "beyond", "tokens", "false", "95 % interval", wraps=False)
    rows = [
        (f"cosine ≥ {one['threshold']:.2f}", one) for one in stream["cosine"] if _is_shown(one["threshold"])
    ]
    rows += [(f"P ≥ {one['threshold']:.2f}", one) for one in stream["verifier"]]
    for name, kind in (
        ("best cosine", "cosine_best"),
        ("best P", "verifier_best"),
        ("shipped P", "verifier_shipped"),
    ):
        if stream[kind] is not None:
            rows.append((f"{name}: {stream[kind]['threshold']:.3f}", stream[kind]))
    for name, one in rows:
        interval = f"{100 * one['false_share_low']:.2f} – {_percent(one['false_share_high'], 2)}"
        table.add_row(
            name,
            _percent(one["hit_ratio"], 2),
            _percent(one["beyond_exact"], 2),
            _percent(one["tokens_saved"]),
            _percent(one["false_share"], 2),
            interval,
        )
    return table


def _is_shown(cosine: float) -> bool:
    return any(abs(cosine - shown) < 1e-6 for shown in (0.80, 0.85, 0.90, 0.95))


def plot_of(streams: Sequence[StreamResult]) -> Plot:
    """Hits beyond the exact tier against the false share of all hits, verifier and cosine."""
    series = [
        Series(
            f"{label}, {Path(stream.file).name}",
            [100 * one.false_share for one in outcomes],
            [100 * one.beyond_exact for one in outcomes],
            colour,
            ("-", "--", ":")[number % 3],
            "o",
        )
        for number, stream in enumerate(streams)
        for label, outcomes, colour in (
            ("verifier", stream.verifier, COLOURS[0]),
            ("cosine", stream.cosine, COLOURS[1]),
        )
    ]
    return Plot(
        Panel(
            series=series,
            x_label="false hits, % of all hits",
            y_label="hits beyond identical questions,\n% of requests",
            x_scale="symlog",
        )
    )
