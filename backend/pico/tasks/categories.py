"""Words that belong to a category, and words that do not."""

from __future__ import annotations

from random import Random

from backend.pico.tasks.base import Draw, Family, join_words
from backend.pico.tasks.steps import count_steps, walk_to
from backend.pico.tasks.words import CATEGORIES

_PLURALS = {
    "animal": "animals", "fruit": "fruits", "colour": "colours", "vehicle": "vehicles", "tool": "tools",
    "furniture": "pieces of furniture",
}  # fmt: skip
_SINGULARS = {name: f"a {name}" for name in CATEGORIES} | {
    "animal": "an animal",
    "furniture": "a piece of furniture",
}


def _mixed(rng: Random, hits: int, misses: int) -> tuple[str, list[str], list[str]]:
    """Return a category, words in random order, and those of them that belong to it, in the same order."""
    name = rng.choice(list(CATEGORIES))
    good = rng.sample(CATEGORIES[name], hits)
    others = [word for other, words in CATEGORIES.items() if other != name for word in words]
    words = good + rng.sample(others, misses)
    rng.shuffle(words)
    return name, words, [word for word in words if word in good]


def _pick(rng: Random, misses: int) -> Draw:
    name, words, good = _mixed(rng, 1, misses)
    text = join_words(words)
    prompts = [
        f"Which of these is {_SINGULARS[name]}: {text}?",
        f"Which word is {_SINGULARS[name]}: {text}?",
        f"Find the {name}: {text}",
        f"{text}: which one is {_SINGULARS[name]}?",
    ]
    return Draw(prompts, good[0], f"{name} {text}", walk_to(good[0], words))


def _tier1(rng: Random) -> Draw:
    return _pick(rng, 2)


def _tier2(rng: Random) -> Draw:
    if rng.random() < 0.5:
        return _pick(rng, rng.randint(3, 4))
    name = rng.choice(list(CATEGORIES))
    other = rng.choice([key for key in CATEGORIES if key != name])
    odd = rng.choice(CATEGORIES[other])
    words = [*rng.sample(CATEGORIES[name], 3), odd]
    rng.shuffle(words)
    text = join_words(words)
    prompts = [
        f"Which word does not belong: {text}?",
        f"Find the odd one out: {text}",
        f"Which is the odd one out: {text}?",
    ]
    # Asked by the most frequent kind, which is easier to learn than the rare one.
    kinds = "; ".join(f"{word} {other if word == odd else name}" for word in words)
    return Draw(prompts, odd, f"odd {text}", f"{kinds}; not {name}: {walk_to(odd, words)}")


def _tier3(rng: Random) -> Draw:
    name, words, good = _mixed(rng, rng.randint(2, 3), rng.randint(2, 3))
    text, plural = join_words(words), _PLURALS[name]
    prompts = [
        f"List the {plural}: {text}",
        f"Which of these are {plural}: {text}?",
        f"Find the {plural}: {text}",
        f"{text}: which ones are {plural}?",
    ]
    steps = "; ".join(f"{word} {'+' if word in good else '-'}" for word in words)
    return Draw(prompts, join_words(good), f"list {name} {text}", steps)


def _tier4(rng: Random) -> Draw:
    name, words, good = _mixed(rng, rng.randint(1, 5), rng.randint(1, 5))
    text, plural = join_words(words), _PLURALS[name]
    prompts = [
        f"How many {plural} are in this list: {text}?",
        f"How many of these are {plural}: {text}?",
        f"Count the {plural}: {text}",
        f"{text}: how many {plural} are there?",
    ]
    steps = count_steps(words, [word in good for word in words], "; ")
    return Draw(prompts, str(len(good)), f"count {name} {text}", steps)


def _tier5(rng: Random) -> Draw:
    name, words, good = _mixed(rng, rng.randint(3, 5), rng.randint(3, 5))
    text, plural = join_words(words), _PLURALS[name]
    prompts = [
        f"Sort the {plural} alphabetically: {text}",
        f"List the {plural} in alphabetical order: {text}",
        f"Put the {plural} in alphabetical order: {text}",
        f"{text}: sort the {plural} from A to Z",
    ]
    return Draw(prompts, join_words(sorted(good)), f"sort {name} {text}", _insertions(words, good))


def _insertions(words: list[str], good: list[str]) -> str:
    """Return one step per word: the sorted list so far for a hit, a minus for any other word."""
    steps: list[str] = []
    found: list[str] = []
    for word in words:
        if word in good:
            found = sorted([*found, word])
        steps.append(f"{word}: {' '.join(found) if word in good else '-'}")
    return "; ".join(steps)


FAMILY = Family("categories", {1: _tier1, 2: _tier2, 3: _tier3, 4: _tier4, 5: _tier5})
