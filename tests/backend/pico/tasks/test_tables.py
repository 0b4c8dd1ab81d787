"""The tables family's answers agree with an independent parser of the printed table."""

from __future__ import annotations

import re
from random import Random

import pytest

from backend.pico.tasks.base import Instance
from backend.pico.tasks.tables import FAMILY


def draw(tier: int) -> list[Instance]:
    rng = Random(f"tables:{tier}")
    return [FAMILY.generate(rng, tier) for _ in range(300)]


def rows_of(instance: Instance) -> list[dict[str, str]]:
    """The rows of a list or Markdown table, by header."""
    lines = [re.split(r" ?[|,] ?", line.strip("| ").removeprefix("- ")) for line in instance.key.splitlines()]
    header, *rest = [line for line in lines if set("".join(line)) != {"-"}]
    return [dict(zip(header, line, strict=True)) for line in rest]


def question_of(instance: Instance) -> str:
    return instance.prompt.replace(instance.key, "")


@pytest.mark.parametrize("tier", [1, 2, 3])
def test_cells_are_looked_up(tier: int) -> None:
    found = 0
    for instance in draw(tier):
        question = question_of(instance)
        names = [row for row in rows_of(instance) if re.search(rf"\b{row['name']}\b", question)]
        asked = [header for header in rows_of(instance)[0] if re.search(rf"\b{header}\b", question)]
        if len(names) == 1 and len(asked) == 1:
            found += 1
            assert f"{names[0]['name']}: {names[0][asked[0]]}" == instance.answer
            assert FAMILY.grade(instance, names[0][asked[0]]) and not FAMILY.grade(instance, names[0]["name"])
    assert found > 50


@pytest.mark.parametrize("tier", [1, 2, 3])
def test_rows_are_copied_in_the_order_of_the_question(tier: int) -> None:
    found = 0
    for instance in draw(tier):
        question = question_of(instance)
        if "rows" in question:
            found += 1
            lines = instance.answer.splitlines()
            names = [re.split(r"[ ,]+", line)[1] for line in lines]
            assert set(lines) <= set(instance.key.splitlines())
            assert ", ".join(names) in question
    assert found > 50


def test_people_are_found_by_a_number() -> None:
    found = 0
    for instance in draw(2):
        number = re.search(r"\d+", question_of(instance))
        if number:
            found += 1
            assert [row["name"] for row in rows_of(instance) if number[0] in row.values()] == [
                instance.answer
            ]
    assert found > 50


@pytest.mark.parametrize("tier", [3, 4, 5])
def test_extremes_and_sums_are_right(tier: int) -> None:
    kinds: set[str] = set()
    for instance in draw(tier):
        rows, question = rows_of(instance), question_of(instance)
        header = instance.thought.split(";")[0].split()[0]
        if most := re.search(r"(?:Who|person|who) (?:is|has) the (oldest|youngest|most|fewest)", question):
            pick = max if most[1] in ("oldest", "most") else min
            best = pick(rows, key=lambda row: int(row[header]))
            assert instance.answer in best.values()
            kinds.add("extreme")
        elif re.search(r"Add up|What is the (sum|total)[^?]*(ages|of \w+)\?$", question) and not re.search(
            r"people|where|[A-Z]\w+ and", question
        ):
            assert int(instance.answer) == sum(int(row[header]) for row in rows)
            kinds.add("sum")
        elif limit := re.search(r"(more|less) than (\d+)", question):
            values = [int(row[header]) for row in rows]
            hits = [
                value > int(limit[2]) if limit[1] == "more" else value < int(limit[2]) for value in values
            ]
            assert int(instance.answer) == sum(hits)
            kinds.add("count")
    assert kinds >= {3: {"extreme"}, 4: {"extreme", "sum", "count"}, 5: {"extreme", "sum"}}[tier]
