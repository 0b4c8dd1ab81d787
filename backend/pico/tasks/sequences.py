"""Continue a sequence of numbers.

The steps derive the rule from the first two differences (the direction of the numbers, and of the
differences), name it and apply it: `35,47:<;47-35=12;59-47=12;12,12:=;plus 12;59+12=71`.
"""

from __future__ import annotations

from random import Random

from backend.pico.tasks.base import Draw, Family, join_words
from backend.pico.tasks.steps import add_steps, compare_steps, multiply_steps, subtract_steps


def _next(values: list[int], thought: str) -> Draw:
    text = join_words([str(value) for value in values[:-1]])
    prompts = [
        f"What comes next: {text}?",
        f"What is the next number: {text}, ...?",
        f"Continue the sequence: {text}",
        f"Which number comes next? {text}",
        f"{text}, ... What comes next?",
        f"Find the next number: {text}",
        f"What is the next number in the sequence {text}?",
    ]
    return Draw(prompts, str(values[-1]), text, thought)


def _first_gaps(values: list[int]) -> str:
    """Return the direction, the first two differences (larger number first), and whether they are equal."""
    first, second, third = values[:3]
    gaps = [subtract_steps(max(pair), min(pair)) for pair in ((first, second), (second, third))]
    alike = compare_steps(abs(second - first), abs(third - second))
    return ";".join((compare_steps(first, second), *gaps, alike))


def _steps(rng: Random, start: int, step: int, shown: int) -> Draw:
    values = [start + step * place for place in range(shown + 1)]
    if rng.random() < 0.7:
        return _next(values, f"{_first_gaps(values)};plus {step};{add_steps(values[-2], step)}")
    values.reverse()
    return _next(values, f"{_first_gaps(values)};minus {step};{subtract_steps(values[-2], step)}")


def _tier1(rng: Random) -> Draw:
    return _steps(rng, rng.randint(0, 80), rng.choice((1, 2, 5, 10)), rng.randint(3, 5))


def _tier2(rng: Random) -> Draw:
    return _steps(rng, rng.randint(0, 60), rng.randint(1, 9), rng.randint(3, 5))


def _tier3(rng: Random) -> Draw:
    if rng.random() < 0.5:
        return _steps(rng, rng.randint(0, 99), rng.randint(11, 25), 4)
    start, factor = rng.randint(1, 30), rng.choice((2, 3, 10))
    values = [start * factor**place for place in range(5)]
    last = f"{values[-2]}*10={values[-1]}" if factor == 10 else multiply_steps(values[-2], factor)
    return _next(values, f"{_first_gaps(values)};times {factor};{last}")


def _tier4(rng: Random) -> Draw:
    value, step, growth = rng.randint(0, 30), rng.randint(1, 9), rng.randint(1, 4)
    values = [value]
    for place in range(5):
        values.append(values[-1] + step + growth * place)
    last = values[-2] - values[-3]
    parts = (
        _first_gaps(values),
        f"growing {growth}",
        subtract_steps(values[-2], values[-3]),
        f"{last}+{growth}={last + growth}",
        add_steps(values[-2], last + growth),
    )
    return _next(values, ";".join(parts))


def _tier5(rng: Random) -> Draw:
    values = [rng.randint(1, 9), rng.randint(1, 20)]
    for _ in range(5):
        values.append(values[-1] + values[-2])
    return _next(values, add_steps(values[-2], values[-3]))


FAMILY = Family("sequences", {1: _tier1, 2: _tier2, 3: _tier3, 4: _tier4, 5: _tier5})
