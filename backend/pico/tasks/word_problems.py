"""Short stories that ask for a number."""

from __future__ import annotations

from random import Random

from backend.pico.tasks.base import Draw, Family
from backend.pico.tasks.steps import add_steps, divide_steps, multiply_steps, subtract_steps
from backend.pico.tasks.words import ITEMS, person

_GAIN = (
    "{who} has {a} {item} and gets {b} more. How many {item} does {who} have now?",
    "{who} has {a} {item}. {who} finds {b} more. How many {item} are there in total?",
    "There are {a} {item} in a box. {who} adds {b}. How many {item} are in the box?",
    "{who} bought {a} {item} on Monday and {b} on Tuesday. How many {item} did {who} buy?",
    "{who} has {a} {item} and {other} has {b}. How many {item} do they have together?",
)
_LOSS = (
    "{who} has {a} {item} and gives away {b}. How many {item} are left?",
    "{who} had {a} {item} and lost {b}. How many {item} does {who} have now?",
    "There are {a} {item} on the table. {who} takes {b}. How many {item} remain?",
    "{who} has {a} {item}. {other} takes {b} of them. How many {item} does {who} still have?",
    "{who} has {a} {item} and {other} has {b}. How many more {item} does {who} have?",
)
_GAIN_LOSS = (
    "{who} has {a} {item}, gets {b} more and then gives away {c}. How many {item} are left?",
    "There are {a} {item}. {who} adds {b} and takes {c}. How many {item} are there now?",
    "{who} had {a} {item}, bought {b} and lost {c}. How many {item} does {who} have now?",
    "{who} has {a} {item}. {other} gives {who} {b} more. Then {who} loses {c}. How many {item} remain?",
    "A box holds {a} {item}. {who} puts in {b} and {other} takes out {c}. How many {item} are in the box?",
)
_THREE = (
    "{who} has {a} {item}, {other} has {b} and {third} has {c}. How many {item} do they have together?",
    "{who} bought {a} {item} on Monday, {b} on Tuesday and {c} today. How many {item} did {who} buy?",
    "There are {a} {item} in one box, {b} in the next and {c} on the table. How many {item} are there?",
    "{who} has {a} {item}, finds {b} and then gets {c} more. How many {item} does {who} have now?",
)
_GROUPS = (
    "{who} has {a} bags with {b} {item} each. How many {item} does {who} have?",
    "There are {a} rows of {b} {item}. How many {item} are there?",
    "{who} fills {a} boxes with {b} {item} each. How many {item} is that in total?",
    "Each of {a} friends has {b} {item}. How many {item} do they have together?",
    "{who} buys {b} {item} every day for {a} days. How many {item} does {who} buy?",
)
_SHARES = (
    "{who} shares {a} {item} equally between {b} friends. How many {item} does each friend get?",
    "{who} puts {a} {item} into {b} equal bags. How many {item} are in each bag?",
    "{a} {item} stand in {b} equal rows. How many {item} are in each row?",
    "{who} has {a} {item} and gives them to {b} friends, the same number to each. How many does each get?",
)
_GROUPS_LOSS = (
    "{who} has {a} bags with {b} {item} each and gives away {c}. How many {item} are left?",
    "{who} fills {a} boxes with {b} {item} each, then loses {c} {item}. How many are left?",
    "There are {a} rows of {b} {item}. {who} takes {c}. How many {item} remain?",
    "{who} buys {b} {item} every day for {a} days and then {other} takes {c}. How many {item} are left?",
)
_TWO_GROUPS = (
    "{who} has {a} bags with {b} {item} each and {c} boxes with {d} {item} each."
    " How many {item} does {who} have?",
    "There are {a} rows of {b} {item} and {c} rows of {d} {item}. How many {item} are there in total?",
    "{who} buys {a} {item} for {b} euros each and {c} pens for {d} euros each. What does {who} pay?",
    "{who} has {a} boxes of {b} {item}. {other} has {c} boxes of {d}. How many {item} do they have together?",
)


def _story(rng: Random, templates: tuple[str, ...], *numbers: int) -> list[str]:
    people: dict[str, None] = {}
    while len(people) < 3:
        people[person(rng)] = None
    who, other, third = people
    item = rng.choice(ITEMS)
    names = dict(zip("abcd", numbers, strict=False))
    return [text.format(who=who, other=other, third=third, item=item, **names) for text in templates]


def _one_step(rng: Random, first: int, second: int) -> Draw:
    if rng.random() < 0.5:
        prompts = _story(rng, _GAIN, first, second)
        return Draw(prompts, str(first + second), f"{first}+{second}", add_steps(first, second))
    first, second = max(first, second), min(first, second)
    prompts = _story(rng, _LOSS, first, second)
    return Draw(prompts, str(first - second), f"{first}-{second}", subtract_steps(first, second))


def _tier1(rng: Random) -> Draw:
    return _one_step(rng, rng.randint(2, 60), rng.randint(1, 9))


def _tier2(rng: Random) -> Draw:
    return _one_step(rng, rng.randint(10, 60), rng.randint(10, 40))


def _tier3(rng: Random) -> Draw:
    first, second, third = rng.randint(10, 50), rng.randint(2, 20), rng.randint(1, 10)
    middle = first + second
    if rng.random() < 0.7:
        prompts = _story(rng, _GAIN_LOSS, first, second, third)
        thought = f"{add_steps(first, second)};{subtract_steps(middle, third)}"
        return Draw(prompts, str(middle - third), f"{first}+{second}-{third}", thought)
    prompts = _story(rng, _THREE, first, second, third)
    thought = f"{add_steps(first, second)};{add_steps(middle, third)}"
    return Draw(prompts, str(middle + third), f"{first}+{second}+{third}", thought)


def _tier4(rng: Random) -> Draw:
    groups, size = rng.randint(2, 12), rng.randint(2, 20)
    if rng.random() < 0.7:
        prompts, thought = _story(rng, _GROUPS, groups, size), multiply_steps(groups, size)
        return Draw(prompts, str(groups * size), f"{groups}*{size}", thought)
    total = groups * size
    return Draw(
        _story(rng, _SHARES, total, groups), str(size), f"{total}/{groups}", divide_steps(total, groups)
    )


def _tier5(rng: Random) -> Draw:
    groups, size = rng.randint(2, 12), rng.randint(5, 25)
    total, start = groups * size, multiply_steps(groups, size)
    if rng.random() < 0.6:
        loss = rng.randint(1, 9)
        prompts = _story(rng, _GROUPS_LOSS, groups, size, loss)
        thought = f"{start};{subtract_steps(total, loss)}"
        return Draw(prompts, str(total - loss), f"{groups}*{size}-{loss}", thought)
    others, each = rng.randint(2, 9), rng.randint(2, 9)
    prompts = _story(rng, _TWO_GROUPS, groups, size, others, each)
    thought = f"{start};{multiply_steps(others, each)};{add_steps(total, others * each)}"
    return Draw(prompts, str(total + others * each), f"{groups}*{size}+{others}*{each}", thought)


FAMILY = Family("word_problems", {1: _tier1, 2: _tier2, 3: _tier3, 4: _tier4, 5: _tier5})
