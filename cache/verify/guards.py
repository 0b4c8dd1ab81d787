"""Guards: what is told apart before the verifier is asked, by rules on the text as it was written.

Sentence vectors and word vectors are blind to signs, letter case and the order of numbers: 5 - 17 and 17 - 5
are one point to them. Where a guard errs it costs a hit; a wrong answer costs more.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations, pairwise
from operator import attrgetter, lt
from pathlib import Path
from typing import Literal, NamedTuple

from backend.encoder.language import language_of
from cache.question import normalised
from cache.verify.features import LOOSE, OPPOSITES, has_opposites, has_swapped_roles
from cache.verify.words import NEGATIONS, QUANTITY, Sentence, read, read_sections

MAX_WORDS = 40
"""The vector of a longer text hides one changed word, and the pair network reads 48."""
MAX_CHARS = 500
"""A longer text is not read at all, so that hostile ones cost nothing."""
MAX_FOREIGN_SHARE = 0.1
"""Letters beyond the Latin ones, which the built-in encoder's vocabulary hardly knows."""
MAX_INSERTED = 2
"""Words that one question may have more to be told apart by them: "with diabetes"."""
MIN_ENGLISH_SHARE = 0.5
"""Words such as "what" and "do" that leave no doubt."""
ENGLISH = ("en",)
"""What the built-in encoder reads."""

Unreadable = Literal["several lines", "code", "long", "about text", "language"]

_SECTIONS = read_sections(Path(__file__).with_suffix(".txt"))
_WORDS, _FORMS, _LANGUAGES = (
    {word: line.split()[0] for line in _SECTIONS[name] for word in line.split()}
    for name in ("words", "form", "languages")
)
_HOMOGRAPHS, _SMALL, _HARMLESS, _FILLER, _ABOUT_TEXT = (
    frozenset(" ".join(_SECTIONS[name]).split())
    for name in ("homographs", "small", "harmless", "filler", "about text")
)
_SYNONYMS = frozenset(
    frozenset(pair) for line in _SECTIONS["synonyms"] for pair in combinations(line.split(), 2)
)
_BRITISH = re.compile(
    r"(?<=[a-z])(?:our(?=s?$|ed$|ing$|ite)|is(?=e[ds]?$|ing$|ation)|ll(?=ed$|ing$|er$)|tre(?=s?$))"
)
_AMERICAN = {"our": "or", "is": "iz", "ll": "l", "tre": "ter"}

