"""Word lists shared by the families, and invented names, for copying unseen words."""

from __future__ import annotations

from random import Random

INVENTED_SHARE = 0.1
CATEGORIES: dict[str, tuple[str, ...]] = {
    "animal": (
        "dog", "cat", "horse", "cow", "sheep", "lion", "tiger", "bear", "wolf", "fox", "rabbit", "mouse",
        "duck", "eagle", "fish", "frog", "goat", "pig", "whale", "owl",
    ),
    "fruit": (
        "apple", "pear", "plum", "banana", "orange", "lemon", "cherry", "grape", "peach", "mango", "melon",
        "kiwi", "fig", "lime", "papaya",
    ),
    "colour": ("red", "blue", "green", "yellow", "black", "white", "brown", "pink", "purple", "grey"),
    "vehicle": ("car", "bus", "train", "truck", "plane", "ship", "boat", "bicycle", "tram", "van"),
    "tool": ("hammer", "saw", "drill", "axe", "shovel", "wrench", "rake", "chisel", "pliers", "file"),
    "furniture": ("chair", "table", "bed", "desk", "sofa", "shelf", "bench", "stool", "cupboard", "wardrobe"),
}  # fmt: skip
NOUNS: tuple[str, ...] = tuple(word for words in CATEGORIES.values() for word in words)
FIRST_NAMES = (
    "Anna", "Ben", "Clara", "David", "Emma", "Felix", "Grace", "Hugo", "Ivy", "Jack", "Kate", "Leo", "Maria",
    "Noah", "Olga", "Paul", "Rosa", "Sam", "Tom", "Vera", "Will", "Yara", "Zoe", "Omar", "Lina", "Max",
    "Nina", "Peter",
)  # fmt: skip
CITIES = (
    "Oslo", "Paris", "Rome", "Berlin", "Madrid", "Vienna", "Lisbon", "Dublin", "Prague", "Athens", "London",
    "Tokyo", "Cairo", "Lima", "Delhi", "Boston", "Geneva", "Milan", "Turin", "Sydney",
)  # fmt: skip
JOBS = (
    "teacher", "doctor", "baker", "farmer", "pilot", "nurse", "painter", "driver", "cook", "lawyer",
    "gardener", "engineer", "writer", "singer", "dentist",
)  # fmt: skip
ITEMS = (
    "apples", "books", "coins", "pens", "stamps", "cards", "marbles", "balls", "eggs", "cakes", "shells",
    "stones", "tickets", "flowers", "boxes",
)  # fmt: skip
_ONSETS = ("b", "d", "f", "g", "k", "l", "m", "n", "p", "r", "s", "t", "v", "z", "br", "tr", "st", "sh", "ch")
_VOWELS = ("a", "e", "i", "o", "u")
_CODAS = ("", "", "n", "r", "l", "s", "k", "m")


def invented_word(rng: Random) -> str:
    """Return a pronounceable lower-case word of two or three syllables that is in no list."""
    parts = [rng.choice(_ONSETS) + rng.choice(_VOWELS) for _ in range(rng.choice((2, 2, 2, 3)))]
    return "".join(parts) + rng.choice(_CODAS)


def with_article(word: str) -> str:
    """Return the word after "a" or "an"."""
    return f"{'an' if word[0] in _VOWELS else 'a'} {word}"


def person(rng: Random) -> str:
    """Return a first name, sometimes invented."""
    return invented_word(rng).capitalize() if rng.random() < INVENTED_SHARE else rng.choice(FIRST_NAMES)


def city(rng: Random) -> str:
    """Return a city, sometimes invented."""
    return invented_word(rng).capitalize() if rng.random() < INVENTED_SHARE else rng.choice(CITIES)


def noun(rng: Random) -> str:
    """Return a noun, sometimes invented."""
    return invented_word(rng) if rng.random() < INVENTED_SHARE else rng.choice(NOUNS)


def distinct(rng: Random, count: int, *, invented: bool = True) -> list[str]:
    """Return distinct nouns in random order."""
    found: dict[str, None] = {}
    while len(found) < count:
        found[noun(rng) if invented else rng.choice(NOUNS)] = None
    return list(found)
