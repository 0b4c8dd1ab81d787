"""Even or odd, number of digits, single digits, neighbours and divisibility."""

from __future__ import annotations

from random import Random

from backend.pico.tasks.base import Draw, Family


def _parity(rng: Random, number: int) -> Draw:
    word, odd = rng.choice(("even", "odd")), number % 2
    if rng.random() < 0.6:
        prompts = [
            f"Is {number} even or odd?",
            f"Is the number {number} odd or even?",
            f"{number}: even or odd?",
        ]
        return Draw(prompts, "Odd" if odd else "Even", f"parity {number}")
    prompts = [f"Is {number} {word}?", f"Is {number} an {word} number?"]
    return Draw(prompts, "Yes" if (word == "odd") == bool(odd) else "No", f"{word} {number}")


def _neighbour(rng: Random, number: int) -> Draw:
    if rng.random() < 0.5:
        prompts = [f"Which number comes after {number}?", f"What number comes right after {number}?"]
        return Draw(prompts, str(number + 1), f"after {number}")
    prompts = [f"Which number comes before {number + 1}?", f"What number comes right before {number + 1}?"]
    return Draw(prompts, str(number), f"before {number + 1}")


def _digits(rng: Random, number: int) -> Draw:
    text, kind = str(number), rng.randrange(3)
    if kind == 0:
        prompts = [f"How many digits does {text} have?", f"How many digits are in {text}?"]
        return Draw(prompts, str(len(text)), f"digits {text}")
    word, place = (("first", 0), ("last", -1))[kind - 1]
    prompts = [f"What is the {word} digit of {text}?", f"Give me the {word} digit of {text}."]
    return Draw(prompts, text[place], f"{word} digit {text}")


def _tier1(rng: Random) -> Draw:
    return rng.choice((_parity, _neighbour))(rng, rng.randrange(rng.choice((100, 1000))))


def _tier2(rng: Random) -> Draw:
    number = rng.randrange(10 ** rng.randint(2, 6))
    return _digits(rng, number) if rng.random() < 0.7 else _parity(rng, number)


def _tier3(rng: Random) -> Draw:
    number = rng.randrange(10, 10000)
    if rng.random() < 0.5:
        prompts = [f"What is the sum of the digits of {number}?", f"Add the digits of {number}."]
        return Draw(prompts, str(sum(int(digit) for digit in str(number))), f"digit sum {number}")
    base = rng.choice((10, 100))
    prompts = [f"Round {number} to the nearest {base}.", f"What is {number} rounded to the nearest {base}?"]
    return Draw(prompts, str((number + base // 2) // base * base), f"round {number} {base}")


def _tier4(rng: Random) -> Draw:
    number, divisor = rng.randrange(10, 1000), rng.choice((3, 4, 5, 6, 9, 10))
    prompts = [
        f"Is {number} divisible by {divisor}?",
        f"Can {number} be divided by {divisor} without a rest?",
    ]
    return Draw(prompts, "No" if number % divisor else "Yes", f"{number}%{divisor}")


def _tier5(rng: Random) -> Draw:
    number, divisor = rng.randrange(10, 1000), rng.randint(3, 12)
    prompts = [f"What is the remainder of {number} divided by {divisor}?", f"What is {number} mod {divisor}?"]
    return Draw(prompts, str(number % divisor), f"{number} rest {divisor}")


FAMILY = Family("number_facts", {1: _tier1, 2: _tier2, 3: _tier3, 4: _tier4, 5: _tier5})
