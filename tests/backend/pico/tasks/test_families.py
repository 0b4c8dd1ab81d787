"""Every family generates, grades and splits as specified."""

from __future__ import annotations

import re
from random import Random

import pytest

from backend.pico.curriculum import TAUGHT_TIERS
from backend.pico.tasks import FAMILIES, Instance, Split, split_of
from backend.pico.tasks.base import Draw, Family

CELLS = [(name, tier) for name, family in FAMILIES.items() for tier in family.tiers]
DRAWS = 150


def draw(name: str, tier: int, seed: int = 0, count: int = DRAWS) -> list[Instance]:
    rng = Random(f"{name}:{tier}:{seed}")
    return [FAMILIES[name].generate(rng, tier) for _ in range(count)]


@pytest.mark.parametrize(("name", "tier"), CELLS)
def test_grader_accepts_the_answer_and_rejects_others(name: str, tier: int) -> None:
    family = FAMILIES[name]
    for instance in draw(name, tier):
        assert instance.prompt
        assert instance.answer == instance.answer.strip() != ""
        assert family.grade(instance, instance.answer)
        assert family.grade(instance, f" {instance.answer}. ")
        assert not family.grade(instance, "")
        assert not family.grade(instance, f"7 {instance.answer} or something else")


@pytest.mark.parametrize(("name", "tier"), CELLS)
def test_same_seed_gives_the_same_instances(name: str, tier: int) -> None:
    assert draw(name, tier) == draw(name, tier)
    assert draw(name, tier) != draw(name, tier, seed=1)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_prompt_belongs_to_one_split_only(name: str) -> None:
    found: dict[str, set[Split]] = {}
    for tier in FAMILIES[name].tiers:
        for instance in draw(name, tier, count=1500):
            prompt = (
                re.sub(r"\W+", " ", instance.prompt.lower()) if name in ("smalltalk",) else instance.prompt
            )
            found.setdefault(f"{prompt} {instance.context}", set()).add(split_of(instance))
    assert all(len(splits) == 1 for splits in found.values())
    assert {"train", "validation", "test"} == {split for splits in found.values() for split in splits}


@pytest.mark.parametrize("name", FAMILIES)
def test_the_split_ignores_the_phrasing(name: str) -> None:
    for instance in draw(name, 1):
        other = Instance(name, instance.tier, "in other words", instance.answer, instance.key)
        assert split_of(other) == split_of(instance)


@pytest.mark.parametrize("split", ["train", "validation", "test"])
@pytest.mark.parametrize("name", FAMILIES)
def test_generate_in_stays_in_its_split(name: str, split: Split) -> None:
    rng = Random(3)
    for tier in FAMILIES[name].tiers:
        for _ in range(20):
            assert split_of(FAMILIES[name].generate_in(rng, tier, split)) == split


def test_the_split_has_the_promised_proportions() -> None:
    splits = [split_of(Instance("f", 1, "", "", str(number))) for number in range(5000)]
    assert abs(splits.count("train") / 5000 - 0.80) < 0.03
    assert abs(splits.count("validation") / 5000 - 0.08) < 0.03


def test_a_tier_without_instances_of_a_split_raises() -> None:
    narrow = Family("narrow", {1: lambda rng: Draw(["p"], "a", "only")})
    found = split_of(Instance("narrow", 1, "p", "a", "only"))
    other: Split = "test" if found != "test" else "train"
    with pytest.raises(RuntimeError, match="'narrow' tier 1"):
        narrow.generate_in(Random(0), 1, other)


def test_every_family_teaches_the_lower_tiers() -> None:
    assert len(FAMILIES) >= 14
    assert all(set(TAUGHT_TIERS) <= set(family.tiers) for family in FAMILIES.values())


@pytest.mark.parametrize("tier", [1, 2, 3])
def test_arithmetic_answers_are_right(tier: int) -> None:
    for instance in draw("arithmetic", tier):
        found = re.fullmatch(r"(\d+)([-+*])(\d+)", instance.key)
        assert found is not None
        left, right = int(found[1]), int(found[3])
        assert int(instance.answer) == {"+": left + right, "-": left - right, "*": left * right}[found[2]]


@pytest.mark.parametrize("tier", [1, 2])
def test_sorting_answers_are_sorted(tier: int) -> None:
    for instance in draw("sorting", tier):
        numbers = [int(number) for number in instance.answer.split(", ")]
        assert numbers == sorted(numbers, reverse=instance.key.endswith("down"))
        assert sorted(map(int, re.findall(r"\d+", instance.prompt))) == sorted(numbers)


@pytest.mark.parametrize("tier", [1, 2, 3, 4, 5])
def test_extraction_answers_are_in_the_text(tier: int) -> None:
    assert all(instance.answer in instance.prompt for instance in draw("extraction", tier))
