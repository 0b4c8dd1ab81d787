"""Time of routing decisions: without conditions, with a few, and with hundreds of rules."""

from __future__ import annotations

import argparse
import asyncio
import timeit

from gateway.pipeline.dry_run import DryRun, exchange_for
from gateway.pipeline.stages.choose_model import ChooseModel
from policies.document import EngineModel, ModelEntry, Policies
from policies.routes import Route, RoutingSection, Rule, Split
from tests.bench import report

CHAT = {
    "model": "auto",
    "messages": [{"role": "user", "content": "Hello! What can you do for me today?"}],
    "metadata": {"team": "red"},
}
CONDITIONS = (
    "request.num_tokens_estimate > 4000",
    "headers['x-region'] == 'eu' && request.num_messages > 20",
    "request.metadata['team'] == 'blue'",
    "tenant.tier == 'free' || request.max_tokens > 8000",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `python -m tests.bench policy`."""
    parser.add_argument("--repeats", type=int, default=7, help="the best of this many runs is reported")
    parser.add_argument("--number", type=int, default=1000, help="decisions per run")


def run(arguments: argparse.Namespace) -> None:
    """Measure and print, in one process."""
    rows = asyncio.run(_rows(arguments.repeats, arguments.number))
    report.show(f"policy · one decision · best of {arguments.repeats} runs", rows, arguments.json)


async def _rows(repeats: int, number: int) -> list[dict[str, object]]:
    split = Split(models={"a": 9, "b": 1})
    cases = {
        "fixed model": Route(model="a"),
        "split by user": Route(split=split),
        "4 rules, none matches": Route(rules=_rules(4), model="a"),
        "20 rules, none matches": Route(rules=_rules(20), model="a"),
        "200 rules, none matches": Route(rules=_rules(200), model="a"),
    }
    return [
        {"case": name, "microseconds": round(await _microseconds(route, repeats, number), 1)}
        for name, route in cases.items()
    ]


def _rules(number: int) -> list[Rule]:
    return [Rule(when=f"{CONDITIONS[n % len(CONDITIONS)]} && {n} >= 0", model="b") for n in range(number)]


async def _microseconds(route: Route, repeats: int, number: int) -> float:
    """Of the whole stage: values of the variables, conditions, table of models."""
    entry = ModelEntry(engine=EngineModel(checkpoint="/none"))
    section = RoutingSection(headers=["x-region"])
    policies = Policies(models={"a": entry, "b": entry}, routes={"auto": route}, routing=section)
    stage = ChooseModel(DryRun(policies).models, policies)
    exchange = exchange_for(dict(CHAT))

    def decide() -> None:
        coroutine = stage(exchange)
        try:
            coroutine.send(None)
        except StopIteration:
            return

    return min(timeit.repeat(decide, number=number, repeat=repeats)) / number * 1e6