_CODE = re.compile(
    r"[`{}\\]|(?<!\S)--?[A-Za-z][\w-]{0,40}(?!\S)|(?<![Cc])\+\+|[=!]==?[^=]|[=-]>|<-|:=|::|&&|\|\||>>|<<|;$"
    r"|</?\w{1,20}[^<>]{0,80}>|\w\[|\[[^\]]{0,40}[:;,\d^]|\w\((?!s\))[^\s()]{0,40}\)|\w\([^()]{0,40}[,=\"']"
    r"|\$[A-Za-z(]|\(\w\|\w\)|(?<!\S)[~.]{0,2}/\w[\w.-]{0,40}/"
    r"|\b(?:SELECT|DELETE|INSERT|UPDATE|TRUNCATE|JOIN|WHERE|ORDER BY|GROUP BY|CREATE|ALTER|DROP)\b"
    r"|\b(?:sudo|chmod|chown|grep|awk|sed|curl|mkdir|kubectl) \S"
)
"""Each repetition is bounded, so that hostile texts cost linear time."""
_GIVEN = re.compile(
    r"\W*(?:please\s+)?(?:correct|fix|rewrite|complete|finish|continue|reverse|repeat|copy|translate|sort)\b[^:]{0,40}:",
    re.IGNORECASE,
)
_NUMBER = r"\d+(?:[.,:/]\d+)*(?:\s?[ap]\.?m\b)?"
_UNIT = re.compile(r"(?<=\d)\s?[A-Za-zµΩ]{1,3}\b")
_SYMBOL = (
    r"[+*=<>^%$€£¥₹&|~#@°×÷√∞≤≥≠±²³¹⁰⁴-⁹₀-₉()\[\]]|(?<=[\d)])\s*+!|(?<![^\W\d_])[-−–/](?=\s*[\d(]|\s*[a-z]\b)"
    r"|[^\w\s.,;:?!'\"’‘“”„«»‹›…`´()\[\]/\\{}–—−-]"
)
_TOKEN = re.compile(rf"(?P<number>{_NUMBER})|(?P<word>[^\W\d_]+)|(?P<symbol>{_SYMBOL})", re.IGNORECASE)
_SPELLED = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen"
)
_LEADS = frozenset("in on at as by for during after before since with from of under over to".split())
_NEGATING = ("unable", "against", "resistant", "immune")
_JOINS = frozenset(("and", "or", "versus"))
_ARTICLES = ("a", "an", "the")
_MODALS = frozenset(("do", "does", "can", "could", "should", "would"))
_DIGITS = {word: str(n) for n, word in enumerate(_SPELLED.split()) if n != 1}  # "one" is mostly a pronoun
_QUOTED = re.compile(
    r"(?<!\")\"++([^\"]++)\"++|“([^”]{0,500}+)”|«([^»]{0,500}+)»|„([^“”]{0,500}+)[“”]"
    r"|(?<!\w)['‘]([^'’]{0,500}+)['’](?!\w)"
)
_HYPHEN = re.compile(r"(?<![^\W\d_])[^\W\d_]++(?:-[^\W\d_]++)++")
_EDGES = ".,;:!?…\"'“”‘’«»()[]"
_IDENTIFIER = re.compile(r".*(?:[_\\@#~|]|://|^/|\w\w\.\w\w|\d[A-Za-z]|[A-Za-z]\d).*", re.DOTALL)
_CAMEL = re.compile(r"[A-Za-z]*(?:[a-z][A-Z]|[A-Z]{2}[a-z])[A-Za-z]*")
_CAPITALISED = re.compile(r"(?<=[^.!?\s]\s)[A-Z][A-Za-z]*\b|\b[A-Z]{2,}\b")
_PASSIVE = re.compile(r"\b(?:am|is|are|was|were|be|been|being)\b(?:\s+\S+){1,4}?\s+by\b", re.IGNORECASE)

Value = tuple[str, str]
"""A number or the like, and the word or sign before it."""


@dataclass(frozen=True, slots=True)
class Text:
    """What guards compare of one question, in the order of the text."""

    text: str
    sentence: Sentence
    counts: Mapping[str, int]  # of its words
    plain: tuple[str, ...]  # words without articles
    numbers: tuple[Value, ...]  # as they are written; small ones in words as digits
    symbols: tuple[Value, ...]
    words: tuple[Value, ...]  # dates, times, units
    units: tuple[Value, ...]  # letters after a number, as they are written
    identifiers: tuple[Value, ...]
    camel: frozenset[str]  # words with capitals inside
    capitalised: frozenset[str]  # homographs that are written with capitals, in lower case
    quoted: tuple[str, ...]
    forms: tuple[str, ...]  # sorted
    languages: tuple[str, ...]  # sorted
    is_passive: bool


class Guard(NamedTuple):
    """Stops a pair of questions."""

    name: str  # label of the metric
    reason: str
    stops: Callable[[Text, Text], bool]


def unreadable(text: str, languages: Collection[str]) -> Unreadable | None:
    """Why a question is not compared by meaning at all; None: it is. `languages`: those of the encoder."""
    if len(text) > MAX_CHARS:
        return "long"
    text = normalised(text)
    if "\n" in text:
        return "several lines"
    if len(text.split()) > MAX_WORDS:
        return "long"
    if _CODE.search(text):
        return "code"
    if _GIVEN.match(text) or not _ABOUT_TEXT.isdisjoint(re.findall(r"[a-z-]+", text.lower())):
        return "about text"  # "correct this: its raining", where each sign counts
    return None if _is_read(text, languages) else "language"


def _is_read(text: str, languages: Collection[str]) -> bool:
    """By its letters and, as far as it is long enough to tell, by its language."""
    letters = [char for char in text if char.isalpha()]
    num_foreign = sum(char > "\u024f" for char in letters)
    if num_foreign > MAX_FOREIGN_SHARE * len(letters) and set(languages) <= {*ENGLISH}:
        return False
    words = re.findall(r"[^\W\d_]+", text.lower())
    if "en" in languages and sum(word in _SMALL for word in words) >= MIN_ENGLISH_SHARE * len(words):
        return True  # too short for language detection, perhaps
    language = language_of(text)
    return not language or language in languages


