"""Continue a sequence of numbers.

The steps of thought find the rule from two neighbours, then apply it: `47-35=12;59+12=71`.
"""

from __future__ import annotations

from random import Random

from backend.pico.tasks.base import Draw, Family, join_words
from backend.pico.tasks.steps import add_steps, multiply_steps, subtract_steps


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


def _steps(rng: Random, start: int, step: int, shown: int) -> Draw:
    values = [start + step * place for place in range(shown + 1)]
    if rng.random() < 0.7:
        thought = f"{subtract_steps(values[1], values[0])};{add_steps(values[-2], step)}"
        return _next(values, thought)
    values.reverse()
    thought = f"{subtract_steps(values[0], values[1])};{subtract_steps(values[-2], step)}"
    return _next(values, thought)


def _tier1(rng: Random) -> Draw:
    return _steps(rng, rng.randint(0, 80), rng.choice((1, 2, 5, 10)), rng.randint(3, 5))


def _tier2(rng: Random) -> Draw:
    return _steps(rng, rng.randint(0, 60), rng.randint(1, 9), rng.randint(3, 5))


def _tier3(rng: Random) -> Draw:
    if rng.random() < 0.5:
        return _steps(rng, rng.randint(0, 99), rng.randint(11, 25), 4)
    start, factor = rng.randint(1, 30), rng.choice((2, 3, 10))
    values = [start * factor**place for place in range(5)]
    thought = f"{values[1]}/{start}={factor};{multiply_steps(values[-2], factor)}"
    if factor == 10:
        thought = f"{values[1]}/{start}=10;{values[-2]}*10={values[-1]}"
    return _next(values, thought)


def _tier4(rng: Random) -> Draw:
    value, step, growth = rng.randint(0, 30), rng.randint(1, 9), rng.randint(1, 4)
    values = [value]
    for place in range(5):
        values.append(values[-1] + step + growth * place)
    before, last = values[-3] - values[-4], values[-2] - values[-3]
    thought = ";".join(
        (
            subtract_steps(values[-3], values[-4]),
            subtract_steps(values[-2], values[-3]),
            f"{last}-{before}={growth}",
            f"{last}+{growth}={last + growth}",
            add_steps(values[-2], last + growth),
        )
    )
    return _next(values, thought)


def _tier5(rng: Random) -> Draw:
    values = [rng.randint(1, 9), rng.randint(1, 20)]
    for _ in range(5):
        values.append(values[-1] + values[-2])
    return _next(values, add_steps(values[-2], values[-3]))


FAMILY = Family("sequences", {1: _tier1, 2: _tier2, 3: _tier3, 4: _tier4, 5: _tier5})
