"""Tenants that no caller can be, and keys in place of names."""

from __future__ import annotations

from pathlib import Path

import pytest

from policies.errors import PolicyError
from policies.load import load_folder

PRICED = "price: {input_usd_per_million_tokens: 1, output_usd_per_million_tokens: 1}"
MODELS = f"""\
models:
  paid: {{upstream: {{base_url: 'http://h/v1'}}, {PRICED}}}
  free: {{upstream: {{base_url: 'http://h/v1'}}}}
tenants:
  acme: {{keys: [key-00000000]}}
"""
KEY = "sk-canary-12345678"


def load(folder: Path, text: str, tenants: tuple[str, ...] = ()) -> list[str]:
    """Warnings and errors, with their lines."""
    (folder / "p.yaml").write_text(text)
    try:
        found = [*load_folder(folder, tenants).warnings]
    except PolicyError as error:
        found = [*error.problems]
    return [f"{each.place.line}: {each.message}" for each in found]


@pytest.mark.parametrize(
    "text",
    [
        f"  {KEY}: {{}}",
        f"admin: {{principals: [acme, {KEY}]}}",
        f"cache: {{operators: [{KEY}]}}",
        f"guardrails: {{profiles: {{p: {{exempt_tenants: [{KEY}]}}}}}}",
        f"passthrough: {{/v1/audio: {{model: paid, tenants: [{KEY}]}}}}",
        f"probes: {{p: {{tenant: {KEY}, expect: {{status: 200}}}}}}",
    ],
)
def test_an_api_key_in_place_of_a_tenant(tmp_path: Path, text: str) -> None:
    found = load(tmp_path, MODELS + text)
    assert any(
        "holds what looks like an API key; write `key-` and the first 8 hex digits" in each for each in found
    )
    assert all(each.startswith("6: ") and KEY not in each for each in found)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "  other: {}",
            "6: tenants has a name at this place that no caller can have: give the tenant its `keys`",
        ),
        (
            "admin: {principals: [acm]}",
            "6: admin.principals.0 names no tenant that a caller can be; did you mean 'acme'",
        ),
        (
            "admin: {principals: [key-00000000]}",
            "6: admin.principals.0: callers with 'key-00000000' are the tenant 'acme'",
        ),
        (
            "cache: {operators: [them]}",
            "6: cache.operators.0 names no tenant that a caller can be; known: acme",
        ),
        ("probes: {p: {tenant: acm, expect: {}}}", "6: probes.p.tenant names no tenant that a caller can be"),
    ],
)
def test_names_that_no_caller_has_are_warned_of(tmp_path: Path, text: str, message: str) -> None:
    (found,) = load(tmp_path, MODELS + text)
    assert found.startswith(message)


def test_callers_that_can_be(tmp_path: Path) -> None:
    text = "  default: {}\n  key-12345678: {tier: t}\nadmin: {principals: [acme, key-12345678]}"
    assert load(tmp_path, MODELS + text) == []


def test_tenants_that_callers_have_anyway_are_not_suspected(tmp_path: Path) -> None:
    text = MODELS + "  other: {}\nadmin: {principals: [other, third, fourth]}"
    assert len(load(tmp_path, text)) == 3
    (found,) = load(tmp_path, text, ("other", "third"))
    assert "admin.principals.2" in found
