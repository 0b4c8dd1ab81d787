"""Sorting numbers or words."""

from __future__ import annotations

from random import Random

from backend.pico.tasks.base import Draw, Family, join_words
from backend.pico.tasks.steps import insertion_steps
from backend.pico.tasks.words import distinct

_UP = ("from smallest to largest", "in ascending order", "in increasing order")
_DOWN = ("from largest to smallest", "in descending order", "in decreasing order")


def _numbers(rng: Random, count: int, top: int, *, up_only: bool = False) -> Draw:
    numbers = rng.sample(range(top), count)
    ascending = up_only or rng.random() < 0.6
    order = rng.choice(_UP if ascending else _DOWN)
    text = join_words([str(number) for number in numbers])
    prompts = [
        f"Sort {text} {order}.",
        f"Sort these numbers {order}: {text}",
        f"Put these numbers {order}: {text}",
        f"Order {text} {order}.",
        f"Arrange {order}: {text}",
    ]
    if ascending:
        prompts += [f"Sort these numbers: {text}", f"Sort: {text}", f"Sort the list {text}."]
    ranked = [str(number) for number in sorted(numbers, reverse=not ascending)]
    direction = "up" if ascending else "down"
    steps = insertion_steps([str(number) for number in numbers], ranked)
    return Draw(prompts, join_words(ranked), f"{text} {direction}", f"{direction};{steps}")


def _words(rng: Random, count: int) -> Draw:
    words = distinct(rng, count, invented=False)
    text = join_words(words)
    thought = f"letters;{insertion_steps(words, sorted(words), ' ', ' ')}"
    prompts = [
        f"Sort these words alphabetically: {text}",
        f"Put these words in alphabetical order: {text}",
        f"Sort {text} from A to Z.",
        f"Order alphabetically: {text}",
        f"Arrange the words {text} in alphabetical order.",
    ]
    return Draw(prompts, join_words(sorted(words)), text, thought)


def _tier1(rng: Random) -> Draw:
    return _numbers(rng, 3, rng.choice((10, 30, 100)))


def _tier2(rng: Random) -> Draw:
    return _numbers(rng, 4, rng.choice((20, 100)))


def _tier3(rng: Random) -> Draw:
    return _words(rng, 3) if rng.random() < 0.5 else _numbers(rng, rng.randint(5, 6), 100)


def _tier4(rng: Random) -> Draw:
    return _words(rng, rng.randint(4, 5)) if rng.random() < 0.5 else _numbers(rng, rng.randint(5, 7), 1000)


def _tier5(rng: Random) -> Draw:
    return _words(rng, rng.randint(6, 8)) if rng.random() < 0.5 else _numbers(rng, rng.randint(8, 10), 1000)


FAMILY = Family("sorting", {1: _tier1, 2: _tier2, 3: _tier3, 4: _tier4, 5: _tier5})
