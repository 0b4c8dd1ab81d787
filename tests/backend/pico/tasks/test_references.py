"""The last question of a conversation is answered from the earlier turns."""

from __future__ import annotations

import re
from collections.abc import Callable
from random import Random

import pytest

from backend.pico.tasks import reference_numbers as numbers
from backend.pico.tasks import reference_words as words
from backend.pico.tasks.base import Draw, Instance, split_of
from backend.pico.tasks.references import FAMILY


def user_lines(draw: Draw) -> list[str]:
    return [turn.content for turn in draw.context.turns if turn.role == "user"]


def results(draw: Draw) -> list[int]:
    return [int(turn.content) for turn in draw.context.turns if turn.role == "assistant"]


@pytest.mark.parametrize("tier", FAMILY.tiers)
def test_every_conversation_has_earlier_turns_in_pairs(tier: int) -> None:
    rng = Random(tier)
    for _ in range(50):
        turns = FAMILY.generate(rng, tier).context.turns
        assert [turn.role for turn in turns] == ["user", "assistant"] * (len(turns) // 2)
        assert turns


@pytest.mark.parametrize("others", [False, True])
def test_a_running_count_follows_the_changes(others: bool) -> None:
    rng = Random(1)
    for _ in range(100):
        draw = numbers.running_count(rng, 50, 4, others=others)
        wanted = draw.key.split()[0]
        first, *changes = [line for line in user_lines(draw) if wanted in line]
        found = re.search(rf"(\d+) {wanted}", first)
        assert found is not None
        count = int(found[1])
        for line in changes:
            (amount,) = map(int, re.findall(r"\d+", line))
            less = re.search(r"sell|lose|I give", line) is not None
            count += -amount if less else amount
            assert count >= 0
        assert draw.answer == str(count)


def test_all_results_are_added_or_compared() -> None:
    rng = Random(2)
    for _ in range(100):
        draw = numbers.all_results(rng, 80, 3)
        seen = {sum(results(draw)), max(results(draw)) - min(results(draw))}
        assert int(draw.answer) in seen


@pytest.mark.parametrize(
    ("make", "change"),
    [
        (lambda rng: numbers.double_that(rng, 20), lambda value, _: {2 * value}),
        (lambda rng: numbers.change_that(rng, 300, 99), lambda value, by: {value + by, value - by}),
        (lambda rng: numbers.multiply_that(rng, 40), lambda value, by: {value * by}),
    ],
)
def test_that_is_the_last_result(
    make: Callable[[Random], Draw], change: Callable[[int, int], set[int]]
) -> None:
    rng = Random(3)
    for _ in range(100):
        draw = make(rng)
        by = int((re.findall(r"\d+", draw.prompts[0]) or ["2"])[0])
        assert int(draw.answer) in change(results(draw)[-1], by)
        assert int(draw.answer) >= 0


def test_the_baker_lives_where_the_person_moved_last() -> None:
    rng = Random(4)
    for _ in range(100):
        draw = words.place_of_job(rng, 3, 2)
        story = " ".join(user_lines(draw))
        job = re.search(r"the (\w+) live", draw.prompts[0])
        assert job is not None
        name = re.search(rf"(\w+) is an? {job[1]}\.", story)
        assert name is not None
        assert re.findall(rf"{name[1]} (?:lives in|moves to) (\w+)\.", story)[-1] == draw.answer


def test_the_key_ignores_how_the_earlier_question_was_asked() -> None:
    rng = Random(5)
    seen: dict[str, set[str]] = {}
    for _ in range(3000):
        instance = FAMILY.generate(rng, 2)
        if instance.key.startswith("2*("):
            seen.setdefault(instance.key, set()).add(instance.context.turns[0].content)
    assert any(len(questions) > 1 for questions in seen.values())


def test_earlier_sums_are_of_the_training_split() -> None:
    rng = Random(6)
    seen = 0
    for tier in FAMILY.tiers:
        for _ in range(100):
            for turn in FAMILY.generate(rng, tier).context.turns:
                for left, sign, right in re.findall(r"^(?:What is )?(\d+) ([-+]) (\d+)\??$", turn.content):
                    assert split_of(Instance("arithmetic", 1, "", "", f"{left}{sign}{right}")) == "train"
                    seen += 1
    assert seen > 20
