"""Time of routing decisions: without conditions, with a few, and with hundreds of rules."""

from __future__ import annotations

import argparse
import asyncio
import timeit
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from backend.kv.prefix_tree import page_digest, root_digest
from backend.server.engine_messages import DIGEST_BYTES, CachedPages, EngineStats, Hello
from backend.server.quote import PageIndex, Quote, predict, prefix_digests
from backend.types import PAGE_TOKENS
from gateway.accounting.admission import Admission
from gateway.accounting.ledger import Ledger
from gateway.exchange.exchange import Stage
from gateway.exchange.prompt_embedding import Meaning
from gateway.pipeline.dry_run import DryRun, exchange_for
from gateway.pipeline.stages.admit import Admit
from gateway.pipeline.stages.choose_model import ChooseModel
from gateway.requests.parse import typed
from gateway.requests.types import ChatRequest
from gateway.routing.candidates import Selection
from gateway.routing.signals import Signals
from policies.choose import ChoiceCandidate, Choose
from policies.document import EngineModel, ModelEntry, Policies
from policies.routes import Route, RoutingSection, Rule, Split
from policies.signals import SignalsSection
from policies.tenants import Limits, Tier
from tests.bench import report

CHAT = {
    "model": "auto",
    "messages": [{"role": "user", "content": "Hello! What can you do for me today?"}],
    "metadata": {"team": "red"},
}
_VECTOR = np.full(384, 384**-0.5, np.float32)
_LIMITED = Policies(
    tiers={
        "default": Tier(limits=Limits(requests_per_minute=10**9, tokens_per_minute=10**9, usd_per_day=1e9))
    }
)
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
    signals = "signals.has_code && signals.num_words > 9"
    meant = "signals.similarity['x'] > 0.5 || signals.domain == 'law'"
    candidates = {"a": ChoiceCandidate(quality=0.6, cost=0.2), "b": ChoiceCandidate(quality=0.9, cost=1.0)}
    cases = {
        "fixed model": Route(model="a"),
        "split by user": Route(split=split),
        "4 rules, none matches": Route(rules=_rules(4), model="a"),
        "20 rules, none matches": Route(rules=_rules(20), model="a"),
        "200 rules, none matches": Route(rules=_rules(200), model="a"),
        "surface signals": Route(rules=[Rule(when=signals, model="b")], model="a"),
        "language": Route(rules=[Rule(when="signals.language == 'de'", model="b")], model="a"),
        "need of reasoning": Route(rules=[Rule(when="signals.needs_reasoning > 0.5", model="b")], model="a"),
        "personal data, injection": Route(
            rules=[Rule(when="signals.has_personal_data || signals.has_injection", model="b")], model="a"
        ),
        "similarity and domain": Route(rules=[Rule(when=meant, model="b")], model="a"),
        "learned choice, words": Route(choose=Choose(candidates=candidates, estimate="builtin:pico")),
        "learned choice, vectors": Route(choose=Choose(candidates=candidates, estimate="builtin:general")),
        "choice for a target share": Route(
            choose=Choose(candidates=candidates, estimate="builtin:pico", strong_share=0.3)
        ),
        "bandit": Route(choose=Choose(candidates=candidates, strategy="bandit")),
    }
    rows: list[dict[str, object]] = [
        {"case": name, "microseconds": round(await _microseconds(route, repeats, number), 1)}
        for name, route in cases.items()
    ]
    admit = Admit(Admission(_LIMITED, Ledger()))
    rows.append({"case": "limits of a tenant", "microseconds": round(_timed(admit, repeats, number), 1)})
    quoted = min(timeit.repeat(_quote(), number=number, repeat=repeats)) / number * 1e6
    return [*rows, {"case": "quote, 1,000 tokens, half cached", "microseconds": round(quoted, 1)}]


def _quote() -> Callable[[], object]:
    """A quote of an engine that publishes 10,000 pages."""
    tokens, root = list(range(1_000)), root_digest("r", "float32", "", "")
    digests, digest = [], root
    for start in range(0, 512, PAGE_TOKENS):
        digest = page_digest(digest, tokens[start : start + PAGE_TOKENS])
        digests.append(digest[:DIGEST_BYTES])
    digests += [number.to_bytes(DIGEST_BYTES, "big") for number in range(10_000)]
    index, hello = (
        PageIndex(),
        Hello("m", "/c", "r", 4096, 2_000, 10_000, "cpu", "float32", kv_dtype="float32"),
    )
    index.add_replica().update(CachedPages(published=b"".join(digests), evicted=b""))
    stats = EngineStats(prefill_s_per_token=1e-4, decode_step_s=1e-3)

    def quote() -> Quote:
        (cached,) = index.cached_tokens(prefix_digests(hello, tokens))
        return predict(stats, len(tokens), cached)

    assert quote().cached_tokens == 512
    return quote


def _rules(number: int) -> list[Rule]:
    return [Rule(when=f"{CONDITIONS[n % len(CONDITIONS)]} && {n} >= 0", model="b") for n in range(number)]


async def _microseconds(route: Route, repeats: int, number: int) -> float:
    """The time of the whole stage: values of the variables, signals, conditions, table of models."""
    entry = ModelEntry(engine=EngineModel(checkpoint="/none"))
    section, signals = RoutingSection(headers=["x-region"]), SignalsSection(phrases={"x": ["a phrase"] * 20})
    models = {"a": entry, "b": entry}
    policies = Policies(models=models, routes={"auto": route}, routing=section, signals=signals)
    table = DryRun(policies).models
    stage = ChooseModel(
        table, policies, selection=Selection(table, policies, _embed), signals=Signals(policies, _embed)
    )
    return _timed(stage, repeats, number)


async def _embed(text: str) -> NDArray[np.float32]:
    """At no cost: the vectors are shared with the cache."""
    return _VECTOR


def _timed(stage: Stage, repeats: int, number: int) -> float:
    exchange = exchange_for(CHAT)
    exchange.body, exchange.request = dict(CHAT), typed(CHAT, ChatRequest)
    meaning = Meaning.known(CHAT["messages"][-1]["content"], _VECTOR)  # type: ignore[index]

    def decide() -> None:
        exchange.meaning = meaning
        coroutine = stage.enter(exchange)
        try:
            coroutine.__await__().__next__()
        except StopIteration:
            return
        raise AssertionError("a decision waits for something")

    return min(timeit.repeat(decide, number=number, repeat=repeats)) / number * 1e6
