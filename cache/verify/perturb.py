"""Training pairs of our own: changes to a question that keep its answer, and changes that do not."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from cache.verify.features import OPPOSITES
from cache.verify.templates import read_sections

Change = Callable[[str, Random, "Corpus"], str | None]
"""A changed copy of the text; None where the change does not apply."""

_NUMBER = re.compile(r"(?<![\w.,])\d+(?![\w,]|\.\d)")
_NAME = re.compile(r"(?<=[a-z,] )[A-Z][a-z]{2,}(?: [A-Z][a-z]+)*\b")
_AUXILIARY = re.compile(
    r"\b(is|are|was|were|can|could|do|does|did|should|would|will|has|have)\b(?! not|n't)", re.I
)
_NEGATION = re.compile(r"\b(is|are|was|were|could|do|does|did|should|would|has|have)( not\b|n't\b)", re.I)
_SHORT_NEGATION = {"can": "can't", "will": "won't"}
_FROM_TO = re.compile(r"\bfrom ((?:the )?[\w'-]+) (to|into) ((?:the )?[\w'-]+)")
_AROUND = re.compile(
    r"\b([A-Za-z][\w'-]{2,}) ((?:is |are |was )?(?:\w+er|more \w+|less \w+|better|worse) than|over|"
    r"instead of|into|before|after|beat|causes?|without|on|for|in|of|to) ((?:the |a |an )?[A-Za-z][\w'-]{2,})"
)
_AND = re.compile(r"\b([A-Za-z][\w'-]*) (and|or|vs\.?) ([A-Za-z][\w'-]*)")
_WORDS_OF = dict(enumerate("zero one two three four five six seven eight nine ten eleven twelve".split()))
_LISTS = read_sections(Path(__file__).with_suffix(".txt"))
LIMITS, LEADS = _LISTS["limits"], _LISTS["leads"]
SYNONYMS, UNITS = ([tuple(line.split("=")) for line in _LISTS[name]] for name in ("synonyms", "units"))
MONTHS = "January February March April May June July August September October November December".split()
_FUNCTION = frozenset(
    "the a an and or of in on for to is are was be it that this what how why who do does as".split()
)


@dataclass(frozen=True, slots=True)
class Corpus:
    """Words that changes draw from, taken from the training questions."""

    names: Sequence[str]
    nouns: Sequence[str]


def corpus_of(texts: Sequence[str]) -> Corpus:
    """Collect the names and the longer lower-case words that occur several times."""
    names: dict[str, int] = {}
    nouns: dict[str, int] = {}
    for text in texts:
        for name in _NAME.findall(text):
            names[name] = names.get(name, 0) + 1
        for word in re.findall(r"(?<=[a-z] )[a-z]{5,}\b", text):
            nouns[word] = nouns.get(word, 0) + 1
    return Corpus(
        names=sorted(name for name, count in names.items() if count > 2),
        nouns=sorted(word for word, count in nouns.items() if 5 < count < 300),
    )


def _substitute(match: re.Match[str], new: str) -> str:
    return match.string[: match.start()] + new + match.string[match.end() :]


def _pick(pattern: re.Pattern[str], text: str, random: Random) -> re.Match[str] | None:
    found = list(pattern.finditer(text))
    return random.choice(found) if found else None


def change_number(text: str, random: Random, corpus: Corpus) -> str | None:
    """2016 → 2014."""
    found = _pick(_NUMBER, text, random)
    if found is None:
        return None
    value = int(found[0])
    other = (
        value + random.choice((-10, -5, -3, -2, -1, 1, 2, 3, 5, 10)) if value > 12 else random.randint(1, 20)
    )
    if random.random() < 0.2:
        other = value * random.choice((2, 10))
    return _substitute(found, str(other)) if other not in (value, 0) and other > 0 else None


def change_name(text: str, random: Random, corpus: Corpus) -> str | None:
    """India → France."""
    found = _pick(_NAME, text, random)
    other = random.choice(corpus.names)
    return _substitute(found, other) if found and other not in text else None


def change_word(text: str, random: Random, corpus: Corpus) -> str | None:
    """Another word in place of one that carries meaning."""
    found = _pick(re.compile(r"(?<=[a-z] )[a-z]{5,}\b"), text, random)
    other = random.choice(corpus.nouns)
    return _substitute(found, other) if found and other[:4] != found[0][:4] else None


def negate(text: str, random: Random, corpus: Corpus) -> str | None:
    """Insert or take out a "not"."""
    found = _pick(_NEGATION, text, random)
    if found is not None:
        return _substitute(found, found[1])
    found = _pick(_AUXILIARY, text, random)
    if found is None:
        return None
    if random.random() < 0.4:
        return _substitute(found, _SHORT_NEGATION.get(found[0].lower(), f"{found[0]}n't"))
    # "Is coffee not healthy?", but "what is not healthy?"
    subject = (
        r"(?: (?:i|you|he|she|it|we|they|one|people))?" if found.start() else r" (?:(?:the|a|an|my) )?\w+"
    )
    after = re.compile(re.escape(found[0]) + subject, re.I).match(text, found.start())
    return _substitute(after, f"{after[0]} {random.choice(('not', 'not', 'never'))}") if after else None


def use_opposite(text: str, random: Random, corpus: Corpus) -> str | None:
    """largest → smallest."""
    found = [match for match in re.finditer(r"\b[a-z]+\b", text) if match[0] in OPPOSITES]
    if not found:
        return None
    match = random.choice(found)
    return _substitute(match, random.choice(sorted(OPPOSITES[match[0]])))


def swap_roles(text: str, random: Random, corpus: Corpus) -> str | None:
    """from A to B → from B to A; A over B → B over A."""
    found = _FROM_TO.search(text)
    if found is not None:
        return _substitute(found, f"from {found[3]} {found[2]} {found[1]}")
    found = _pick(_AROUND, text, random)
    if found is None or found[1].lower() in _FUNCTION or found[1].lower() == found[3].lower():
        return None
    return _substitute(found, f"{found[3]} {found[2]} {found[1]}")


_WH_CHANGES = {
    "Why": ("How", "When"),
    "When": ("Where", "Why", "How"),
    "Where": ("When", "Why"),
    "How": ("Why", "When"),
}
_WH_CHANGES |= {
    "Who": ("When", "Where"),
    "What is": ("Who is", "Where is", "Why is"),
    "Should": ("How should", "When should"),
}


def change_question_word(text: str, random: Random, corpus: Corpus) -> str | None:
    """Why do … → How do …"""
    for start, others in _WH_CHANGES.items():
        if text.startswith(start + " ") and not text.startswith(
            ("How m", "How l", "How f", "How o", "How b")
        ):
            return random.choice(others) + text[len(start) :]
    return None


def _with_limit(text: str, limit: str) -> str:
    body = text.rstrip("?.! ")
    return f"{body} {limit}{'?' if text.rstrip().endswith('?') else ''}"


def add_limit(text: str, random: Random, corpus: Corpus) -> str | None:
    """Ask for less: "… without sugar"."""
    return _with_limit(text, random.choice(LIMITS))


def add_only(text: str, random: Random, corpus: Corpus) -> str | None:
    """Insert a word of scope."""
    found = _pick(re.compile(r"(?<=[a-z] )(?=[a-z]{4,}\b)"), text, random)
    word = random.choice("only always never most first last previous next still already almost other".split())
    return _substitute(found, f"{word} ") if found else None


def change_unit(text: str, random: Random, corpus: Corpus) -> str | None:
    """km → miles."""
    found = [(match, new) for old, new in UNITS for match in re.finditer(rf"\b{old}\b", text)]
    return _substitute(*random.choice(found)) if found else None


CHANGES: dict[str, tuple[Change, float]] = {
    "number": (change_number, 9.0),
    "name": (change_name, 2.0),
    "word": (change_word, 1.5),
    "negation": (negate, 3.0),
    "opposite": (use_opposite, 2.0),
    "roles": (swap_roles, 4.0),
    "question word": (change_question_word, 0.7),
    "limit": (add_limit, 1.0),
    "only": (add_only, 0.5),
    "unit": (change_unit, 5.0),
}
"""Changes after which another answer is right, with weights."""


def expand(text: str, random: Random, corpus: Corpus) -> str | None:
    """don't ↔ do not."""
    if random.random() < 0.5:
        new = re.sub(r"\b(is|are|was|were|do|does|did|should|would|could|has|have) not\b", r"\1n't", text)
    else:
        new = re.sub(r"\b(is|are|was|were|do|does|did|should|would|could|has|have)n't\b", r"\1 not", text)
        new = new.replace("can't", "cannot").replace("What's", "What is").replace("I'm", "I am")
    if new == text:
        new = text.replace("What is", "What's").replace("I am", "I'm").replace("cannot", "can't")
    return new if new != text else None