def stopped_by(asked: str, known: str) -> Guard | None:
    """The first guard that stops this pair of readable questions."""
    one, other = read_text(asked), read_text(known)
    return next((guard for guard in GUARDS if guard.stops(one, other)), None)


@lru_cache(maxsize=1024)
def read_text(text: str) -> Text:
    """Analyse a question once."""
    text = normalised(text[:MAX_CHARS])
    sentence = read(text)
    values = _values(text)
    capitalised = {word.lower() for word in _CAPITALISED.findall(text)} if not text.isupper() else set()
    tokens = [token.strip(_EDGES) for token in text.split()]
    return Text(
        text=text,
        sentence=sentence,
        counts=Counter(sentence.words),
        plain=tuple(word for word in sentence.words if word not in _ARTICLES),
        **values,
        units=tuple((unit.strip(), "") for unit in _UNIT.findall(text)),
        identifiers=tuple(
            (token, before) for before, token in pairwise(("", *tokens)) if _IDENTIFIER.fullmatch(token)
        ),
        camel=frozenset(token for token in tokens if _CAMEL.fullmatch(token)),
        capitalised=frozenset(capitalised & _HOMOGRAPHS),
        quoted=tuple("".join(parts) for parts in _QUOTED.findall(text)),
        forms=tuple(sorted(_FORMS[word] for word in sentence.words if word in _FORMS)),
        languages=tuple(sorted(_LANGUAGES[word] for word in sentence.words if word in _LANGUAGES)),
        is_passive=bool(_PASSIVE.search(text)),
    )


def _values(text: str) -> dict[str, tuple[Value, ...]]:
    """Numbers, symbols and words of date, time and unit, each with what stands before it."""
    found: dict[str, list[Value]] = {"numbers": [], "symbols": [], "words": []}
    before = ""
    for match in _TOKEN.finditer(text):
        token = match[0].strip().lower()
        if match["word"] and token in _DIGITS:
            found["numbers"].append((_DIGITS[token], before))
        elif match["word"] and token in _WORDS:
            found["words"].append((_WORDS[token], before))
        elif match["number"]:
            found["numbers"].append((token, before))
            found["symbols"].append(("0", before))  # the place of a number among the symbols
        elif match["symbol"]:
            found["symbols"].append((token, before))
        before = token
    if all(symbol in "0()[]" for symbol, _ in found["symbols"]) and len(found["numbers"]) < 2:
        found["symbols"] = []  # brackets in prose
    return {name: tuple(values) for name, values in found.items()}


def _differ(name: str) -> Callable[[Text, Text], bool]:
    """Whether values differ. A phrase may move: "in 2019, who won 3 cups", "who won 3 cups in 2019"."""
    get = attrgetter(name)

    def stops(a: Text, b: Text) -> bool:
        one, other = get(a), get(b)
        return [value for value, _ in one] != [value for value, _ in other] and sorted(one) != sorted(other)

    return stops


def _symbols_differ(a: Text, b: Text) -> bool:
    return _differ("symbols")(a, b) or (a.text != b.text and a.text.split() == b.text.split())


def _case_differs(a: Text, b: Text) -> bool:
    """Identifiers, other capitals in a word ("userId"), a homograph with and without one ("Polish")."""
    return (
        _differ("identifiers")(a, b)
        or (_differ("units")(a, b) and len(a.units) == len(b.units))
        or _camel_differs(a, b)
        or _camel_differs(b, a)
        or _is_lower_in(a.capitalised, b)
        or _is_lower_in(b.capitalised, a)
    )


def _camel_differs(a: Text, b: Text) -> bool:
    others = {word.lower() for word in b.camel} | set(b.sentence.words)
    return any(word.lower() not in others for word in a.camel) or bool(
        {word.lower() for word in a.camel - b.camel} & {word.lower() for word in b.camel - a.camel}
    )


def _is_lower_in(words: frozenset[str], other: Text) -> bool:
    """Whether `other` has one of the words without a capital."""
    return not words.isdisjoint(set(other.sentence.words) - other.capitalised)


