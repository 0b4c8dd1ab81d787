"""What /admin/traffic tells beside the traffic: limits and what is left, cache, router, guardrails."""

from __future__ import annotations

import contextlib
import heapq
from collections import defaultdict
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any

from cache.semantic_cache import SemanticCache
from gateway.accounting.admission import MAX_TOLD, Admission
from gateway.accounting.ledger import Ledger
from gateway.accounting.usage_sums import HITS
from gateway.auth import KeyRing
from gateway.errors import Unavailable
from gateway.telemetry.metrics import Metrics
from policies.document import Policies

MAX_SHOWN = 20
"""Entries of the cache: those that were served most often."""


class Panels:
    """Under one version of the policies."""

    def __init__(
        self,
        keys: KeyRing,
        admission: Admission,
        ledger: Ledger,
        metrics: Metrics,
        policies: Policies,
        cache: SemanticCache,
    ) -> None:
        self._keys = keys
        self._admission = admission
        self._ledger = ledger
        self._metrics = metrics
        self._cache = cache
        self._operators = policies.cache.operators
        self._candidates = {
            place: action.choose.candidates
            for place, action in policies.actions()
            if action.choose is not None
        }

    async def show(self, shares: Sequence[Mapping[str, Any]], tenant: str = "") -> dict[str, Any]:
        """All of them, for a tenant. `shares`: requests and cost of each route and model, from the ledger."""
        counts: dict[str, list[tuple[Mapping[str, str], float]]] = defaultdict(list)
        for name, labels, value in self._metrics.samples():
            counts[name].append((labels, value))
        limits: list[dict[str, object]] = []
        with contextlib.suppress(Unavailable):  # no other panel needs the store of limits
            limits = await self._admission.left(self._keys.principals)
        return {
            "limits": limits,
            "limits_cut": len(limits) >= MAX_TOLD,
            "limits_fault": self._ledger.accounts.fault,
            "cache": self._cache_panel(counts) | {"tenant": tenant, "is_operator": tenant in self._operators},
            "router": {"shares": shares, "quality": self._quality(shares)},
            "guardrails": _summed(
                counts["penstock_guardrail_verdicts_total"], "check", "outcome", "language"
            ),
        }

    def _cache_panel(self, counts: Mapping[str, list[tuple[Mapping[str, str], float]]]) -> dict[str, Any]:
        """Outcomes and verdicts are of all workers since the start, entries and levels of this one."""
        store = self._cache.store
        outcomes = {
            row["outcome"]: row["count"]
            for row in _summed(counts["penstock_cache_requests_total"], "outcome")
        }
        false_hits: dict[str, dict[str, Any]] = defaultdict(dict)
        for labels, value in counts["penstock_cache_false_hit_rate"]:
            model = labels["model"]
            false_hits[model] |= {labels["value"]: value, "level": store.evidence.level(model)}
        asked = sum(count for outcome, count in outcomes.items() if outcome != "bypass")
        now_s = self._cache.now_s()
        return {
            "outcomes": outcomes,
            "hit_ratio": sum(outcomes.get(name, 0.0) for name in HITS) / asked if asked else None,
            "false_hits": [{"model": model, **each} for model, each in false_hits.items()],
            "verdicts": _summed(counts["penstock_cache_verdicts_total"], "model", "verdict"),
            "entries": len(store),
            "bytes": store.num_bytes,
            "top": [
                {
                    "entry": entry.key.hex(),
                    "tenant": entry.tenant,
                    "model": entry.labels.model,
                    "hits": entry.hits,
                    "wrong": entry.wrong,
                    "bytes": entry.size_bytes,
                    "age_s": max(0, round(now_s - entry.created_s)),
                }
                for entry in heapq.nlargest(MAX_SHOWN, store.entries(), key=attrgetter("hits"))
            ],
        }

    def _quality(self, shares: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """What feedback of the last week says of each candidate, and what its requests cost on the mean."""
        requests: dict[str, float] = defaultdict(float)
        usd: dict[str, float] = defaultdict(float)
        for row in shares:
            requests[row["model"]] += row["requests"]
            usd[row["model"]] += row["cost_usd"]
        found = []
        for place, models in self._candidates.items():
            for model in models:
                good, bad = self._ledger.judged(place, model)
                quality = good / (good + bad) if good + bad else None
                cost = usd[model] / requests[model] if requests[model] else None
                row = {"rule": place, "model": model, "judged": good + bad, "quality": quality}
                found.append({**row, "usd_per_request": cost})
        return found


def _summed(rows: Sequence[tuple[Mapping[str, str], float]], *names: str) -> list[dict[str, Any]]:
    """Counts by these labels, the highest first."""
    found: dict[tuple[str, ...], float] = defaultdict(float)
    for labels, value in rows:
        found[tuple(labels[name] for name in names)] += value
    ordered = sorted(found.items(), key=lambda each: -each[1])
    return [{**dict(zip(names, key, strict=True)), "count": count} for key, count in ordered]
