"""Steps that walk through options end at the target; the rules of sequences are named correctly."""

from __future__ import annotations

import itertools
import re
from random import Random

import pytest

from backend.pico.tasks import FAMILIES, Instance
from backend.pico.tasks.tool_calls import parse_calls


def draw(name: str, tier: int, count: int = 200) -> list[Instance]:
    rng = Random(f"{name}:{tier}")
    return [FAMILIES[name].generate(rng, tier) for _ in range(count)]


@pytest.mark.parametrize("tier", [1, 2, 3, 4, 5])
def test_the_tools_are_walked_to_the_first_of_the_wanted_kind(tier: int) -> None:
    found = 0
    for instance in draw("tools", tier):
        calls = parse_calls(instance.answer)
        walk = re.search(r"(\w+): ((?:\"\w+\" \w+(?:; )?)+), ", instance.thought)
        assert (walk is None) == (calls is None)
        if calls is None or walk is None:
            continue
        found += 1
        names, kinds = zip(*re.findall(r"\"(\w+)\" (\w+)", walk[2]), strict=True)
        assert names[-1] == calls[0]["name"]
        assert kinds.index(walk[1]) == len(kinds) - 1
        offered = [tool.name for tool in instance.context.tools]
        assert list(names) == offered[: len(names)]
    assert found > 40


def test_missing_tools_are_reported_after_all_tools() -> None:
    found = [instance for instance in draw("tools", 3) if instance.thought.endswith("; no tool")]
    assert found
    for instance in found:
        names = re.findall(r"\"(\w+)\"", instance.thought)
        assert names == [tool.name for tool in instance.context.tools]


def test_a_column_is_walked_down_to_the_number() -> None:
    found = [instance for instance in draw("tables", 2) if "? " in instance.thought]
    assert len(found) > 20
    for instance in found:
        asked, _, walk = instance.thought.partition("? ")
        name, number = walk.split("; ")[-1].split(" ")
        assert (name, number) == (instance.answer, asked.split(" ")[-1])


def test_a_list_is_walked_to_the_only_word_of_a_category() -> None:
    for instance in draw("categories", 1):
        *others, last = instance.thought.split("; ")
        assert last == f"{instance.answer} +"
        assert all(other.endswith(" -") for other in others)
        assert f"{instance.answer} -" not in others


def test_people_are_walked_to_the_one_in_the_city() -> None:
    found = [i for i in draw("references", 3, 600) if re.match(r"\w+\? \w+ ", i.thought)]
    assert len(found) > 20
    for instance in found:
        city, _, walk = instance.thought.partition("? ")
        *passed, sought = walk.split("; ")
        assert sought == f"{instance.answer} {city} +"
        assert all(each.endswith(" -") and city not in each for each in passed)


@pytest.mark.parametrize("tier", [1, 2, 3, 4])
def test_the_rule_of_a_sequence_is_named_right(tier: int) -> None:
    for instance in draw("sequences", tier):
        shown = [*map(int, instance.key.split(", ")), int(instance.answer)]
        rule, step = re.search(r";(plus|minus|times|growing) (\d+);", instance.thought).groups()  # type: ignore[union-attr]
        gaps = [after - before for before, after in itertools.pairwise(shown)]
        if rule == "times":
            assert all(after == before * int(step) for before, after in itertools.pairwise(shown))
        elif rule == "growing":
            assert {after - before for before, after in itertools.pairwise(gaps)} == {int(step)}
        else:
            assert set(gaps) == {int(step) * (1 if rule == "plus" else -1)}


def test_the_odd_word_is_found_by_the_kind_of_the_others() -> None:
    found = [instance for instance in draw("categories", 2) if "; not " in instance.thought]
    assert len(found) > 50
    for instance in found:
        kinds, common, walk = re.split(r"; not (\w+): ", instance.thought)
        kind_of = dict(pair.split(" ") for pair in kinds.split("; "))
        assert sum(kind == common for kind in kind_of.values()) == 3
        marks = [pair.split(" ") for pair in walk.split("; ")]
        assert all(mark == ("-" if kind_of[word] == common else "+") for word, mark in marks)
        assert marks[-1] == [instance.answer, "+"]


def test_a_range_is_counted_down_to_its_end() -> None:
    found = [i for tier in (3, 4) for i in draw("instructions", tier) if re.match(r"\d+-\d+=", i.thought)]
    assert len(found) > 80
    for instance in found:
        high, low = map(int, re.findall(r"\d+", instance.thought)[:2])
        lefts = [int(number) for number in re.findall(r"; (\d):", instance.thought)]
        assert lefts == list(range(high - low, -1, -1))
        sums = re.findall(r"\d:(\d+)([+-])1=(\d+)", instance.thought)
        assert all(int(after) == int(before) + int(f"{sign}1") for before, sign, after in sums)
        numbers = [int(number) for number in (sums[0][0], *(after for _, _, after in sums))]
        assert {abs(after - before) for before, after in itertools.pairwise(numbers)} == {1}
        answered = [int(number) for number in re.findall(r"\d+(?!\d*\. )", instance.answer)]
        assert answered == numbers


def test_a_result_is_answered_or_planned_on_with() -> None:
    plans = 0
    for instance in draw("tools", 5):
        if not instance.context.after:
            continue
        plans += 1
        plan, _, rest = instance.thought.partition(": ")
        assert re.fullmatch(r"\w+ then \w+", plan)
        assert (parse_calls(instance.answer) is None) == (rest == instance.answer)
    assert plans > 80


def test_rules_are_followed_in_their_own_words() -> None:
    found = [i for tier in (2, 3, 4, 5) for i in draw("logic", tier) if re.match(r"the \w+ is", i.thought)]
    assert len(found) > 80
    for instance in found:
        first, *then = instance.thought.split(", ")
        assert f"T{first[1:]}." in instance.prompt
        for before, after in zip([first, *then], then, strict=False):
            if after == "unknown":
                assert instance.answer == after and f"If {before}," not in instance.prompt
            else:
                assert f"If {before}, {after}." in instance.prompt
