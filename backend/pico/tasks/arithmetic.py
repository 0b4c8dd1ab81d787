"""Sums, differences, products and exact quotients of integers."""

from __future__ import annotations

from random import Random

from backend.pico.tasks.base import Draw, Family
from backend.pico.tasks.steps import add_steps, divide_steps, multiply_steps, subtract_steps

_NAMES = {"+": "plus", "-": "minus", "*": "times", "/": "divided by"}
_SYMBOLS = {"+": ("+",), "-": ("-",), "*": ("*", "x", "×"), "/": ("/", "÷", ":")}
_STEPS = {"+": add_steps, "-": subtract_steps, "*": multiply_steps, "/": divide_steps}


def _phrasings(rng: Random, left: int, op: str, right: int) -> list[str]:
    symbol = rng.choice(_SYMBOLS[op])
    spaced, tight, named = (
        f"{left} {symbol} {right}",
        f"{left}{symbol}{right}",
        f"{left} {_NAMES[op]} {right}",
    )
    prompts = [f"What is {spaced}?"] * 3 + [
        f"{spaced}", f"{spaced} =", f"{spaced} = ?", f"{tight}", f"{tight}=", f"Calculate {spaced}.",
        f"Compute {tight}.", f"What is {tight}?", f"What's {spaced}?", f"What is {named}?",
        f"How much is {spaced}?",
        f"How much is {named}?", f"Work out {spaced}.", f"Tell me {named}.", f"What does {spaced} equal?",
        f"What is the result of {spaced}?", f"Solve: {spaced}", f"Can you calculate {spaced}?",
        f"{spaced}? Answer with the number only.", f"What is {spaced}? Reply with just the number.",
    ]  # fmt: skip
    if op == "+":
        prompts += [
            f"Add {left} and {right}.",
            f"Add {right} to {left}.",
            f"What is the sum of {left} and {right}?",
        ]
    elif op == "-":
        prompts += [f"Subtract {right} from {left}.", f"Take {right} away from {left}."]
    elif op == "*":
        prompts += [f"Multiply {left} by {right}.", f"What is the product of {left} and {right}?"]
    else:
        prompts += [f"Divide {left} by {right}.", f"How many times does {right} go into {left}?"]
    return prompts


def _draw(rng: Random, left: int, op: str, right: int) -> Draw:
    value = _value(left, op, right)
    prompts = _phrasings(rng, left, op, right)
    return Draw(prompts, str(value), f"{left}{op}{right}", _STEPS[op](left, right))


def _value(left: int, op: str, right: int) -> int:
    return {"+": left + right, "-": left - right, "*": left * right, "/": left // max(right, 1)}[op]


def _sum_or_difference(rng: Random, left: int, right: int) -> Draw:
    if rng.random() < 0.5:
        return _draw(rng, left, "+", right)
    return _draw(rng, max(left, right), "-", min(left, right))


def _tier1(rng: Random) -> Draw:
    left, right = rng.randint(0, 99), rng.randint(0, 9)
    if rng.random() < 0.3:
        left = rng.randint(0, 20)
    if left >= right and rng.random() < 0.5:
        return _draw(rng, left, "-", right)
    return _draw(rng, *((left, "+", right) if rng.random() < 0.7 else (right, "+", left)))


def _tier2(rng: Random) -> Draw:
    return _sum_or_difference(rng, rng.randint(10, 99), rng.randint(10, 99))


def _tier3(rng: Random) -> Draw:
    if rng.random() < 0.4:
        return _draw(rng, rng.randint(0, 12), "*", rng.randint(0, 12))
    return _sum_or_difference(rng, rng.randint(100, 999), rng.randint(10, 999))


def _expression(text: str, first: int, ops: str, second: int, third: int) -> Draw:
    """Build a question with two operations, the first on the first two numbers."""
    middle = _value(first, ops[0], second)
    prompts = [
        f"What is {text}?", f"{text} =", f"Calculate {text}.", text, f"Compute {text}.", f"{text} = ?",
        f"How much is {text}?", f"What is the result of {text}?", f"Work out {text}.", f"Solve: {text}",
    ]  # fmt: skip
    thought = f"{_STEPS[ops[0]](first, second)};{_STEPS[ops[1]](middle, third)}"
    return Draw(prompts, str(_value(middle, ops[1], third)), text.replace(" ", ""), thought)


def _quotient(rng: Random) -> Draw:
    divisor = rng.randint(2, 9)
    return _draw(rng, divisor * rng.randint(11, 99), "/", divisor)


def _tier4(rng: Random) -> Draw:
    kind = rng.random()
    if kind < 0.4:
        return _draw(rng, rng.randint(11, 99), "*", rng.randint(2, 9))
    if kind < 0.6:
        return _quotient(rng)
    first, second, third = (rng.randint(1, 50) for _ in range(3))
    op = "-" if first + second >= third and rng.random() < 0.5 else "+"
    return _expression(f"{first} + {second} {op} {third}", first, f"+{op}", second, third)


def _tier5(rng: Random) -> Draw:
    kind = rng.randrange(3)
    if kind == 0:
        return _draw(rng, rng.randint(11, 99), "*", rng.randint(11, 99))
    if kind == 1:
        return _sum_or_difference(rng, rng.randint(1000, 99999), rng.randint(1000, 99999))
    first, second, third = rng.randint(1, 20), rng.randint(1, 20), rng.randint(2, 9)
    return _expression(f"({first} + {second}) * {third}", first, "+*", second, third)


FAMILY = Family("arithmetic", {1: _tier1, 2: _tier2, 3: _tier3, 4: _tier4, 5: _tier5})
