"""Inserts measured tables into REPORT.md and the model cards: `python -m backend.pico.report --results DIR`.

A table goes between `<!-- begin NAME -->` and `<!-- end NAME -->`; the text around it is handwritten.
"""

from __future__ import annotations

import argparse
import json
import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from backend.classifiers.training_files import run
from backend.pico.expert_load import ExpertLoad
from backend.pico.gate import RECORD, read_record
from backend.pico.manifest import describe
from backend.pico.recipe import WEIGHTS
from backend.pico.tasks import FAMILIES

LOG = logging.getLogger("backend.pico.report")
REPORT = Path(__file__).with_name("REPORT.md")
PLOTS = Path(__file__).with_name("plots")
TIERS = (1, 2, 3, 4, 5)
MODES = {"small": "pico-small", "large": "pico-large, direct", "large-thinking": "pico-large, thinking"}

Results = Mapping[str, Any]


def markdown(heads: list[str], rows: list[list[str]]) -> str:
    """Return a Markdown table."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def percentages(result: Mapping[str, Any]) -> dict[tuple[str, int], float]:
    """Return the percentage of right answers by family and tier."""
    return {(family, tier): 100 * right / asked for family, tier, asked, right in result["cells"]}


def tier_means(result: Mapping[str, Any]) -> list[float]:
    """Return the mean over all families, by tier."""
    found = percentages(result)
    means = []
    for tier in TIERS:
        values = [value for (_, of), value in found.items() if of == tier]
        means.append(sum(values) / len(values))
    return means


def accuracy_table(results: list[Mapping[str, Any]]) -> str:
    """Return a table of families by tiers; a cell has one figure per result."""
    found = [percentages(result) for result in results]
    rows = [
        [name, *(" / ".join(f"{values[name, tier]:.0f}" for values in found) for tier in TIERS)]
        for name in FAMILIES
    ]
    means = zip(*map(tier_means, results), strict=True)
    rows.append(["**mean**", *("**" + " / ".join(f"{mean:.1f}" for mean in tier) + "**" for tier in means)])
    return markdown(["family", *(f"tier {tier}" for tier in TIERS)], rows)


def tier_table(results: Results) -> str:
    """Return the tier means of every measured mode."""
    rows = [
        [title, *(f"{mean:.1f}" for mean in tier_means(results[name]))]
        for name, title in MODES.items()
        if name in results
    ]
    return markdown(["", *(f"tier {tier}" for tier in TIERS)], rows)


def perplexity_table(results: Results) -> str:
    """Return the perplexity per tier and the mean length of a greedy answer in tokens."""
    rows = []
    for name, title in MODES.items():
        if name in results:
            found = results[name]
            asked = sum(cell[2] for cell in found["cells"])
            values = [f"{found['perplexity'][str(tier)]:.3f}" for tier in TIERS]
            rows.append([title, *values, f"{found['generated_tokens'] / asked:.1f}"])
    return markdown(["", *(f"tier {tier}" for tier in TIERS), "tokens per answer"], rows)


def acceptance_table(found: Results) -> str:
    """Return per position: percent accepted if all before were accepted / percent accepted of all."""
    length = max(len(groups["all"]["chain"]["cumulative"]) for groups in found.values())
    rows = []
    for name, groups in found.items():
        for group, modes in groups.items():
            chain, tree = modes["chain"], modes["top-2 tree"]
            pairs = zip(chain["conditional"], chain["cumulative"], strict=True)
            cells = [f"{100 * given:.0f} / {100 * total:.0f}" for given, total in pairs]
            cells += [""] * (length - len(cells))
            lengths = [f"{mode['mean_accepted_length']:.2f}" for mode in (chain, tree)]
            rows.append([name, group, *cells, *lengths])
    heads = ["drafter", "answers", *(f"token {i + 1}" for i in range(length))]
    return markdown([*heads, "tokens per step", "with a top-2 tree"], rows)


def adapter_table(found: Results) -> str:
    """Return each adapter's scores over all of its questions."""
    rows = []
    for name, adapter in found.items():
        score = next(score for score in adapter["scores"] if score["kind"] == "all")
        values = (score[key] for key in ("behaviour", "right", "base_behaviour", "base_right"))
        shown = ["" if value is None else f"{value:.1f}" for value in values]
        rows.append([name, adapter["base"], str(adapter["rank"]), str(score["asked"]), *shown])
    heads = ["adapter", "base", "rank", "questions", "behaviour", "right"]
    return markdown([*heads, "base: behaviour", "base: right"], rows)


