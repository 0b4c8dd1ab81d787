"""Larger, smaller, largest and smallest numbers."""

from __future__ import annotations

from random import Random

from backend.pico.tasks.base import Draw, Family, join_words
from backend.pico.tasks.steps import compare_steps, extreme_steps, sign_of

_LARGER = ("larger", "bigger", "greater", "higher")
_SMALLER = ("smaller", "lower", "less")


def _pair(rng: Random, left: str, right: str, left_is_larger: bool, thought: str) -> Draw:
    wants_larger = rng.random() < 0.5
    word = rng.choice(_LARGER if wants_larger else _SMALLER)
    prompts = [
        f"Which is {word}, {left} or {right}?",
        f"Which number is {word}: {left} or {right}?",
        f"{left} or {right}: which is {word}?",
        f"What is {word}, {left} or {right}?",
        f"Which one is {word}: {left}, {right}?",
    ]
    answer = left if left_is_larger == wants_larger else right
    sought = "max" if wants_larger else "min"
    return Draw(prompts, answer, f"{left} {right} {sought}", f"{thought};{sought} {answer}")


def _yes_no(rng: Random, left: int, right: int) -> Draw:
    wants_larger = rng.random() < 0.5
    word = rng.choice(("larger", "bigger", "greater") if wants_larger else ("smaller", "less"))
    symbol = ">" if wants_larger else "<"
    holds = left > right if wants_larger else left < right
    prompts = [
        f"Is {left} {word} than {right}?",
        f"Is {left} {symbol} {right}?",
        f"{left} {symbol} {right}, yes or no?",
        f"Yes or no: is {left} {word} than {right}?",
    ]
    # The comparison asked about, the true relation, and the verdict.
    thought = f"{left}{symbol}{right}:{sign_of(left, right)} {'yes' if holds else 'no'}"
    return Draw(prompts, "Yes" if holds else "No", f"{left}{symbol}{right}", thought)


def _two(rng: Random, top: int) -> Draw:
    left, right = rng.sample(range(top), 2)
    if rng.random() < 0.4:
        return _yes_no(rng, left, right)
    return _pair(rng, str(left), str(right), left > right, compare_steps(left, right))


def _extreme(rng: Random, count: int, top: int) -> Draw:
    numbers = rng.sample(range(top), count)
    wants_max = rng.random() < 0.5
    words = ("largest", "biggest", "greatest", "highest") if wants_max else ("smallest", "lowest")
    word, text = rng.choice(words), join_words([str(number) for number in numbers])
    prompts = [
        f"Which number is the {word}: {text}?",
        f"What is the {word} of {text}?",
        f"Find the {word} number: {text}",
        f"Which of these numbers is the {word}: {text}?",
    ]
    answer = max(numbers) if wants_max else min(numbers)
    thought = extreme_steps(numbers, largest=wants_max)
    return Draw(prompts, str(answer), f"{text} {'max' if wants_max else 'min'}", thought)


def _tier1(rng: Random) -> Draw:
    return _two(rng, 100)


def _tier2(rng: Random) -> Draw:
    return _two(rng, 1000) if rng.random() < 0.4 else _extreme(rng, rng.randint(3, 4), 100)


def _tier3(rng: Random) -> Draw:
    if rng.random() < 0.5:
        return _extreme(rng, rng.randint(4, 6), 1000)
    left, right = rng.sample(range(1, 1000), 2)
    thought = compare_steps(left / 10, right / 10)
    return _pair(rng, f"{left / 10:.1f}", f"{right / 10:.1f}", left > right, thought)


def _tier4(rng: Random) -> Draw:
    first, second, third, fourth = (rng.randint(1, 40) for _ in range(4))
    while first + second == third + fourth:
        fourth = rng.randint(1, 40)
    left, right = first + second, third + fourth
    # Spaced as in the answer, which copies one of the two.
    thought = f"{first} + {second}={left};{third} + {fourth}={right};{compare_steps(left, right)}"
    return _pair(rng, f"{first} + {second}", f"{third} + {fourth}", left > right, thought)


def _second_steps(numbers: list[int], *, largest: bool) -> str:
    """Return the steps: the extreme wanted, then each number with the best two: `max;45:45;12:45,12`."""
    parts = ["max" if largest else "min"]
    for count, number in enumerate(numbers, start=1):
        best = sorted(numbers[:count], reverse=largest)[:2]
        parts.append(f"{number}:{','.join(map(str, best))}")
    return ";".join(parts)


def _tier5(rng: Random) -> Draw:
    numbers = rng.sample(range(1, 200), rng.randint(5, 7))
    text = join_words([str(number) for number in numbers])
    wants_max = rng.random() < 0.5
    word = "largest" if wants_max else "smallest"
    prompts = [
        f"What is the second {word} of {text}?",
        f"Which number is the second {word}: {text}?",
        f"Find the second {word} number: {text}",
        f"Which of these numbers is the second {word}: {text}?",
    ]
    answer = sorted(numbers, reverse=wants_max)[1]
    key = f"{text} second {'max' if wants_max else 'min'}"
    return Draw(prompts, str(answer), key, _second_steps(numbers, largest=wants_max))


FAMILY = Family("comparison", {1: _tier1, 2: _tier2, 3: _tier3, 4: _tier4, 5: _tier5})