def add_courtesy(text: str, random: Random, corpus: Corpus) -> str | None:
    """Please …, … thanks."""
    if random.random() < 0.4:
        return text.rstrip("?.! ") + random.choice((", please?", " please", "? Thanks!", "??", ", thank you"))
    first = text[0].lower() if text[1:2].islower() and text[:1] != "I" else text[0]
    return f"{random.choice(LEADS)} {first}{text[1:]}"


def change_form(text: str, random: Random, corpus: Corpus) -> str | None:
    """Case, punctuation and spaces."""
    new = random.choice(
        (text.lower(), text.rstrip("?.! "), text.lower().rstrip("?.! "), f" {text} ", text.replace(",", ""))
    )
    return new if new != text else None


def misspell(text: str, random: Random, corpus: Corpus) -> str | None:
    """Two letters of a longer word change places, or one is missing."""
    found = _pick(re.compile(r"(?<= )[a-z]{6,}\b"), text, random)
    if found is None or found[0] in OPPOSITES:
        return None
    i, word = random.randrange(1, len(found[0]) - 2), found[0]
    new = (
        word[:i] + word[i + 1] + word[i] + word[i + 2 :]
        if random.random() < 0.5
        else word[:i] + word[i + 1 :]
    )
    return _substitute(found, new) if new != word else None


