"""Short stories with one number to find."""

from __future__ import annotations

from random import Random

from backend.pico.tasks.base import Draw, Family
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


def _story(rng: Random, templates: tuple[str, ...], first: int, second: int) -> list[str]:
    who, other, item = person(rng), person(rng), rng.choice(ITEMS)
    return [text.format(who=who, other=other, item=item, a=first, b=second) for text in templates]


def _one_step(rng: Random, first: int, second: int) -> Draw:
    if rng.random() < 0.5:
        return Draw(_story(rng, _GAIN, first, second), str(first + second), f"{first}+{second}")
    first, second = max(first, second), min(first, second)
    return Draw(_story(rng, _LOSS, first, second), str(first - second), f"{first}-{second}")


def _tier1(rng: Random) -> Draw:
    return _one_step(rng, rng.randint(2, 60), rng.randint(1, 9))


def _tier2(rng: Random) -> Draw:
    return _one_step(rng, rng.randint(10, 60), rng.randint(10, 40))


def _tier3(rng: Random) -> Draw:
    first, second, third = rng.randint(10, 50), rng.randint(2, 20), rng.randint(1, 10)
    who, item = person(rng), rng.choice(ITEMS)
    prompts = [
        f"{who} has {first} {item}, gets {second} more and then gives away {third}."
        f" How many {item} are left?",
        f"There are {first} {item}. {who} adds {second} and takes {third}. How many {item} are there now?",
    ]
    return Draw(prompts, str(first + second - third), f"{first}+{second}-{third}")


def _tier4(rng: Random) -> Draw:
    groups, size = rng.randint(2, 12), rng.randint(2, 20)
    who, item = person(rng), rng.choice(ITEMS)
    prompts = [
        f"{who} has {groups} bags with {size} {item} each. How many {item} does {who} have?",
        f"There are {groups} rows of {size} {item}. How many {item} are there?",
    ]
    return Draw(prompts, str(groups * size), f"{groups}*{size}")


def _tier5(rng: Random) -> Draw:
    groups, size, loss = rng.randint(2, 12), rng.randint(5, 25), rng.randint(1, 9)
    who, item = person(rng), rng.choice(ITEMS)
    prompts = [
        f"{who} has {groups} bags with {size} {item} each and gives away {loss}. How many {item} are left?",
        f"{who} fills {groups} boxes with {size} {item} each, then loses {loss} {item}. How many are left?",
    ]
    return Draw(prompts, str(groups * size - loss), f"{groups}*{size}-{loss}")


FAMILY = Family("word_problems", {1: _tier1, 2: _tier2, 3: _tier3, 4: _tier4, 5: _tier5})
