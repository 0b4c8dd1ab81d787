"""Even or odd, number of digits, single digits, neighbours and divisibility."""

from __future__ import annotations

from random import Random

from backend.pico.tasks.base import Draw, Family
from backend.pico.tasks.steps import compare_steps, divide_steps, sum_steps


def _parity(rng: Random, number: int) -> Draw:
    word, odd = rng.choice(("even", "odd")), number % 2
    thought = f"{number % 10} {'odd' if odd else 'even'}"
    if rng.random() < 0.6:
        prompts = [
            f"Is {number} even or odd?",
            f"Is the number {number} odd or even?",
            f"{number}: even or odd?",
            f"Tell me if {number} is even or odd.",
        ]
        return Draw(prompts, "Odd" if odd else "Even", f"parity {number}", thought)
    prompts = [f"Is {number} {word}?", f"Is {number} an {word} number?", f"Is the number {number} {word}?"]
    return Draw(prompts, "Yes" if (word == "odd") == bool(odd) else "No", f"{word} {number}", thought)


def _neighbour(rng: Random, number: int) -> Draw:
    if rng.random() < 0.5:
        word, start, result, sign = "after", number, number + 1, "+"
    else:
        word, start, result, sign = "before", number + 1, number, "-"
    prompts = [
        f"Which number comes {word} {start}?",
        f"What number comes right {word} {start}?",
        f"What comes right {word} {start}?",
        f"Give me the number right {word} {start}.",
    ]
    return Draw(prompts, str(result), f"{word} {start}", f"{start}{sign}1={result}")


def _digits(rng: Random, number: int) -> Draw:
    text, kind = str(number), rng.randrange(3)
    if kind == 0:
        prompts = [
            f"How many digits does {text} have?",
            f"How many digits are in {text}?",
            f"Count the digits of {text}.",
            f"What is the number of digits in {text}?",
        ]
        return Draw(prompts, str(len(text)), f"digits {text}", f"{text}:{len(text)}")
    word, place = (("first", 0), ("last", -1))[kind - 1]
    prompts = [
        f"What is the {word} digit of {text}?",
        f"Give me the {word} digit of {text}.",
        f"Which digit comes {word} in {text}?",
        f"Tell me the {word} digit of {text}.",
    ]
    return Draw(prompts, text[place], f"{word} digit {text}", f"{text}:{text[place]}")


def _tier1(rng: Random) -> Draw:
    return rng.choice((_parity, _neighbour))(rng, rng.randrange(rng.choice((100, 1000))))


def _tier2(rng: Random) -> Draw:
    number = rng.randrange(10 ** rng.randint(2, 6))
    return _digits(rng, number) if rng.random() < 0.7 else _parity(rng, number)


def _digit_sum(number: int) -> Draw:
    digits = [int(digit) for digit in str(number)]
    prompts = [
        f"What is the sum of the digits of {number}?",
        f"Add the digits of {number}.",
        f"What is the digit sum of {number}?",
        f"Add up all digits of {number}.",
    ]
    return Draw(prompts, str(sum(digits)), f"digit sum {number}", sum_steps(digits))


def _round(number: int, base: int) -> Draw:
    head, tail = divmod(number, base)
    up = tail >= base // 2
    zeros = str(base)[1:]
    thought = f"{head}|{compare_steps(tail, base // 2)};"
    thought += f"{head}+1={head + 1};{head + 1}{zeros}" if up else f"{head}{zeros}" if head else "0"
    prompts = [
        f"Round {number} to the nearest {base}.",
        f"What is {number} rounded to the nearest {base}?",
        f"Round to the nearest {base}: {number}",
        f"What do you get when you round {number} to the nearest {base}?",
    ]
    return Draw(prompts, str((head + up) * base), f"round {number} {base}", thought)


def _tier3(rng: Random) -> Draw:
    number = rng.randrange(10, 10000)
    return _digit_sum(number) if rng.random() < 0.5 else _round(number, rng.choice((10, 100)))


def _tier4(rng: Random) -> Draw:
    number, divisor = rng.randrange(10, 1000), rng.choice((3, 4, 5, 6, 9, 10))
    prompts = [
        f"Is {number} divisible by {divisor}?",
        f"Can {number} be divided by {divisor} without a rest?",
        f"Is {number} a multiple of {divisor}?",
        f"Does {divisor} divide {number}?",
    ]
    answer = "No" if number % divisor else "Yes"
    return Draw(prompts, answer, f"{number}%{divisor}", divide_steps(number, divisor))


def _tier5(rng: Random) -> Draw:
    number, divisor = rng.randrange(10, 1000), rng.randint(3, 12)
    prompts = [
        f"What is the remainder of {number} divided by {divisor}?",
        f"What is {number} mod {divisor}?",
        f"What is the remainder when {number} is divided by {divisor}?",
        f"Divide {number} by {divisor}. What is the remainder?",
    ]
    return Draw(prompts, str(number % divisor), f"{number} rest {divisor}", divide_steps(number, divisor))


FAMILY = Family("number_facts", {1: _tier1, 2: _tier2, 3: _tier3, 4: _tier4, 5: _tier5})
