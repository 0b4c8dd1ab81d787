"""Limits and what is left, cache, router and guardrails: what requests have left in each, and no text."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from backend.classifiers.measures import wilson
from cache.entry import Entry, Labels
from cache.memory_store import MemoryStore
from cache.semantic_cache import SemanticCache
from gateway.accounting import admission as admission_module
from gateway.accounting.admission import MAX_TOLD, Admission
from gateway.accounting.counters import Counters
from gateway.accounting.holds import SCHEMA as HOLDS
from gateway.accounting.holds import DatabaseHolds
from gateway.accounting.ledger import Ledger
from gateway.accounting.receipt import Charged
from gateway.accounting.shared_accounts import SharedAccounts
from gateway.admin.panels import MAX_SHOWN, Panels
from gateway.answer import Usage
from gateway.auth import KeyRing, tenant_id
from gateway.database.sqlite import SqliteDatabase
from gateway.telemetry.metrics import Metrics
from policies.cache import CacheSection
from policies.choose import ChoiceCandidate, Choose
from policies.document import Policies, Route
from policies.routes import Rule
from policies.tenants import Limits, Tenant, rules_of

KEY = "sk-a"
NAMES = {tenant_id(KEY): "a"}
TEXT = "a question that is nothing to operators"
LIMITED = Tenant(
    limits=Limits(requests_per_minute=10, usd_per_day=2.0), limits_per_key=Limits(tokens_per_month=1000)
)


def entry(number: int, hits: int) -> Entry:
    key = number.to_bytes(4, "big")
    return Entry(key, b"p", "a", TEXT, TEXT.encode(), 1, 0.0, 1e12, Labels(model="m"), hits=hits)


def build(
    policies: Policies, ledger: Ledger | None = None, keys: KeyRing | None = None
) -> tuple[Panels, Ledger, Metrics, MemoryStore, Admission]:
    ledger, metrics, keys = ledger or Ledger(), Metrics(["m"]), keys or KeyRing([KEY], NAMES)
    store, admission = MemoryStore(1 << 20, 1 << 20), Admission(policies, ledger)
    cache = SemanticCache(store, None, now_s=lambda: 60.0)
    return Panels(keys, admission, ledger, metrics, policies, cache), ledger, metrics, store, admission


async def test_what_is_left_of_limits() -> None:
    panels, _, _, _, admission = build(Policies(tenants={"a": LIMITED}))
    principal = KeyRing([KEY], NAMES).identify(f"Bearer {KEY}")
    for _ in range(3):
        admitted = await admission.enter(principal)
        admission.settle(admitted, Charged(Usage(100, 50), 0.25))
    limits: list[dict[str, Any]] = (await panels.show([]))["limits"]
    shown = {each["limit"]: each for each in limits}
    assert {name: each["left"] for name, each in shown.items()} == {
        "requests_per_minute": 7,
        "usd_per_day": 1.25,
        "tokens_per_month": 550,
    }
    assert shown["tokens_per_month"]["of"] == f"key {principal.key_id}"
    assert shown["usd_per_day"]["tenant"] == "a" and 0 < shown["usd_per_day"]["resets_in_s"] <= 86_400
    again: list[dict[str, Any]] = (await panels.show([]))["limits"]  # looking takes nothing
    assert [each["used"] for each in again] == [each["used"] for each in limits]


async def test_limits_that_cannot_be_read_hide_no_other_panel() -> None:
    """The policies refuse what cannot be counted, and the store of limits is away."""
    database = SqliteDatabase("/dev/null", "counters", HOLDS)
    shared = SharedAccounts(DatabaseHolds(database), Counters(), "refuse")
    panels, _, metrics, _, _ = build(Policies(tenants={"a": LIMITED}), Ledger(accounts=shared))
    metrics.begin("chat").cache_looked_up("m", "exact")
    found = await panels.show([])
    await shared.close()
    assert (found["limits"], found["limits_fault"]) == ([], shared.fault)
    assert "log says why" in shared.fault and found["cache"]["outcomes"]["exact"] == 1


async def test_limits_of_many_tenants_are_cut_before_their_rules_are_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[str] = []

    def counting(tenant: str, *rest: Any) -> Tenant:  # noqa: ANN401 - as `rules_of` has it
        made.append(tenant)
        return rules_of(tenant, *rest)

    monkeypatch.setattr(admission_module, "rules_of", counting)
    names = [f"tenant-{number}" for number in range(1000)]
    keys = KeyRing(names, {tenant_id(name): name for name in names})
    panels = build(Policies(tenants=dict.fromkeys(names, LIMITED)), keys=keys)[0]
    found = await panels.show([])
    assert (len(found["limits"]), found["limits_cut"]) == (MAX_TOLD, True)
    assert len(set(made)) <= MAX_TOLD


async def test_a_limit_that_is_passed_is_told_as_none_left() -> None:
    panels, _, _, _, admission = build(Policies(tenants={"a": LIMITED}))
    principal = KeyRing([KEY], NAMES).identify(f"Bearer {KEY}")
    admission.settle(await admission.enter(principal), Charged(Usage(2000, 0), 9.0))
    limits = {each["limit"]: each for each in (await panels.show([]))["limits"]}
    assert (limits["usd_per_day"]["left"], limits["usd_per_day"]["used"]) == (0, 9.0)


async def test_cache_hits_false_hits_and_top_entries() -> None:
    panels, _, metrics, store, _ = build(Policies())
    for outcome in ("exact", "exact", "semantic", "miss", "near", "bypass"):
        metrics.begin("chat").cache_looked_up("m", outcome)
    for verdict in ("right", "right", "right", "wrong"):
        metrics.cache_judged("m", verdict)
    for number in range(MAX_SHOWN + 5):
        store.add(entry(number, hits=number))
    cache = (await panels.show([]))["cache"]
    assert cache["outcomes"]["exact"] == 2 and cache["hit_ratio"] == 3 / 5
    low, high = wilson(1, 4)
    assert cache["false_hits"] == [{"model": "m", "mean": 0.25, "low": low, "high": high, "level": 0}]
    assert cache["entries"] == MAX_SHOWN + 5
    assert [each["hits"] for each in cache["top"]] == list(range(MAX_SHOWN + 4, 4, -1))
    assert cache["top"][0]["entry"] == entry(MAX_SHOWN + 4, 0).key.hex() and cache["top"][0]["age_s"] == 60
    assert TEXT not in str(await panels.show([]))


async def test_the_page_knows_before_whose_entries_its_reader_may_invalidate() -> None:
    panels = build(Policies(cache=CacheSection(operators=["boss"])))[0]
    found = {tenant: (await panels.show([], tenant))["cache"] for tenant in ("boss", "a")}
    assert {tenant: (each["tenant"], each["is_operator"]) for tenant, each in found.items()} == {
        "boss": ("boss", True),
        "a": ("a", False),
    }


async def test_a_clock_that_is_set_back_gives_no_entry_a_negative_age() -> None:
    panels, _, _, store, _ = build(Policies())
    store.add(replace(entry(0, hits=1), created_s=3600.0))
    assert (await panels.show([]))["cache"]["top"][0]["age_s"] == 0


async def test_an_idle_gateway_has_no_ratio() -> None:
    found = await build(Policies())[0].show([])
    assert found["cache"]["hit_ratio"] is None and found["cache"]["top"] == []
    assert found["limits"] == found["guardrails"] == []


async def test_quality_against_cost() -> None:
    choose = Choose(candidates={"m": ChoiceCandidate(), "n": ChoiceCandidate()})
    policies = Policies(routes={"auto": Route(model="m", rules=[Rule(choose=choose)])})
    panels, ledger, _, _, _ = build(policies)
    [(place, _)] = [each for each in policies.actions() if each[1].choose is not None]
    for score in (1.0, 0.5):
        ledger.judge(place, "m", score)
    shares = [
        {"route": "auto", "model": "m", "requests": 3, "cost_usd": 0.75},
        {"route": "", "model": "m", "requests": 1, "cost_usd": 0.25},
    ]
    router = (await panels.show(shares))["router"]
    assert router["shares"] == shares
    assert router["quality"] == [
        {"rule": place, "model": "m", "judged": 2.0, "quality": 0.75, "usd_per_request": 0.25},
        {"rule": place, "model": "n", "judged": 0.0, "quality": None, "usd_per_request": None},
    ]


async def test_verdicts_by_check_and_language() -> None:
    panels, _, metrics, _, _ = build(Policies())
    for endpoint in ("chat", "responses"):
        metrics.begin(endpoint).screened("m", "pattern", "blocked")
    metrics.begin("chat").screened("m", "injection", "unreadable", "ja")
    assert (await panels.show([]))["guardrails"] == [
        {"check": "pattern", "outcome": "blocked", "language": "", "count": 2},
        {"check": "injection", "outcome": "unreadable", "language": "ja", "count": 1},
    ]
