"""Which models are evaluated, and at which price."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from gateway.cli import main as cli
from gateway.evaluation.client import ListedModel
from gateway.evaluation.flags import read_plan
from gateway.evaluation.subjects import choose_subjects
from gateway.settings import SettingsError

OURS = [
    {
        "id": "small",
        "owned_by": "penstock",
        "max_model_len": 9,
        "pricing": {"prompt": "0.1", "completion": 0.4},
    },
    {"id": "vectors", "owned_by": "penstock"},
    {"id": "auto", "owned_by": "penstock", "max_model_len": 9, "root": "small"},
    {
        "id": "polite",
        "owned_by": "penstock",
        "max_model_len": 9,
        "parent": "small",
        "root": "/adapters/polite",
    },
    {"id": "far", "owned_by": "upstream"},
]


def subjects(listed: list[dict[str, Any]], *flags: str) -> list[tuple[str, str, str]]:
    plan = read_plan(cli.parse(["eval", "models", *flags]))
    models = msgspec.json.decode(json.dumps(listed), type=list[ListedModel])
    return [
        (each.model, each.effort, f"{each.price.prompt_usd:f}" if each.price else "")
        for each in choose_subjects(plan, models)
    ]


def test_by_default_those_of_our_engines() -> None:
    assert subjects(OURS) == [("small", "", "0.1")]
    assert subjects(OURS, "--reasoning", "high") == [("small", "high", "0.1")]


def test_by_default_the_only_one() -> None:
    assert subjects([{"id": "theirs"}]) == [("theirs", "", "")]


def test_named_ones_with_prices() -> None:
    flags = ("--model", "auto", "--model", "small@low", "--model", "small@none", "--price", "auto=2,3")
    assert subjects(OURS, *flags) == [
        ("auto", "", "0.000002"),
        ("small", "low", "0.1"),
        ("small", "none", "0.1"),
    ]
    assert subjects([], "--model", "unlisted") == [("unlisted", "", "")]
    theirs = [{"id": "a/b"}, {"id": "c"}]
    assert subjects(theirs, "--model", "a/b:free@x") == [("a/b:free@x", "", "")]


@pytest.mark.parametrize(
    ("listed", "flags", "words"),
    [
        (OURS, ["--model", "smal"], "no model 'smal'; did you mean 'small'"),
        (OURS, ["--model", "zzz"], "it has: small, vectors, auto"),
        (OURS, ["--price", "auto=1,2"], "--price names 'auto', which is not evaluated; these are: small"),
        ([{"id": str(n)} for n in range(20)], [], "with --model; the server has: 0, .*11 and 8 more"),
        ([], [], "the server has: none"),
    ],
)
def test_refusals(listed: list[dict[str, Any]], flags: list[str], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        subjects(listed, *flags)