def load_table(found: Results) -> str:
    """Return the percentage of tokens that each expert processes."""
    return ExpertLoad(torch.tensor(found["counts"]), found["tokens"]).table()


def size_table(weights: Path) -> str:
    """Return parameters and bytes of each weight file."""
    rows = []
    for path in sorted(weights.rglob("*.safetensors")):
        with safe_open(path, "pt") as tensors:
            shapes = [tensors.get_slice(name).get_shape() for name in tensors.keys()]  # noqa: SIM118
        parameters = sum(int(torch.Size(shape).numel()) for shape in shapes)
        name = path.parent.relative_to(weights).as_posix()
        rows.append([f"`{name}`", f"{parameters:,}", f"{path.stat().st_size:,}"])
    rows.append(
        ["every file of `weights/` but its manifest", "", f"**{describe(weights)['total_bytes']:,}**"]
    )
    return markdown(["", "parameters", "bytes"], rows)


def gate_table(weights: Path) -> str:
    """Return the figures recorded by the quality gate."""
    figures = read_record(weights / RECORD)
    rows = [
        [model, name, f"{value:.1f}"] for model, found in figures.items() for name, value in found.items()
    ]
    return markdown(["model", "figure", "recorded"], rows)


def tables(results: Results, weights: Path) -> dict[str, str]:
    """Return all tables for which there are results, by the name of their placeholder."""
    found = {"sizes": size_table(weights), "gate": gate_table(weights)}
    if any(name in results for name in MODES):
        found |= {"tiers": tier_table(results), "perplexity": perplexity_table(results)}
    if "small" in results:
        found["small"] = accuracy_table([results["small"]])
    if {"large", "large-thinking"} <= results.keys():
        found["large"] = accuracy_table([results["large"], results["large-thinking"]])
    makers = {"acceptance": acceptance_table, "adapters": adapter_table, "load": load_table}
    return found | {name: make(results[name]) for name, make in makers.items() if results.get(name)}


def with_plots(found: Mapping[str, str], plots: Path) -> dict[str, str]:
    """Return the tables, each followed by its plot if there is one."""
    return {
        name: f"{table}\n![{name}]({plots.name}/{name}.svg)\n" if (plots / f"{name}.svg").exists() else table
        for name, table in found.items()
    }


def fill(text: str, found: Mapping[str, str]) -> str:
    """Replace the tables in the text; placeholders without a table keep their content."""

    def replace(match: re.Match[str]) -> str:
        table = found.get(match[1])
        return match[0] if table is None else f"<!-- begin {match[1]} -->\n{table}<!-- end {match[1]} -->"

    return re.sub(r"<!-- begin ([a-z]+) -->\n.*?<!-- end \1 -->", replace, text, flags=re.DOTALL)


def main() -> None:
    """Fill in the report and the cards."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, required=True, help="where backend.pico.results wrote")
    parser.add_argument("--weights", type=Path, default=WEIGHTS, help="folder of the family's members")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    results = {path.stem: json.loads(path.read_text()) for path in options.results.glob("*.json")}
    found = tables(results, options.weights)
    REPORT.write_text(fill(REPORT.read_text(encoding="utf-8"), with_plots(found, PLOTS)), encoding="utf-8")
    for path in sorted(options.weights.glob("pico-*/README.md")):
        path.write_text(fill(path.read_text(encoding="utf-8"), found), encoding="utf-8")
    LOG.info("filled in %s", ", ".join(found))


if __name__ == "__main__":
    run(main)
