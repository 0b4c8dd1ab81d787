"""Every family has reasoning steps where specified: short, on one line, and ending at the answer."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from random import Random

import pytest
from tokenizers import Tokenizer

import backend.pico
from backend.pico.tasks import FAMILIES, Instance

TIERS = (1, 2, 3, 4, 5)
THOUGHT_TIERS = (3, 4, 5)
MAX_THOUGHT_TOKENS = 300  # ten numbers, inserted one after the other
CELLS = [(name, tier) for name in FAMILIES for tier in TIERS]
LAST_NUMBER_FAMILIES = ("arithmetic", "word_problems", "sequences")
TOKENIZER_PATH = Path(backend.pico.__file__).parent / "weights" / "pico-small" / "tokenizer.json"


@cache
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(TOKENIZER_PATH))


@cache
def draw(name: str, tier: int) -> tuple[Instance, ...]:
    rng = Random(f"{name}:{tier}")
    return tuple(FAMILIES[name].generate(rng, tier) for _ in range(150))


def known_text(instance: Instance) -> str:
    """All text that the model has read when it writes the answer."""
    context = instance.context
    turns = [turn.content for turn in (*context.turns, *context.after)]
    return "\n".join((context.system, *turns, instance.prompt, instance.thought))


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_has_all_tiers(name: str) -> None:
    assert tuple(sorted(FAMILIES[name].tiers)) == TIERS


@pytest.mark.parametrize(("name", "tier"), [cell for cell in CELLS if cell[1] in THOUGHT_TIERS])
def test_the_higher_tiers_have_steps(name: str, tier: int) -> None:
    assert all(instance.thought for instance in draw(name, tier))


@pytest.mark.parametrize(("name", "tier"), CELLS)
def test_thoughts_are_short_single_lines(name: str, tier: int) -> None:
    for instance in draw(name, tier):
        assert instance.thought == instance.thought.strip()
        assert "\n" not in instance.thought
        assert "think>" not in instance.thought  # the template adds the tags
        assert len(tokenizer().encode(instance.thought).ids) <= MAX_THOUGHT_TOKENS, instance


def last_step(thought: str) -> str:
    """The value of a sum or product that the steps end with, whose evaluation may be left to the answer."""
    found = re.search(r"(\d+)([+*])(\d+)$", thought)
    if found is None:
        return ""
    left, right = int(found[1]), int(found[3])
    return str(left + right if found[2] == "+" else left * right)


@pytest.mark.parametrize(("name", "tier"), [cell for cell in CELLS if cell[1] in THOUGHT_TIERS])
def test_numbers_of_the_answer_were_read_or_computed(name: str, tier: int) -> None:
    for instance in draw(name, tier):
        known = f"{known_text(instance)}\n{last_step(instance.thought)}"
        answer = re.sub(r"^\d+\. ", "", instance.answer, flags=re.MULTILINE)  # numbered lists
        for number in re.findall(r"\d+", answer):
            assert number in known or number.rstrip("0") in known, instance  # "*100" appends zeros


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("name", LAST_NUMBER_FAMILIES)
def test_the_steps_of_a_computation_end_with_the_answer(name: str, tier: int) -> None:
    for instance in draw(name, tier):
        last = instance.thought.split(";")[-1].split("=")[-1]
        assert re.sub(r"(:\d+)?r0$", "", last) == instance.answer, instance


@pytest.mark.parametrize("tier", TIERS)
def test_the_steps_of_a_comparison_are_right_and_name_the_answer(tier: int) -> None:
    for instance in draw("comparison", tier):
        if asked := re.fullmatch(r"(\d+)([<>])(\d+):([<>]) (yes|no)", instance.thought):
            assert (int(asked[1]) < int(asked[3])) == (asked[4] == "<")
            assert instance.answer.lower() == asked[5] == ("yes" if asked[2] == asked[4] else "no")
        elif found := re.search(r"([\d.]+),([\d.]+):([<>]);(max|min) (.+)$", instance.thought):
            assert (float(found[1]) < float(found[2])) == (found[3] == "<")
            assert found[5] == instance.answer
            value = sum(map(float, found[5].split(" + ")))
            assert value == float(found[1 if (found[3] == ">") == (found[4] == "max") else 2])
        else:  # the best so far, or the best two
            assert re.split("[;:,]", instance.thought)[-1] == instance.answer


@pytest.mark.parametrize("tier", [4, 5])
def test_the_steps_of_a_division_end_with_the_remainder(tier: int) -> None:
    for instance in draw("number_facts", tier):
        rest = instance.thought.rsplit("r", 1)[1]
        assert instance.answer == (rest if tier == 5 else "Yes" if rest == "0" else "No")


def test_the_steps_of_digits_end_with_the_sum_or_the_rounded_number() -> None:
    for instance in draw("number_facts", 3):
        assert re.split("[;=]", instance.thought)[-1] == instance.answer, instance