def _quoted_differs(a: Text, b: Text) -> bool:
    if a.quoted and b.quoted:
        return a.quoted != b.quoted
    return any(quoted not in b.text for quoted in a.quoted) or any(
        quoted not in a.text for quoted in b.quoted
    )


def _small_words_differ(a: Text, b: Text) -> bool:
    """Whether nothing but small words differs, and not all of these are harmless: "his" and "her"."""
    only_a, only_b = _extra_words(a, b), _extra_words(b, a)
    small = (only_a | only_b) & _SMALL
    if any("will" in x and not _MODALS.isdisjoint(y) for x, y in ((only_a, only_b), (only_b, only_a))):
        small.discard("will")  # "how will I open", "how do I open"
    if small <= _HARMLESS:
        return False
    large_a, large_b = only_a - small, only_b - small
    return all(any(_is_form(x, y) for y in large_b | small) for x in large_a) and all(
        any(_is_form(x, y) for y in large_a | small) for x in large_b
    )


def _extra_words(a: Text, b: Text) -> set[str]:
    """Words that `a` has more often."""
    others = b.counts
    return {word for word, count in a.counts.items() if count > others.get(word, 0)}


def _one_word_differs(a: Text, b: Text) -> bool:
    """Whether the texts are the same but for one word, or one more, that says something else."""
    one, other = a.plain, b.plain
    start, end = _shared_ends(one, other)
    left = one[start : len(one) - end], other[start : len(other) - end]
    is_inserted = not all(left) and max(map(len, left)) <= MAX_INSERTED
    if not is_inserted and any(
        len(side) > 1 and "-".join(side) not in text.text.lower()
        for side, text in zip(left, (a, b), strict=True)
    ):
        return False
    words = ["-".join(side) for side in left if side and not all(map(_says_nothing, side))]
    return bool(words) and not (len(words) == 2 and _is_form(*words)) and frozenset(words) not in _SYNONYMS


def _says_nothing(word: str) -> bool:
    """A small word, a filler; numbers have a guard of their own."""
    return word in _SMALL or word in _FILLER or word in _DIGITS or word[0].isdigit()


def _is_form(one: str, other: str) -> bool:
    """Whether two words may be forms of one: "country" and "countries", "color" and "colour"."""
    return not _bases(one).isdisjoint(_bases(other))


@lru_cache(maxsize=4096)
def _bases(word: str) -> frozenset[str]:
    """What a word may be a form of."""
    word = _BRITISH.sub(lambda match: _AMERICAN[match[0]], word)
    found = {word}
    for ending, bases in _ENDINGS.items():
        if word.endswith(ending) and len(word) - len(ending) >= 2:
            stem = word[: -len(ending)]
            found |= {stem + base for base in bases}
            if stem[-1] == stem[-2]:  # running
                found.add(stem[:-1])
    return frozenset(found)


_ENDINGS = {"s": ("",), "es": ("",), "ies": ("y",), "ed": ("", "e"), "ied": ("y",), "ing": ("", "e")}


def _opposites_differ(a: Text, b: Text) -> bool:
    """Opposites in any form: "starting" and "stopping"."""
    if has_opposites(a.sentence, b.sentence):
        return True
    others = {base for word in _extra_words(b, a) for base in _bases(word)}
    return any(
        not others.isdisjoint(OPPOSITES.get(base, ())) and base not in LOOSE
        for word in _extra_words(a, b)
        for base in _bases(word)
    )


def _is_negated_otherwise(a: Text, b: Text) -> bool:
    one, other = (
        text.sentence.num_negations + sum(text.counts.get(word, 0) for word in _NEGATING) for text in (a, b)
    )
    return one != other


def _quantity_differs(a: Text, b: Text) -> bool:
    """Whether one asks "how long" and the other "how far"."""
    one, other = _quantity(a.sentence.words), _quantity(b.sentence.words)
    return bool(one and other) and one != other and frozenset((one, other)) not in _SYNONYMS


def _quantity(words: Sequence[str]) -> str:
    return next((second for first, second in pairwise(words) if first == "how" and second in QUANTITY), "")


def _hyphens_differ(a: Text, b: Text) -> bool:
    """The same words, but another compound: "a man eating shark", "a man-eating shark"."""
    return a.sentence.words == b.sentence.words and _HYPHEN.findall(a.text) != _HYPHEN.findall(b.text)


