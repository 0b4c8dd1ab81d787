"""Drills ask many questions about one text, and each answer follows from it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from random import Random

import pytest

from backend.pico.tasks import DRILL, FAMILIES, Instance
from backend.pico.tasks.base import Draw, exercise

DRAWS = 100
DRILLED = [name for name, family in FAMILIES.items() if family.drill is not None]
FACT = re.compile(r"\bThe (\w+) is (\w+)\.")


def drills(name: str) -> list[Instance]:
    rng = Random(f"drill:{name}")
    return [FAMILIES[name].generate_in(rng, DRILL, "train") for _ in range(DRAWS)]


def questions(instance: Instance) -> Iterator[tuple[str, str]]:
    """Every question without the text, with its answer."""
    said = [turn.content for turn in instance.context.turns] + [instance.prompt, instance.answer]
    said[0] = said[0].removeprefix(instance.key).strip()
    yield from zip(said[::2], said[1::2], strict=True)


def test_drills_are_not_graded() -> None:
    assert set(DRILLED) == {"tables", "logic", "facts"}
    assert all(DRILL not in family.tiers for family in FAMILIES.values())


@pytest.mark.parametrize("name", ["tables", "logic"])
def test_the_text_occurs_once_and_is_the_key(name: str) -> None:
    for instance in drills(name):
        assert instance.context.turns[0].content.startswith(instance.key)
        assert len(list(questions(instance))) >= 4
        assert not any(instance.key in question for question, _ in questions(instance))


def test_tables_are_read_in_both_directions() -> None:
    by_number = 0
    for instance in drills("tables"):
        lines = [
            re.split(r" ?[|,] ?", line.strip("| ").removeprefix("- ")) for line in instance.key.splitlines()
        ]
        header, *rows = [line for line in lines if set("".join(line)) != {"-"}]
        for question, answer in questions(instance):
            words = re.findall(r"\w+", question)
            column = next(place for place, head in enumerate(header) if place and head in words)
            named = [row for row in rows if row[0] in words]
            if named:
                assert answer == f"{named[0][0]}: {named[0][column]}"
                continue
            by_number += 1
            assert [row[0] for row in rows if row[column] in words] == [answer]
    assert by_number > 2 * DRAWS


def logic_answer(text: str, question: str) -> str:
    """The answer, derived independently."""
    facts = dict(FACT.findall(text))
    if colour := re.search(r"colour (?:is the|of the) (\w+)|colour is the (\w+)", question):
        thing = colour[1] or colour[2]
        rule = re.search(rf"If the (\w+) is (\w+), the {thing} is (\w+)\.", text)
        assert rule is not None
        return rule[3] if facts[rule[1]] == rule[2] else "unknown"
    if able := re.search(r"(?:can|Can) (\w+) (\w+)|that (\w+) can (\w+)", question):
        kind = re.search(rf"\b{able[1] or able[3]} is an? (\w+)", text)
        assert kind is not None
        return "Yes" if f"Every {kind[1]} can" in text else "No"
    claims = [facts[thing] == colour for thing, colour in re.findall(r"the (\w+) is (\w+)", question)]
    claims = claims or [
        facts[thing] == colour for thing, colour in re.findall(r"the (\w+) (\w+)\?", question)
    ]
    is_either = " or " in question.removeprefix("Yes or no")
    return "Yes" if (any(claims) if is_either else all(claims)) else "No"


def test_logic_answers_follow_from_the_text() -> None:
    found: set[str] = set()
    for instance in drills("logic"):
        for question, answer in questions(instance):
            found.add(answer)
            assert answer == logic_answer(instance.key, question), (instance.key, question)
    assert {"Yes", "No", "unknown"} < found


def test_pairs_are_the_same_or_not() -> None:
    verdicts: list[str] = []
    for instance in drills("facts"):
        for pair, said in zip(instance.key.split("; "), instance.answer.split("; "), strict=True):
            first, second = pair.split(" and ")
            verdicts.append("yes" if first == second else "no")
            assert said == f"{first} {second}: {verdicts[-1]}"
    assert 0.3 < verdicts.count("no") / len(verdicts) < 0.6


def test_a_drill_needs_phrasings_that_start_with_the_text() -> None:
    with pytest.raises(ValueError, match="no phrasing starts with 'text'"):
        exercise(Random(0), "text", [Draw(["question text"], "answer", "text")])
