"""Tenants, tiers and keys: references that do not exist, and what holds for a tenant."""

from __future__ import annotations

from pathlib import Path

import pytest

from policies.errors import PolicyError
from policies.load import load_policies
from policies.tenants import Limits, Tenant, Tier, rules_of

MODELS = "models: {small: {engine: {checkpoint: 'builtin:x', adapters: {german: {path: 'builtin:x'}}}}}\n"
KEYS = "keys: [key-00000000]"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tiers: {gold: {}}\ntenants: {a: {tier: glod}}", "a.tier 'glod' is not one of tiers; did you mean"),
        ("tiers: {gold: {models: [smal]}}", "tiers.gold.models has the unknown model 'smal'; did you mean"),
        (f"tenants: {{a: {{{KEYS}}}, b: {{{KEYS}}}}}", "tenants.b.keys: 'key-00000000' also belongs to 'a'"),
        (f"tenants: {{a: {{{KEYS}}}, key-00000000: {{}}}}", "tenants.a.keys: 'key-00000000' also belongs"),
        ("tenants: {a: {keys: [sk-secret]}}", "must be a string of the form"),
        ("replicas: {timeout_ms: 0}", "replicas.timeout_ms"),
    ],
)
def test_mistakes(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "p.yaml").write_text(MODELS + text)
    with pytest.raises(PolicyError, match=message):
        load_policies(tmp_path)


def test_adapters_may_be_allowed(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text(MODELS + "tiers: {t: {models: [small, german, 'small:german']}}")
    assert load_policies(tmp_path).tiers["t"].models == ["small", "german", "small:german"]


def test_what_holds_for_a_tenant() -> None:
    tiers = {
        "default": Tier(models=["small"], limits=Limits(requests_per_minute=5)),
        "gold": Tier(limits=Limits(usd_per_day=9.0, requests_per_minute=50)),
    }
    tenants = {"a": Tenant(tier="gold", limits=Limits(requests_per_minute=70))}
    found = rules_of("a", tenants, tiers)
    assert (found.tier, found.models, found.limits) == (
        "gold",
        None,
        Limits(usd_per_day=9.0, requests_per_minute=70),
    )
    other = rules_of("b", tenants, tiers)
    assert (other.tier, other.models, other.limits) == ("default", ["small"], Limits(requests_per_minute=5))
    assert rules_of("b", {}, {}) == Tenant()