def respell_number(text: str, random: Random, corpus: Corpus) -> str | None:
    """5 ↔ five, 1000 ↔ 1,000."""
    found = _pick(_NUMBER, text, random)
    if found is not None and 1 < int(found[0]) <= 12:
        return _substitute(found, _WORDS_OF[int(found[0])])
    if found is not None and (int(found[0]) > 2100 or found[0].endswith("000")):
        return _substitute(found, random.choice((f"{int(found[0]):,}", re.sub("000$", "k", found[0]))))
    for value, word in _WORDS_OF.items():
        if value > 1 and f" {word} " in text:
            return text.replace(f" {word} ", f" {value} ")
    return None


def swap_and(text: str, random: Random, corpus: Corpus) -> str | None:
    """A and B → B and A."""
    found = _pick(_AND, text, random)
    if found is None or {found[1].lower(), found[3].lower()} & _FUNCTION or "respectively" in text:
        return None
    return _substitute(found, f"{found[3]} {found[2]} {found[1]}")


def use_synonym(text: str, random: Random, corpus: Corpus) -> str | None:
    """buy → purchase."""
    found = [(old, new) for old, new in SYNONYMS if re.search(rf"\b{old}\b", text)]
    if not found:
        return None
    old, new = random.choice(found)
    return re.sub(rf"\b{old}\b", new, text, count=1)


SAME: tuple[Change, ...] = (
    expand,
    add_courtesy,
    change_form,
    misspell,
    respell_number,
    swap_and,
    use_synonym,
    use_synonym,
)
"""Changes after which the same answer is right."""


def _date(random: Random) -> tuple[str, str]:
    """A date in two forms."""
    year = random.randint(1980, 2025)
    if random.random() < 0.4:
        return str(year), str(year)
    month, day = random.randrange(12), random.randint(1, 28)
    long = f"{MONTHS[month]} {day}, {year}"
    if random.random() < 0.3:
        return f"{MONTHS[month]} {year}", f"{MONTHS[month][:3]} {year}"
    forms = (
        f"{day} {MONTHS[month]} {year}",
        f"{MONTHS[month][:3]} {day} {year}",
        f"{MONTHS[month]} {day:02}, {year}",
    )
    return long, random.choice(forms)


def dated_pair(text: str, random: Random) -> tuple[str, str, bool]:
    """A question at one date in two forms, or at two dates."""
    is_same = random.random() < 0.5
    date, form = _date(random)
    other = form if is_same else _date(random)[0]
    word = random.choice(("as of", "in", "by", "before", "since"))
    one = _with_limit(text, f"{word} {date}")
    back = _with_limit(text, f"{word} {other}")
    front = f"{word.capitalize()} {other}, {text[0].lower()}{text[1:]}"
    return one, front if random.random() < 0.5 else back, is_same or date == other


def limited_pair(text: str, random: Random) -> tuple[str, str, bool]:
    """A limit at the end and in front, or two limits."""
    is_same = random.random() < 0.5
    one, other = random.sample(LIMITS, 2)
    other = one if is_same else other
    front = f"{other[0].upper()}{other[1:]}, {text[0].lower()}{text[1:]}"
    return (
        _with_limit(text, one),
        front if random.random() < 0.6 or is_same else _with_limit(text, other),
        is_same,
    )


def make_pair(one: str, other: str, random: Random, corpus: Corpus) -> tuple[str, str, bool, str] | None:
    """A pair from two wordings of one question (which may be equal): (a, b, same, what was changed)."""
    roll = random.random()
    if roll < 0.08:
        return *dated_pair(one, random), "date"
    if roll < 0.13:
        return *limited_pair(one, random), "limit"
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
