"""Continue a sequence of numbers."""

from __future__ import annotations

from random import Random

from backend.pico.tasks.base import Draw, Family, join_words


def _next(rng: Random, values: list[int]) -> Draw:
    text = join_words([str(value) for value in values[:-1]])
    prompts = [
        f"What comes next: {text}?",
        f"What is the next number: {text}, ...?",
        f"Continue the sequence: {text}",
        f"Which number comes next? {text}",
    ]
    return Draw(prompts, str(values[-1]), text)


def _steps(rng: Random, start: int, step: int, shown: int) -> Draw:
    values = [start + step * place for place in range(shown + 1)]
    return _next(rng, values if rng.random() < 0.7 else values[::-1])


def _tier1(rng: Random) -> Draw:
    return _steps(rng, rng.randint(0, 80), rng.choice((1, 2, 5, 10)), rng.randint(3, 5))


def _tier2(rng: Random) -> Draw:
    return _steps(rng, rng.randint(0, 60), rng.randint(1, 9), rng.randint(3, 5))


def _tier3(rng: Random) -> Draw:
    if rng.random() < 0.5:
        return _steps(rng, rng.randint(0, 99), rng.randint(11, 25), 4)
    start, factor = rng.randint(1, 30), rng.choice((2, 3, 10))
    return _next(rng, [start * factor**place for place in range(5)])


def _tier4(rng: Random) -> Draw:
    value, step, growth = rng.randint(0, 30), rng.randint(1, 9), rng.randint(1, 4)
    values = [value]
    for place in range(5):
        values.append(values[-1] + step + growth * place)
    return _next(rng, values)


def _tier5(rng: Random) -> Draw:
    values = [rng.randint(1, 9), rng.randint(1, 20)]
    for _ in range(5):
        values.append(values[-1] + values[-2])
    return _next(rng, values)


FAMILY = Family("sequences", {1: _tier1, 2: _tier2, 3: _tier3, 4: _tier4, 5: _tier5})
