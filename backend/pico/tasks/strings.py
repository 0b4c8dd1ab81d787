"""Repeat, pick, reverse, replace and join words or letters."""

from __future__ import annotations

from random import Random

from backend.pico.tasks.base import Draw, Family, join_words
from backend.pico.tasks.words import NOUNS, distinct

_ORDINALS = ("first", "second", "third", "fourth", "fifth")
_LETTERS = "abcdefghijklmnopqrstuvwxyz"


def _numbered(words: list[str]) -> str:
    return " ".join(f"{place} {word}" for place, word in enumerate(words, 1))


def _echo(rng: Random, *, invented: bool = False) -> Draw:
    words = distinct(rng, rng.randint(1, 4), invented=invented)
    text = " ".join(words)
    prompts = [
        f"Say {text}",
        f'Say "{text}".',
        f"Repeat after me: {text}",
        f"Repeat: {text}",
        f"Reply with: {text}",
        f'Reply with "{text}".',
        f"Answer with exactly: {text}",
        f"Echo: {text}",
        f"Write {text}",
    ]
    return Draw(prompts, text, f"echo {text}", "copy")


def _end(rng: Random, *, invented: bool = False) -> Draw:
    words = distinct(rng, rng.randint(2, 5), invented=invented)
    text, last = " ".join(words), rng.random() < 0.5
    which = "last" if last else "first"
    prompts = [
        f"What is the {which} word of: {text}?",
        f'What is the {which} word in "{text}"?',
        f"Give me the {which} word: {text}",
        f"Name the {which} word of: {text}",
    ]
    return Draw(prompts, words[-1 if last else 0], f"{which} {text}", which)


def _times(rng: Random) -> Draw:
    word, count = rng.choice(NOUNS), rng.randint(2, 4)
    prompts = [
        f"Repeat the word {word} {count} times.",
        f'Write "{word}" {count} times.',
        f"Say {word} {count} times.",
        f"Repeat {word} {count} times.",
    ]
    return Draw(prompts, " ".join([word] * count), f"{word}*{count}", str(count))


def _reverse(rng: Random, words: list[str], what: str) -> Draw:
    text = " ".join(words)
    prompts = [
        f"Reverse the order of these {what}s: {text}",
        f"Write these {what}s in reverse order: {text}",
        f"Reverse: {text}",
        f"Write backwards: {text}",
    ]
    return Draw(
        prompts,
        " ".join(reversed(words)),
        f"reverse {text}",
        _numbered(words),
    )


def _nth(rng: Random, *, invented: bool = False) -> Draw:
    words = distinct(rng, rng.randint(3, 5), invented=invented)
    place, text = rng.randrange(len(words)), " ".join(words)
    prompts = [
        f"What is the {_ORDINALS[place]} word of: {text}?",
        f'Which word is {_ORDINALS[place]} in "{text}"?',
        f"Give me word number {place + 1} of: {text}",
        f"Name the {_ORDINALS[place]} word of: {text}",
    ]
    return Draw(
        prompts,
        words[place],
        f"{place} of {text}",
        f"to {place + 1}: {_numbered(words[: place + 1])}",
    )


def _replace(rng: Random, *, invented: bool = False) -> Draw:
    words = distinct(rng, rng.randint(3, 5), invented=invented)
    old, new, text = words[0], words[1], words[2:]
    text.insert(rng.randint(0, len(text)), old)
    source = " ".join(text)
    prompts = [
        f"Replace {old} with {new} in: {source}",
        f'Change "{old}" to "{new}" in: {source}',
        f'Replace the word "{old}" by "{new}": {source}',
        f"Write {new} instead of {old} in: {source}",
    ]
    answer = " ".join(new if word == old else word for word in text)
    walk = " ".join(f"{word}={new}" if word == old else word for word in text)
    return Draw(prompts, answer, f"{old}>{new} {source}", f"{old}={new}; {walk}")


def _separate(rng: Random, *, invented: bool = False) -> Draw:
    words = distinct(rng, rng.randint(2, 5), invented=invented)
    text, (name, mark) = (
        " ".join(words),
        rng.choice((("commas", ", "), ("dashes", "-"), ("plus signs", " + "))),
    )
    prompts = [
        f"Join these words with {name}: {text}",
        f"Put {name} between these words: {text}",
        f"Write these words with {name} between them: {text}",
        f"Connect the words with {name}: {text}",
    ]
    return Draw(prompts, mark.join(words), f"{name} {text}", mark.strip())


def _tier1(rng: Random) -> Draw:
    return rng.choice((_echo, _end, _times))(rng)


def _tier2(rng: Random) -> Draw:
    kind = rng.randrange(5)
    if kind == 0:
        return _reverse(rng, distinct(rng, rng.randint(2, 5), invented=False), "word")
    if kind == 1:
        return _reverse(rng, rng.sample(_LETTERS, rng.randint(3, 5)), "letter")
    return (_nth, _replace, _separate)[kind - 2](rng)


def _tier3(rng: Random) -> Draw:
    kind = rng.randrange(3)
    if kind == 0:
        return _reverse(rng, rng.sample(_LETTERS, rng.randint(6, 9)), "letter")
    if kind == 1:
        return rng.choice((_echo, _end, _nth, _replace, _separate))(rng, invented=True)
    words = distinct(rng, 4)
    sequence = [rng.choice(words) for _ in range(rng.randint(5, 8))]
    text = join_words(sequence)
    prompts = [
        f"Remove the duplicates: {text}",
        f"Remove repeated words from this list: {text}",
        f"List each word once: {text}",
        f"Write this list without duplicates: {text}",
    ]
    marks = ["-" if word in sequence[:place] else "+" for place, word in enumerate(sequence)]
    thought = " ".join(f"{word}{mark}" for word, mark in zip(sequence, marks, strict=True))
    return Draw(prompts, join_words(list(dict.fromkeys(sequence))), f"unique {text}", f"once: {thought}")


def _tier4(rng: Random) -> Draw:
    first, second = rng.choice(NOUNS), rng.choice(NOUNS)
    thought = f"{' '.join(first)}; {' '.join(second)}"
    if rng.random() < 0.5:
        prompts = [
            f"Spell {first} {second} letter by letter.",
            f'Write "{first} {second}" with dashes between letters.',
            f"Spell these words with dashes: {first} {second}",
            f'Spell out "{first} {second}" with a dash between letters.',
        ]
        return Draw(prompts, "-".join(first) + " " + "-".join(second), f"spell {first} {second}", thought)
    prompts = [
        f"Write {first} {second} in capital letters.",
        f"Convert to upper case: {first} {second}",
        f'Write "{first} {second}" in upper case.',
        f"Put these words in capitals: {first} {second}",
    ]
    return Draw(prompts, f"{first} {second}".upper(), f"upper {first} {second}", thought)


def _tier5(rng: Random) -> Draw:
    first, second = rng.choice(NOUNS), rng.choice(NOUNS)
    prompts = [
        f'Reverse the letters of each word in "{first} {second}".',
        f"Spell each word backwards: {first} {second}",
        f"Write each word backwards: {first} {second}",
        f"Turn the letters of each word around: {first} {second}",
    ]
    thought = "; ".join(f"{' '.join(word)} - {' '.join(reversed(word))}" for word in (first, second))
    return Draw(prompts, f"{first[::-1]} {second[::-1]}", f"backwards {first} {second}", thought)


FAMILY = Family("strings", {1: _tier1, 2: _tier2, 3: _tier3, 4: _tier4, 5: _tier5})