def _roles_swapped(a: Text, b: Text) -> bool:
    if _is_turned(a.sentence.words, b.sentence.words):
        return True
    if _are_in_order(a, b):
        return a.is_passive != b.is_passive and len(a.counts.keys() & b.counts.keys()) > 1
    one, other = (
        tuple(word for word in text.sentence.words if word not in NEGATIONS) for text in (a, b)
    )  # "why is it not", "why isn't it"
    return has_swapped_roles(one, other) or has_swapped_roles(other, one) or _is_shuffled(one, other)


def _is_turned(one: Sequence[str], other: Sequence[str]) -> bool:
    """Whether both name the same in another order: "what do bees eat", "what eats bees".

    Not where a phrase has moved ("in 2019, who won", "the wheels of a car"), nor in a list.
    """
    first, second = _named(dict.fromkeys(one)), _named(other)
    order = [next((i for i, y in enumerate(second) if not y.isdisjoint(x)), -1) for x in first]
    num_more = sum(i < 0 for i in order), sum(all(y.isdisjoint(x) for x in first) for y in second)
    order = [i for i in order if i >= 0]
    if any(num_more) or len(order) < 2 or order == sorted(order):
        return False
    if not _JOINS.isdisjoint(one) or not _JOINS.isdisjoint(other):
        return False
    is_rotated = any(order[i:] + order[:i] == sorted(order) for i in range(1, len(order)))
    has_moved = ("of" in one) != ("of" in other) or not _LEADS.isdisjoint((one[0], other[0]))
    return not (is_rotated and has_moved)


def _named(words: Iterable[str]) -> list[frozenset[str]]:
    """What each word that says something may be a form of."""
    return [_bases(word) for word in words if not _says_nothing(word)]


def _is_shuffled(one: tuple[str, ...], other: tuple[str, ...]) -> bool:
    """Whether the same words have another order, and more than one phrase has moved: "red on blue"."""
    if one == other or sorted(one) != sorted(other):
        return False
    start, end = _shared_ends(one, other)
    first, second = one[start : len(one) - end], other[start : len(other) - end]
    is_moved = any(first[i:] + first[:i] == second for i in range(len(first)))
    return not is_moved and _JOINS.isdisjoint(first)


def _shared_ends(one: Sequence[str], other: Sequence[str]) -> tuple[int, int]:
    """How many words both have in common at their beginnings, and then at their ends."""
    shorter = min(len(one), len(other))
    start = next((i for i in range(shorter) if one[i] != other[i]), shorter)
    end = next((i for i in range(shorter - start) if one[-1 - i] != other[-1 - i]), shorter - start)
    return start, end


def _are_in_order(a: Text, b: Text) -> bool:
    """Whether the words of both have the same order; then only a passive can turn who does what."""
    places = {word: i for i, word in enumerate(b.sentence.stems)}
    order = [places[word] for word in a.sentence.stems if word in places]
    return all(map(lt, order, order[1:]))


GUARDS: tuple[Guard, ...] = (
    Guard("numbers", "their numbers differ as they are written", _differ("numbers")),
    Guard("symbols", "their signs, symbols, emoji or white space differ", _symbols_differ),
    Guard("case", "identifiers, or words that capitals change, differ", _case_differs),
    Guard("quoted", "what they quote differs", _quoted_differs),
    Guard(
        "words",
        "dates, times, units, directions, relatives, conditions or words such as myself differ",
        _differ("words"),
    ),
    Guard("form", "they ask for another form, length or style", lambda a, b: a.forms != b.forms),
    Guard("languages", "they name different languages", lambda a, b: a.languages != b.languages),
    Guard("negation", "one of them is negated", _is_negated_otherwise),
    Guard("opposites", "they differ by opposites", _opposites_differ),
    Guard("quantity", "they ask how long, how far or the like", _quantity_differs),
    Guard("hyphens", "their words make other compounds", _hyphens_differ),
    Guard("roles", "words have exchanged their places", _roles_swapped),
    Guard("one word", "all but one word is the same, and that says something else", _one_word_differs),
    Guard("small words", "only words such as all, was, her or when differ", _small_words_differ),
)
