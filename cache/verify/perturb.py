"""Training pairs of our own: changes to a question that keep its answer, and changes that do not."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from cache.verify.features import OPPOSITES
from cache.verify.words import read_sections

_LISTS = read_sections(Path(__file__).with_suffix(".txt"))
LIMITS, LEADS = _LISTS["limits"], _LISTS["leads"]
MONTHS = "January February March April May June July August September October November December".split()
_NUMBER = r"(?<![\w.,])\d+(?![\w,]|\.\d)"
_NAME = r"(?<=[a-z,] )[A-Z][a-z]{2,}(?: [A-Z][a-z]+)*\b"
_LONG_WORD = r"(?<=[a-z] )[a-z]{5,}\b"
_VERBS = "is|are|was|were|could|do|does|did|should|would|has|have"
_SMALL_NUMBERS = "zero one two three four five six seven eight nine ten eleven twelve".split()
_FUNCTION_WORDS = frozenset(
    "the a an and or of in on for to is are was be it that this what how why who do does as".split()
)


@dataclass(frozen=True, slots=True)
class Corpus:
    """Words that changes draw from, taken from the training questions."""

    names: Sequence[str]
    nouns: Sequence[str]


def corpus_of(texts: Sequence[str]) -> Corpus:
    """Collect the names and the longer lower-case words that occur several times."""
    names, nouns = (
        Counter(found for text in texts for found in re.findall(pattern, text))
        for pattern in (_NAME, _LONG_WORD)
    )
    return Corpus(
        names=sorted(name for name, count in names.items() if count > 2),
        nouns=sorted(word for word, count in nouns.items() if 5 < count < 300),
    )


Match = re.Match[str]
Change = Callable[[str, Random, Corpus], str | None]
"""A changed copy of the text; None where the change does not apply."""


def _at(pattern: str, replacement: Callable[[Match, Random, Corpus], str | None]) -> Change:
    """A change of one match, drawn at random."""
    compiled = re.compile(pattern)

    def change(text: str, random: Random, corpus: Corpus) -> str | None:
        found = list(compiled.finditer(text))
        match = random.choice(found) if found else None
        new = None if match is None else replacement(match, random, corpus)
        if match is None or new is None or new == match[0]:
            return None
        return text[: match.start()] + new + text[match.end() :]

    return change


def _either(*changes: Change) -> Change:
    """The first that applies."""

    def change(text: str, random: Random, corpus: Corpus) -> str | None:
        return next((new for each in changes if (new := each(text, random, corpus)) is not None), None)

    return change


def _by_table(name: str) -> Change:
    """Replace a word by one that stands on the other side of "=" in a list."""
    table: defaultdict[str, list[str]] = defaultdict(list)
    for line in _LISTS[name]:
        old, _, new = line.partition("=")
        table[old].append(new)
    return _at(rf"\b({'|'.join(map(re.escape, table))})\b", lambda m, random, _: random.choice(table[m[0]]))


def _other_number(match: Match, random: Random, corpus: Corpus) -> str | None:
    value = int(match[0])
    if random.random() < 0.2:
        other = value * random.choice((2, 10))
    elif value > 12:
        other = value + random.choice((-10, -5, -3, -2, -1, 1, 2, 3, 5, 10))
    else:
        other = random.randint(1, 20)
    return str(other) if other > 0 else None


def _other_name(match: Match, random: Random, corpus: Corpus) -> str | None:
    other = random.choice(corpus.names)
    return None if other in match.string else other


def _other_word(match: Match, random: Random, corpus: Corpus) -> str | None:
    other = random.choice(corpus.nouns)
    return None if other[:4] == match[0][:4] else other


def _negation(match: Match, random: Random, corpus: Corpus) -> str:
    """ "Is coffee not healthy?", but "what is not healthy?" """
    verb, subject = match[1], match[2] or ""
    if random.random() < 0.4:
        return {"can": "can't", "will": "won't"}.get(verb.lower(), f"{verb}n't") + subject
    return f"{verb}{subject} {random.choice(('not', 'not', 'never'))}"


def _swapped(match: Match, random: Random, corpus: Corpus) -> str | None:
    one, between, other = match.groups()
    words = {one.lower(), other.lower()}
    return None if words & _FUNCTION_WORDS or len(words) == 1 else f"{other}{between}{one}"


def _other_question_word(match: Match, random: Random, corpus: Corpus) -> str:
    others = {
        "Why": ("How", "When"),
        "When": ("Where", "Why", "How"),
        "Where": ("When", "Why"),
        "How": ("Why", "When"),
        "Who": ("When", "Where"),
        "What is": ("Who is", "Where is", "Why is"),
        "Should": ("How should", "When should"),
    }
    return random.choice(others[match[0]])


def _with_limit(text: str, limit: str) -> str:
    return f"{text.rstrip('?.! ')} {limit}{'?' if text.rstrip().endswith('?') else ''}"


def _in_front(limit: str, text: str) -> str:
    return f"{limit[0].upper()}{limit[1:]}, {text[0].lower()}{text[1:]}"


_SCOPE = "only always never most first last previous next still already almost other".split()
_RELATION = (
    r"(?:is |are |was )?(?:\w+er|more \w+|less \w+|better|worse) than|over|instead of|into|before|after|"
    r"beat|causes?|without|on|for|in|of|to"
)
CHANGES: dict[str, tuple[Change, float]] = {
    "number": (_at(_NUMBER, _other_number), 9.0),
    "name": (_at(_NAME, _other_name), 2.0),
    "word": (_at(_LONG_WORD, _other_word), 1.5),
    "negation": (
        _either(
            _at(rf"(?i)\b({_VERBS})(?: not\b|n't\b)", lambda m, *_: m[1]),
            _at(rf"(?i)^({_VERBS}|can|will)( (?:(?:the|a|an|my) )?\w+)\b(?! not)", _negation),
            _at(
                rf"(?i)(?<=\w )({_VERBS}|can|will)\b(?! not|n't)( (?:i|you|he|she|it|we|they|one|people)\b)?",
                _negation,
            ),
        ),
        3.0,
    ),
    "opposite": (
        _at(rf"\b({'|'.join(OPPOSITES)})\b", lambda m, r, _: r.choice(sorted(OPPOSITES[m[0]]))),
        2.0,
    ),
    "roles": (
        _either(
            _at(r"(?<=\bfrom )((?:the )?[\w'-]+)( to | into )((?:the )?[\w'-]+)", _swapped),
            _at(
                rf"\b([A-Za-z][\w'-]{{2,}})( (?:{_RELATION}) )((?:the |a |an )?[A-Za-z][\w'-]{{2,}})",
                _swapped,
            ),
        ),
        4.0,
    ),
    "question word": (
        _at(r"^(?:Why|When|Where|How(?! [mlfob])|Who|What is|Should)(?= )", _other_question_word),
        0.7,
    ),
    "limit": (lambda text, random, _: _with_limit(text, random.choice(LIMITS)), 1.0),
    "only": (_at(r"(?<=[a-z] )(?=[a-z]{4,}\b)", lambda m, random, _: f"{random.choice(_SCOPE)} "), 0.5),
    "unit": (_by_table("units"), 5.0),
}
"""Changes after which another answer is right, with weights."""


def _contraction(match: Match, random: Random, corpus: Corpus) -> str:
    table = {"cannot": "can't", "can't": "cannot", "What is": "What's", "What's": "What is"}
    table |= {"I am": "I'm", "I'm": "I am"}
    return table.get(match[0]) or (f"{match[1]}n't" if match[2] == " not" else f"{match[1]} not")


def _misspelt(match: Match, random: Random, corpus: Corpus) -> str | None:
    """Two letters of a longer word change places, or one is missing."""
    word, i = match[0], random.randrange(1, len(match[0]) - 2)
    if word in OPPOSITES:
        return None
    return word[:i] + (word[i + 1] + word[i] + word[i + 2 :] if random.random() < 0.5 else word[i + 1 :])


def _respelt(match: Match, random: Random, corpus: Corpus) -> str | None:
    """5 ↔ five, 1000 ↔ 1,000 ↔ 1k."""
    if not match[0].isdigit():
        return str(_SMALL_NUMBERS.index(match[0]))
    value = int(match[0])
    if 1 < value <= 12:
        return _SMALL_NUMBERS[value]
    is_long = value > 2100 or match[0].endswith("000")
    return random.choice((f"{value:,}", re.sub("000$", "k", match[0]))) if is_long else None


def _courteous(text: str, random: Random, corpus: Corpus) -> str:
    if random.random() < 0.4:
        return text.rstrip("?.! ") + random.choice((", please?", " please", "? Thanks!", "??", ", thank you"))
    first = text[0].lower() if text[1:2].islower() and text[:1] != "I" else text[0]
    return f"{random.choice(LEADS)} {first}{text[1:]}"


def _reformed(text: str, random: Random, corpus: Corpus) -> str:
    """Case, punctuation and spaces."""
    bare = text.rstrip("?.! ")
    return random.choice((text.lower(), bare, bare.lower(), f" {text} ", text.replace(",", "")))


SAME: tuple[Change, ...] = (
    _at(rf"\b(?:({_VERBS})( not|n't)|cannot|can't|What is|What's|I am|I'm)\b", _contraction),
    _courteous,
    _reformed,
    _at(r"(?<= )[a-z]{6,}\b", _misspelt),
    _at(rf"{_NUMBER}|(?<= )(?:{'|'.join(_SMALL_NUMBERS[2:])})(?= )", _respelt),
    _at(r"\b([A-Za-z][\w'-]*)( (?:and|or|vs\.?) )([A-Za-z][\w'-]*)(?!.*respectively)", _swapped),
    _by_table("synonyms"),
    _by_table("synonyms"),
)
"""Changes after which the same answer is right."""


def _date(random: Random) -> tuple[str, str]:
    """A date in two forms."""
    year, month, day = random.randint(1980, 2025), random.choice(MONTHS), random.randint(1, 28)
    roll = random.random()
    if roll < 0.4:
        return str(year), str(year)
    if roll < 0.58:
        return f"{month} {year}", f"{month[:3]} {year}"
    forms = f"{day} {month} {year}", f"{month[:3]} {day} {year}", f"{month} {day:02}, {year}"
    return f"{month} {day}, {year}", random.choice(forms)


def _dated_pair(text: str, random: Random) -> tuple[str, str, bool]:
    """A question at one date in two forms, or at two dates."""
    date, form = _date(random)
    other = form if random.random() < 0.5 else _date(random)[0]
    word = random.choice(("as of", "in", "by", "before", "since"))
    place = _in_front if random.random() < 0.5 else lambda limit, text: _with_limit(text, limit)
    return _with_limit(text, f"{word} {date}"), place(f"{word} {other}", text), other in (date, form)


def _limited_pair(text: str, random: Random) -> tuple[str, str, bool]:
    """A limit at the end and in front, or two limits."""
    one, other = random.sample(LIMITS, 2)
    if random.random() < 0.5:
        return _with_limit(text, one), _in_front(one, text), True
    second = _in_front(other, text) if random.random() < 0.6 else _with_limit(text, other)
    return _with_limit(text, one), second, False


def make_pair(one: str, other: str, random: Random, corpus: Corpus) -> tuple[str, str, bool, str] | None:
    """A pair from two wordings of one question (which may be equal): (a, b, same, what was changed)."""
    roll = random.random()
    if roll < 0.08:
        return *_dated_pair(one, random), "date"
    if roll < 0.13:
        return *_limited_pair(one, random), "limit"
    kind = "same"
    if random.random() < 0.6:
        names = list(CHANGES)
        kind = random.choices(names, [weight for _, weight in CHANGES.values()])[0]
        changed = CHANGES[kind][0](other, random, corpus)
        if changed is None:
            return None
        other = changed
    for _ in range(random.choice((0, 1, 1, 2)) if kind != "same" or one != other else random.choice((1, 2))):
        other = random.choice(SAME)(other, random, corpus) or other
    if one == other:
        return None
    pair = (one, other) if random.random() < 0.5 else (other, one)
    return *pair, kind == "same", kind
