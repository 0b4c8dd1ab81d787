"""A limit in USD counts what every model costs that its callers can reach."""

from __future__ import annotations

from pathlib import Path

import pytest

from policies.check_prices import FREE
from tests.policies.test_check_callers import load

PRICED = "price: {input_usd_per_million_tokens: 1, output_usd_per_million_tokens: 1}"
MODELS = f"""\
models:
  paid: {{upstream: {{base_url: 'http://h/v1'}}, {PRICED}}}
  bare: {{upstream: {{base_url: 'http://h/v1'}}}}
  own: {{engine: {{checkpoint: "builtin:pico-small", adapters: {{skill: {{path: "builtin:json"}}}}}}}}
  vectors: {{encoder: {{checkpoint: "builtin:all-minilm-l6-v2"}}}}
"""
LIMIT = "limits: {usd_per_day: 3}"
ROUTE = f"\ntiers: {{t: {{models: [r], {LIMIT}}}}}"


def unpriced(folder: Path, text: str) -> list[str]:
    """The models that are refused."""
    found = load(folder, MODELS + text)
    assert all("has no `price`, so " in each and FREE in each for each in found), found
    return [each.split()[1].removeprefix("models.") for each in found]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("tiers: {default: {limits: {requests_per_minute: 3}}}", []),
        (f"tiers: {{default: {{{LIMIT}}}}}", ["bare", "own"]),
        (f"tenants: {{key-12345678: {{{LIMIT}}}}}", ["bare", "own"]),
        (f"tiers: {{t: {{models: [paid, vectors], {LIMIT}}}}}", []),
        (f"tiers: {{t: {{models: [bare], {LIMIT}}}}}", ["bare"]),
        (f"tiers: {{t: {{models: [skill], {LIMIT}}}}}", ["own"]),
        (f"tiers: {{t: {{models: ['own:skill'], {LIMIT}}}}}", ["own"]),
        # A tenant of the tier that may ask for more, or for less.
        (
            f"tiers: {{t: {{models: [paid], {LIMIT}}}}}\n"
            "tenants: {key-12345678: {tier: t, models: [paid, bare]}}",
            ["bare"],
        ),
        (
            f"tiers: {{default: {{models: [paid]}}, t: {{}}}}\n"
            f"tenants: {{key-12345678: {{{LIMIT}}}, key-87654321: {{tier: t}}}}",
            [],
        ),
        # A parent pays for its children, and for theirs.
        (
            f"tiers: {{default: {{models: [paid]}}}}\n"
            f"tenants: {{acme: {{keys: [key-00000000], {LIMIT}}}, key-11111111: {{parent: acme}}, "
            "key-22222222: {parent: key-11111111, models: [bare]}, key-33333333: {models: [own]}}",
            ["bare"],
        ),
        # Limits of other kinds.
        ("tiers: {t: {models: [bare], limits_per_user: {usd_per_month: 3}}}", ["bare"]),
        ("tiers: {t: {limits_per_model: {own: {usd_per_minute: 3}}}}", ["own"]),
        ("tiers: {t: {soft_limits: {usd_per_day: 3}, limits: {machine_seconds_per_day: 9}}}", []),
        # Routes lead to models.
        ("routes: {r: {model: bare}}" + ROUTE, ["bare"]),
        ("routes: {r: {model: paid}}" + ROUTE, []),
        (
            "routes: {r: {model: paid, fallback: {any: [bare]}}}" + ROUTE,
            ["bare"],
        ),
        (
            "routes: {r: {model: paid, shadow: {model: bare}}}" + ROUTE,
            [],
        ),
        (
            "routes: {r: {rules: [{when: 'request.stream', cascade: {models: [own, paid]}}], "
            "model: paid}}" + ROUTE,
            ["own"],
        ),
        (
            "routes: {r: {split: {models: {paid: 1, own: 1}}}}" + ROUTE,
            ["own"],
        ),
        (
            "routing: {rules: [{when: 'request.num_tokens_estimate > 9', model: own}]}\n"
            f"tiers: {{t: {{models: [paid], {LIMIT}}}}}",
            ["own"],
        ),
    ],
)
def test_models_that_a_limit_in_usd_can_reach_need_a_price(
    tmp_path: Path, text: str, expected: list[str]
) -> None:
    assert unpriced(tmp_path, text) == expected


def test_the_place_is_the_models_and_the_remedy_is_one(tmp_path: Path) -> None:
    found = load(tmp_path, MODELS + f"tiers: {{t: {{models: [bare], {LIMIT}}}}}")
    assert found == [
        "3: models.bare has no `price`, so tiers.t.limits.usd_per_day would not count what it costs; add "
        f"one, or for a model that costs nothing `{FREE}`"
    ]
    mended = MODELS.replace("  bare: {", f"  bare: {{{FREE}, ") + f"tiers: {{t: {{models: [bare], {LIMIT}}}}}"
    assert load(tmp_path, mended) == []


def test_a_version_of_a_model_needs_one_too(tmp_path: Path) -> None:
    text = "  canary: {upstream: {base_url: 'http://h/v1'}, release: {of: paid, stage: canary}}\n"
    assert unpriced(tmp_path, f"{text}tiers: {{t: {{models: [paid], {LIMIT}}}}}") == ["canary"]


def test_a_budget_without_any_price(tmp_path: Path) -> None:
    text = MODELS.replace(f", {PRICED}", "") + f"tenants: {{key-12345678: {{{LIMIT}}}}}"
    assert load(tmp_path, text) == [
        "6: tenants.key-12345678.limits.usd_per_day counts nothing, as no model has a `price`; add one to "
        "the models"
    ]
