"""Counting items, words or letters."""

from __future__ import annotations

from random import Random

from backend.pico.tasks.base import Draw, Family, join_words
from backend.pico.tasks.steps import count_steps
from backend.pico.tasks.words import NOUNS, distinct

_LETTERS = "abcdefghijklmnopqrstuvwxyz"


def _items(rng: Random, low: int, high: int) -> Draw:
    words = distinct(rng, rng.randint(low, high))
    text = join_words(words)
    prompts = [
        f"How many items are in this list: {text}?",
        f"Count the items: {text}",
        f"How many words are in this list: {text}?",
        f"How many things are listed here: {text}?",
        f"Count the words: {text}",
    ]
    return Draw(prompts, str(len(words)), f"items {text}", f"{words[-1]} {len(words)}")


def _occurrences(rng: Random, pool: list[str], what: str, low: int, high: int) -> Draw:
    target, others = pool[0], pool[1:]
    hits = rng.randint(0, high // 2 + 1)
    misses = rng.randint(max(0, low - hits), max(0, high - hits))
    sequence = [target] * hits + [rng.choice(others) for _ in range(misses)]
    rng.shuffle(sequence)
    text = " ".join(sequence)
    prompts = [
        f'How many times does the {what} "{target}" appear in: {text}?',
        f"How often does {target} occur in: {text}?",
        f"Count the {what} {target} in: {text}",
        f"How many times is {target} in: {text}?",
        f'Count how often "{target}" appears: {text}',
    ]
    thought = f"of {target}: {count_steps(sequence, [item == target for item in sequence])}"
    return Draw(prompts, str(hits), f"{target} in {text}", thought)


def _words(rng: Random, low: int, high: int) -> Draw:
    return _occurrences(rng, distinct(rng, 3, invented=False), "word", low, high)


def _letters(rng: Random, low: int, high: int) -> Draw:
    return _occurrences(rng, rng.sample(_LETTERS, 4), "letter", low, high)


def _tier1(rng: Random) -> Draw:
    return _items(rng, 1, 6)


def _tier2(rng: Random) -> Draw:
    if rng.random() < 0.7:
        return _items(rng, 2, 8)
    letters = rng.sample(_LETTERS, rng.randint(2, 8))
    text = " ".join(letters)
    prompts = [
        f"How many letters are in: {text}?",
        f"Count the letters: {text}",
        f"How many letters are listed here: {text}?",
        f"What is the number of letters in: {text}?",
    ]
    return Draw(prompts, str(len(letters)), f"letters {text}", f"{letters[-1]} {len(letters)}")


def _tier3(rng: Random) -> Draw:
    most = rng.choice((5, 12))
    return _words(rng, 2, most) if rng.random() < 0.5 else _letters(rng, 2, most)


def _tier4(rng: Random) -> Draw:
    numbers = [rng.randrange(100) for _ in range(rng.randint(4, 8))]
    text, parity = join_words([str(number) for number in numbers]), rng.randrange(2)
    hits = [number % 2 == parity for number in numbers]
    word = ("even", "odd")[parity]
    prompts = [
        f"How many {word} numbers are in {text}?",
        f"Count the {word} numbers: {text}",
        f"How many of these numbers are {word}: {text}?",
        f"How many of {text} are {word}?",
        f"Give me the count of {word} numbers in this list: {text}",
    ]
    thought = f"{word}: {count_steps([str(number) for number in numbers], hits)}"
    return Draw(prompts, str(sum(hits)), f"{word} {text}", thought)


def _tier5(rng: Random) -> Draw:
    word = rng.choice(NOUNS)
    letter = rng.choice(word) if rng.random() < 0.7 else rng.choice(_LETTERS)
    extra = rng.choice(NOUNS)
    prompts = [
        f'How many times does the letter "{letter}" appear in "{word} {extra}"?',
        f'How many "{letter}" are in "{word} {extra}"?',
        f"How often does the letter {letter} occur in the words {word} {extra}?",
        f'Count the letter "{letter}" in: {word} {extra}',
        f"Count each {letter} in {word} {extra}.",
    ]
    letters = list(word + extra)
    thought = f"of {letter}: {count_steps(letters, [found == letter for found in letters])}"
    return Draw(prompts, str(letters.count(letter)), f"{letter} {word} {extra}", thought)


FAMILY = Family("counting", {1: _tier1, 2: _tier2, 3: _tier3, 4: _tier4, 5: _tier5})
