"""Calls name an offered tool and its parameters, results are answered, and the grader compares JSON."""

from __future__ import annotations

import json
from functools import cache
from random import Random

import pytest

from backend.pico.tasks import out_of_scope
from backend.pico.tasks.base import Instance
from backend.pico.tasks.tool_calls import call_text, parse_calls
from backend.pico.tasks.tools import FAMILY, NOT_FOUND

DRAWS = 300
TIERS = (1, 2, 3, 4, 5)


@cache
def draw(tier: int) -> list[Instance]:
    rng = Random(tier)
    return [FAMILY.generate(rng, tier) for _ in range(DRAWS)]


@pytest.mark.parametrize("tier", TIERS)
def test_calls_fit_the_offered_tools(tier: int) -> None:
    kinds = {"string": str, "number": int}
    called = [instance for instance in draw(tier) if parse_calls(instance.answer)]
    assert len(called) > DRAWS / 3
    for instance in called:
        tools = {tool.name: tool.parameters for tool in instance.context.tools}
        assert len(tools) == len(instance.context.tools)
        for call in parse_calls(instance.answer) or []:
            expected = tools[call["name"]]
            assert list(call["arguments"]) == [name for name, _ in expected]
            assert all(isinstance(call["arguments"][name], kinds[kind]) for name, kind in expected)


@pytest.mark.parametrize("tier", TIERS)
def test_every_call_before_the_answer_has_its_result(tier: int) -> None:
    for instance in draw(tier):
        after = instance.context.after
        calls = [parse_calls(turn.content) or [] for turn in after if turn.role == "assistant"]
        assert sum(map(len, calls)) == sum(turn.role == "tool" for turn in after)


def test_answers_after_a_result_are_in_it() -> None:
    for instance in draw(1) + draw(3):
        if instance.context.after and instance.answer != NOT_FOUND:
            assert instance.answer in instance.context.after[-1].content


def test_tiers_one_and_two_offer_few_tools() -> None:
    assert {len(instance.context.tools) for instance in draw(1)} == {1}
    assert {len(instance.context.tools) for instance in draw(2)} == {2, 3}


def test_two_calls_and_chains() -> None:
    assert {len(parse_calls(instance.answer) or []) for instance in draw(4)} == {0, 2}
    assert {len(instance.context.after) for instance in draw(5)} == {0, 2, 4}


def test_some_questions_need_no_tool_or_have_none() -> None:
    assert sum(not instance.context.after and not parse_calls(instance.answer) for instance in draw(2)) > 20
    assert sum(instance.answer == out_of_scope.ANSWER for instance in draw(3)) > 20


@pytest.mark.parametrize("tier", TIERS)
def test_the_key_of_a_question_ignores_the_tools(tier: int) -> None:
    keys: dict[str, str] = {}
    for instance in draw(tier):
        assert keys.setdefault(instance.prompt, instance.key) == instance.key


def test_the_grader_compares_json_in_order() -> None:
    first, second = call_text("f", {"a": 1, "b": "x"}), call_text("g", {})
    instance = Instance("tools", 1, "p", f"{first}\n{second}", "k")
    spaced = json.dumps({"arguments": {"b": "x", "a": 1}, "name": "f"}, indent=1)
    assert FAMILY.grade(instance, f"<tool_call>\n{spaced}\n</tool_call>\n{second}")
    for wrong in (f"{second}\n{first}", first, f"Sure! {first}\n{second}", "f(1)", first.replace("1", '"1"')):
        assert not FAMILY.grade(instance, wrong)
    assert FAMILY.grade(Instance("tools", 1, "p", "84", "k"), "84.")
