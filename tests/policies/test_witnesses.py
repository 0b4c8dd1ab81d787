"""Conditions that no request can satisfy, and those that every request does."""

from __future__ import annotations

from pathlib import Path

import pytest

from policies.load import load_folder

FOLDER = """\
models:
  small: {{upstream: {{base_url: 'http://h/v1'}}{price}}}
tiers: {{gold: {{}}, silver: {{}}}}
tenants: {{acme: {{keys: [key-00000001], tier: gold}}}}
routing: {{headers: [x-region, x-team]}}
routes:
  auto:
    model: small
    rules:
      - when: |
          {condition}
        parameters: {{set: {{seed: 1}}}}
"""
PRICE = ", price: {input_usd_per_million_tokens: 1, output_usd_per_million_tokens: 1}"


def warnings(folder: Path, condition: str, price: str = PRICE) -> list[str]:
    (folder / "p.yaml").write_text(FOLDER.format(condition=condition, price=price))
    return [warning.message for warning in load_folder(folder).warnings]


@pytest.mark.parametrize(
    "condition",
    [
        "(tenant.tier) == 'glod'",
        "tenant.tier == ('glo' + 'd')",
        "tenant . tier == 'glod'",
        "tenant.tier == r'glod'",
        "tenant.tier.matches('^(glod|sliver)$')",
        "size(tenant.tier) == 0",
        "['glod'].exists(t, t == tenant.tier)",
        "tenant.tier in []",
        "tenant.tier == 'gold' && tenant.tier == 'silver'",
        "request.has_tools && !request.has_tools",
        "request.num_messages > 5 && request.num_messages < 3",
        "time.getDayOfWeek() in [7, 8]",
        "time.getHours('Europe/Berlin') > 20 && time.getHours('Europe/Berlin') < 8",
        "headers['x-region'] == 'eu' && headers['x-region'] == 'us'",
    ],
)
def test_a_condition_that_no_request_satisfies(tmp_path: Path, condition: str) -> None:
    (message,) = warnings(tmp_path, condition)
    assert message.startswith("the condition never holds, whatever is asked")
    assert "tenant" not in condition or message.endswith("tenant.tier is 'default', 'gold', 'silver'")


@pytest.mark.parametrize(
    "condition",
    [
        "tenant.tier == 'default' && request.stream",
        "tenant.tier == headers['x-team']",
        "tenant.name == 'key-0a1b2c3d' && principal.key_id == '0a1b2c3d'",
        "headers['x-region'].matches('^[0-9]+$') && headers['x-region'].size() > 3",
        "headers['x-region'] != '' && headers['x-region'] != 'eu'",
        "request.num_messages % 7 == 3",
        "request.num_tokens_estimate * 2 > 90000 || signals.gain > 0.25",
        "time.getHours() >= 20 || time.getHours() < 8",
        "time.getHours() == 3 && time.getDayOfWeek() == 0 && time.getMonth() == 11",
        "time > timestamp('2030-01-01T00:00:00Z')",
        "live.spent_usd['small'] > 50.0 && live.queue['small'] == 7 && !live.ready['small']",
        "request.user == 'alice' || request.metadata['team'] == 'x'",
        "request.reasoning_effort in ['high', 'max'] && request.endpoint == 'responses'",
    ],
)
def test_a_condition_that_a_request_satisfies(tmp_path: Path, condition: str) -> None:
    assert warnings(tmp_path, condition) == []


def test_a_condition_that_every_request_satisfies(tmp_path: Path) -> None:
    (message,) = warnings(tmp_path, "!(tenant.tier == 'gold' && tenant.tier == 'silver')")
    assert message.startswith("the condition always holds, whatever is asked; tenant.tier is")


def test_nothing_is_spent_without_a_price(tmp_path: Path) -> None:
    for condition in ("tenant.spent_usd >= 5.0", "live.spent_usd['small'] > 0.5"):
        assert warnings(tmp_path, condition) == []
        (message,) = warnings(tmp_path, condition, price="")
        assert message.endswith("nothing is spent, as no model has a `price`")
