"""Features of a pair of sentences, symmetric in the pair."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from operator import gt
from pathlib import Path

from cache.verify.words import Sentence, read_sections, stem

NAMES = (
    "cosine",
    "cosine_squared",
    "overlap",  # IDF-weighted share of common stems
    "contained",  # the same, of the side with less left over
    "left_over_max",  # largest IDF left over, of the side with less
    "bigrams",
    "same_words",
    "same_order",
    "swapped_roles",
    "inversions",
    "numbers_differ",
    "number_missing",
    "numbers_equal",
    "negation_differs",
    "negation_missing",
    "negated_both",
    "opposite_words",  # or units, or nothing but the question word or a word of scope
    "scope_differs",
    "asks_differ",
    "asks_same",
    "names_differ",
    "name_missing",
    "names_equal",
    "length_ratio",
    "length",
    "first_word_same",
    "last_word_same",
)

OPPOSITES: dict[str, frozenset[str]] = {}
for _pair in Path(__file__).with_name("opposites.txt").read_text("utf-8").splitlines():
    _one, _other = _pair.split()
    OPPOSITES[_one] = OPPOSITES.get(_one, frozenset()) | {_other}
    OPPOSITES[_other] = OPPOSITES.get(_other, frozenset()) | {_one}

_WORDS = {
    name: frozenset(" ".join(lines).split())
    for name, lines in read_sections(Path(__file__).with_suffix(".txt")).items()
}
SCOPE = _WORDS["scope"]
_FUNCTION_WORDS = _WORDS["function"]
_ARTICLES = _WORDS["articles"]
LOOSE = _WORDS["loose"]
"""Opposites that often mean the same."""
_QUESTION_WORDS = _WORDS["question"]
_LIMITING = _WORDS["limiting"]
_UNITS = _WORDS["units"]
_NEGATING = ("un", "in", "im", "ir", "il", "dis", "non")
MAX_JOINED = 2
_SYMMETRIC_JOINS = _WORDS["joins"]


def pair_features(a: Sentence, b: Sentence, cosine: float, idf: Callable[[str], float]) -> list[float]:
    """Values in the order of NAMES."""
    stems_a, stems_b = a.stems, b.stems
    only_a = [word for key, word in stems_a.items() if key not in stems_b]
    only_b = [word for key, word in stems_b.items() if key not in stems_a]
    shared = sum(idf(word) for key, word in stems_a.items() if key in stems_b)
    idfs_a, idfs_b = [idf(word) for word in only_a], [idf(word) for word in only_b]
    left_a, left_b = sum(idfs_a), sum(idfs_b)
    left, total = min(left_a, left_b), 2 * shared + left_a + left_b
    return [
        cosine,
        cosine * cosine,
        2 * shared / total if total else 1.0,
        shared / (shared + left) if shared + left else 1.0,
        min(max(idfs_a, default=0.0), max(idfs_b, default=0.0)),
        _bigram_overlap(a, b),
        *_order(a, b),
        *_numbers(a.numbers, b.numbers),
        *_negations(a, b),
        float(has_opposites(a, b) or _is_only_scope(only_a, only_b)),
        float(len({word for word in [*only_a, *only_b] if word in SCOPE})),
        float(a.asks != b.asks and bool(a.asks) and bool(b.asks)),
        float(a.asks == b.asks),
        *_names(a, b),
        min(len(a.words), len(b.words)) / max(len(a.words), len(b.words), 1),
        min(len(a.words) + len(b.words), 80) / 40,
        float(a.words[:1] == b.words[:1]),
        float(a.words[-1:] == b.words[-1:]),
    ]


def _bigram_overlap(a: Sentence, b: Sentence) -> float:
    total = len(a.bigrams) + len(b.bigrams)
    return 2 * len(a.bigrams & b.bigrams) / total if total else 1.0


def _order(a: Sentence, b: Sentence) -> list[float]:
    """same_words, same_order, swapped_roles, inversions."""
    if a.words == b.words:
        return [1.0, 1.0, 0.0, 0.0]
    is_bag_equal = len(a.words) == len(b.words) and sorted(a.words) == sorted(b.words)
    positions = {word: i for i, word in enumerate(b.stems)}
    order = [positions[word] for word in a.stems if word in positions]
    inversions = sum(map(gt, order, order[1:]))
    swapped = float(inversions > 0 and has_swapped_roles(a.words, b.words))
    return [float(is_bag_equal), 0.0, swapped, float(min(inversions, 4))]


def has_swapped_roles(a: tuple[str, ...], b: tuple[str, ...]) -> bool:
    """Whether two words have exchanged their neighbours: "from A to B" and "from B to A".

    A neighbour that occurs twice tells nothing. "A and B" may be turned round without harm, and a phrase may
    move: "in 2019, who won", "who won in 2019".
    """
    before_a, after_a = _neighbours(a)
    before_b, after_b = _neighbours(b)
    for slots_a, slots_b in ((after_a, after_b), (before_a, before_b)):
        for neighbour, one in slots_a.items():
            other = slots_b.get(neighbour)
            if other is None or one == other or one not in before_b or other not in before_a:
                continue
            if one in _FUNCTION_WORDS or other in _FUNCTION_WORDS:
                continue
            if a.count(neighbour) > 1 or b.count(neighbour) > 1:
                continue
            has_come_back = before_a[other] == before_b[one] or after_a[other] == after_b[one]
            if has_come_back and not _are_joined(one, other, a):
                return True
    return False


def _extra_words(a: Sentence, b: Sentence) -> tuple[list[str], list[str]]:
    """Words that one has more often than the other."""
    one, other = Counter(map(stem, a.words)), Counter(map(stem, b.words))
    return [a.stems[key] for key in one - other], [b.stems[key] for key in other - one]


def _are_joined(one: str, other: str, words: tuple[str, ...]) -> bool:
    """Whether the two are neighbours, or have "and" or the like within a few words between them."""
    first, second = sorted((words.index(one), words.index(other)))
    between = words[first + 1 : second]
    return len(between) <= MAX_JOINED and (not between or not _SYMMETRIC_JOINS.isdisjoint(between))


def _neighbours(words: tuple[str, ...]) -> tuple[dict[str, str], dict[str, str]]:
    """The word before and the word after each; articles do not count, "" at both ends."""
    kept = [word for word in words if word not in _ARTICLES]
    before = dict(zip(kept, ["", *kept], strict=False))
    after = dict(zip(kept, [*kept[1:], ""], strict=False))
    return before, after


def _numbers(a: tuple[str, ...], b: tuple[str, ...]) -> list[float]:
    """numbers_differ, number_missing, numbers_equal."""
    if a == b:
        return [0.0, 0.0, float(bool(a))]
    one, other = Counter(a), Counter(b)
    more_a, more_b = bool(one - other), bool(other - one)
    return [float(more_a and more_b), float(more_a != more_b), 0.0]


def _negations(a: Sentence, b: Sentence) -> list[float]:
    """negation_differs (an odd number of them), negation_missing, negated_both."""
    one, other = a.num_negations, b.num_negations
    return [float((one + other) % 2), float((one > 0) != (other > 0)), float(one > 0 and other > 0)]


def has_opposites(a: Sentence, b: Sentence) -> bool:
    """Whether the sentences differ by opposites, by units, or by a negating prefix."""
    only_a, only_b = _extra_words(a, b)
    left = {word for word in only_b if word in OPPOSITES and word not in LOOSE}
    if left and any(not left.isdisjoint(OPPOSITES.get(word, ())) for word in only_a):
        return True
    if not _UNITS.isdisjoint(only_a) and not _UNITS.isdisjoint(only_b):
        return True
    return _has_negated(only_a, only_b) or _has_negated(only_b, only_a)


def _is_only_scope(only_a: list[str], only_b: list[str]) -> bool:
    """Whether only a question word differs ("why", "how"), or one word such as "first"."""
    if len(only_a) == len(only_b) == 1:
        return only_a[0] in _QUESTION_WORDS and only_b[0] in _QUESTION_WORDS
    left = [*only_a, *only_b]
    return len(left) == 1 and left[0] in _LIMITING


def _has_negated(longer: list[str], shorter: list[str]) -> bool:
    """ "unusable" in one, "usable" in the other."""
    return any(word.startswith(_NEGATING) and (word[2:] in shorter or word[3:] in shorter) for word in longer)


def _names(a: Sentence, b: Sentence) -> list[float]:
    """names_differ, name_missing, names_equal; the other side may write a name in lower case."""
    only_a, only_b = a.names.difference(b.words, b.names), b.names.difference(a.words, a.names)
    is_equal = bool(a.names and b.names) and not only_a and not only_b
    return [float(bool(only_a and only_b)), float(bool(only_a) != bool(only_b)), float(is_equal)]
