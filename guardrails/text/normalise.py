"""Views of a text: as written, as a person reads it, and what is encoded or hidden in it.

Each view knows where it came from, so that a match can be shown in the text as it was written.
"""

from __future__ import annotations

import unicodedata
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import re2
import regex

from guardrails.cancellation import check_cancelled
from guardrails.scan.prefilter import Prefilter
from guardrails.text import decoders
from guardrails.text.letters import LOOKALIKES, styled_letters, unleet

Pattern = Any
"""A compiled expression of the module regex or of re2; they share an interface."""

MAX_DEPTH = 2
"""Depth of encodings inside encodings."""
MAX_VIEWS = 24
MAX_DECODED_CHARS = 40_000
"""Length of all decoded views together."""

_SECTIONS = Path(__file__).with_suffix(".txt").read_text("utf-8").split("[common]")
WATCHED = frozenset(_SECTIONS[0].removeprefix("[watched]").split())
"""Words of attacks: what reveals one of them is worth a view."""
_WORDS = WATCHED | frozenset(_SECTIONS[1].split())
_MIN_CIPHERED = 2
"""Words of a cipher that must occur before the whole text is read so."""

_PUNCTUATION = ".,;:!?()[]{}\"'`*_"
_CONTROL = re2.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]+")
_UNUSUAL = regex.compile(r"[^\x00-\xac\xae-\u024f\u2010-\u2027\u2030-\u205e\u20a0-\u20cf]")
"""Nothing invisible and no letter of another alphabet is anything else."""
_NON_ASCII = regex.compile(r"[^\x00-\x7f]+")
_MARKS = regex.compile(r"[\u0300-\u036f\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f]+")
_INVISIBLE = regex.compile(
    r"[\p{Cf}\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\uffa0\ufe00-\ufe0f\U000e0100-\U000e01ef]+"
)
_INSIDE_WORD = regex.compile(r"(?<=[A-Za-z])[\p{Cf}\u034f\u115f\u1160\u3164\uffa0]+(?=[A-Za-z])")
_FOREIGN_LETTER = r"[\p{Greek}\p{Cyrillic}\p{Armenian}\p{Cherokee}ɡɑɩʏ]"
_FOREIGN = regex.compile(
    rf"(?<![\p{{L}}\p{{Nd}}])(?:(?!{_FOREIGN_LETTER})[\p{{L}}\p{{Nd}}])*+{_FOREIGN_LETTER}[\p{{L}}\p{{Nd}}]*+"
)
_LATIN = regex.compile(r"[A-Za-z]")
_GAP = r"[\s.,\-_*\\/|~+·•:;'\"]"
_SPACED = regex.compile(rf"(?<![^\W_])(?:[A-Za-z]{_GAP}{{1,4}}){{4,400}}[A-Za-z](?![^\W_])")
_SPACED_CHAR = regex.compile(rf"([A-Za-z])({_GAP}*)")
_SIGN = r"[0-9@$!|+€]"
_LEET = r"[A-Za-z0-9@$!|+€]*(?:[A-Za-z][0-9@$€]|[0-9@$!|+€][A-Za-z])[A-Za-z0-9@$!|+€]*"
_LEET_INSIDE = regex.compile(rf"(?=(?:{_SIGN}*[A-Za-z]){{2}})(?:[A-Za-z]+{_SIGN}+|{_SIGN}{{1,2}})[A-Za-z]")
_SEPARATORS = regex.compile(r"[-_*.·|\\~]")
_BROKEN = r"[A-Za-z]+(?:[-_*.·|\\~][A-Za-z]+)+"
_RUN_ON = r"[A-Za-z]{16,400}"


@dataclass(frozen=True, slots=True)
class View:
    """A reading of a text."""

    text: str
    name: str
    parent: View | None = None
    edits: tuple[tuple[int, int, int, int], ...] = ()  # (start, end here; start, end in the parent)

    def origin(self, start: int, end: int) -> tuple[int, int]:
        """Where in the text as written this part of the view came from."""
        if self.parent is None:
            return start, end
        first = self._back(start, is_end=False)
        return self.parent.origin(first, max(first, self._back(end, is_end=True)))

    def _back(self, place: int, *, is_end: bool) -> int:
        number = bisect_right(self.edits, place - is_end, key=lambda edit: edit[0]) - 1
        if number < 0:
            return place
        _, end, parent_start, parent_end = self.edits[number]
        if place - is_end < end:
            return parent_end if is_end else parent_start
        return parent_end + place - end


@dataclass(frozen=True, slots=True)
class Reading:
    """All views of a text; the first is the text as written."""

    views: tuple[View, ...]
    signs: frozenset[str]
    """What hides: `invisible`, `tags`, `selectors`, `lookalikes`; `limit`: not everything was decoded."""

    @property
    def last_views(self) -> list[View]:
        """Without the views that a cleaner one replaces."""
        replaced = {id(view.parent) for view in self.views if view.name in _PLAIN}
        return [view for view in self.views if id(view) not in replaced]


def read(text: str) -> Reading:
    """The views of a text, in time and size linear in its length."""
    signs: set[str] = set()
    views: list[View] = []
    room = MAX_DECODED_CHARS
    level = [View(_encodable(text), "as written")]
    for depth in range(MAX_DEPTH + 1):
        views += level
        found: list[View] = []
        for view in level:
            check_cancelled()
            plain = _plain_views(view, signs)
            views += plain
            found += _decoded_views([view, *plain], signs) if depth < MAX_DEPTH else []
        level = []
        for view in found:
            if any(view.text == each.text for each in views + level):
                continue
            room -= len(view.text)
            if room < 0 or len(views) + len(level) >= MAX_VIEWS:
                return Reading(tuple(views + level), frozenset(signs | {"limit"}))
            level.append(view)
    return Reading(tuple(views), frozenset(signs))


def _encodable(text: str) -> str:
    """Without lone surrogates, which neither encoders nor RE2 accept."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace").decode()
    return text


def _plain_views(view: View, signs: set[str]) -> list[View]:
    """The view cleaned, and with words put together, where that changes it."""
    clean = _clean(view, signs)
    found = [clean] if clean is not view else []
    for number in _HIDING.candidates(clean.text):
        name, pattern, change = _HIDDEN_WORDS[number]
        changed = _replaced(clean, name, pattern, change)
        if changed is not clean and _shows_words(changed):
            clean = changed
            found.append(clean)
    return found


def _shows_words(view: View) -> bool:
    """Whether what was changed is a word of attacks, or several known words."""
    shown = {
        word.strip(_PUNCTUATION)
        for start, end, _, _ in view.edits
        for word in view.text[start:end].lower().split()
    }
    return not shown.isdisjoint(WATCHED) or len([word for word in shown & _WORDS if len(word) > 2]) > 1


def _clean(view: View, signs: set[str]) -> View:
    """Compatibility characters, styled letters and look-alikes as plain letters; nothing invisible."""
    text = view.text
    if text.isascii():
        return _replaced(view, "clean", _CONTROL, lambda run: " ") if _CONTROL.search(text) else view
    clean = _replaced(view, "clean", _NON_ASCII, _plain)
    if not _UNUSUAL.search(text):
        return clean
    signs.update(name for name, has in _SIGNS.items() if has(text))
    if not _FOREIGN.search(clean.text):
        return clean
    latin, letters = len(_LATIN.findall(clean.text)), sum(map(str.isalpha, clean.text))
    is_latin = 2 * latin > letters
    replaced = _replaced(clean, "look-alikes", _FOREIGN, lambda word: _as_latin(word, is_latin))
    if replaced is not clean:
        signs.add("lookalikes")
    return replaced


@lru_cache(maxsize=4096)
def _plain(run: str) -> str:
    text = _INVISIBLE.sub("", run)
    text = _MARKS.sub("", unicodedata.normalize("NFKD", text.translate(styled_letters())))
    return unicodedata.normalize("NFC", text).replace("\u2028", "\n").replace("\u2029", "\n")


def _as_latin(word: str, is_latin: bool) -> str:
    """A word of foreign letters that all look Latin, beside Latin ones or in a Latin text."""
    latin = word.translate(LOOKALIKES)
    return latin if latin.isascii() and (is_latin or _LATIN.search(word)) else word


_SIGNS: dict[str, Callable[[str], bool]] = {
    "invisible": lambda text: _INSIDE_WORD.search(text) is not None,
    "tags": lambda text: decoders.TAGS.search(text) is not None,
    "selectors": lambda text: decoders.SELECTORS.search(text) is not None,
}


def _replaced(view: View, name: str, pattern: Pattern, change: Callable[[str], str]) -> View:
    """The view with what matches changed; the same one when nothing was."""
    parts, edits, end, length = [], [], 0, 0
    for match in pattern.finditer(view.text):
        start, old = match.start(), match.group()
        new = change(old)
        if new == old:
            continue
        parts += [view.text[end:start], new]
        length += start - end
        end = match.end()
        edits.append((length, length + len(new), start, end))
        length += len(new)
    if not edits:
        return view
    return View("".join([*parts, view.text[end:]]), name, view, tuple(edits))


def _join_letters(run: str) -> str:
    """`i g n o r e` as a word; wider gaps than the usual are spaces."""
    pairs = _SPACED_CHAR.findall(run)
    narrow = min(len(gap) for _, gap in pairs[:-1])
    joined = "".join(char + (" " if len(gap) > narrow else "") for char, gap in pairs).strip()
    return " ".join(_segmented(word) for word in joined.split(" "))


def _read_leet(token: str) -> str:
    readings = unleet(token.rstrip("!|+"))
    known = next((word for word in readings if word in _WORDS), None)
    return known or (readings[0] if _LEET_INSIDE.match(token) else token)


def _join_parts(token: str) -> str:
    """`ig-nore` as a word, `ignore_all_rules` as three; other compounds stay."""
    parts = _SEPARATORS.split(token)
    joined = "".join(parts).lower()
    if joined in WATCHED or (len(parts) == 2 and not {part.lower() for part in parts} <= _WORDS):
        return joined
    has_watched = len(parts) > 2 and any(part.lower() in WATCHED for part in parts)
    return " ".join(map(_segmented, parts)) if has_watched else token


def _segmented(run: str) -> str:
    """A run of letters as known words, longest first; unchanged when there is a piece that is none."""
    lower, words, start = run.lower(), [], 0
    if len(run) < 8 or lower in _WORDS:
        return run
    while start < len(lower):
        size = next((n for n in range(14, 0, -1) if lower[start : start + n] in _WORDS), 0)
        if not size:
            return run
        words.append(run[start : start + size])
        start += size
    return " ".join(words)


_HIDDEN_WORDS: tuple[tuple[str, Pattern, Callable[[str], str]], ...] = (
    ("spaced letters", _SPACED, _join_letters),
    ("leet", re2.compile(_LEET), _read_leet),
    ("broken words", re2.compile(_BROKEN), _join_parts),
    ("run-on words", re2.compile(_RUN_ON), _segmented),
)
_HIDING = Prefilter([_SPACED.pattern, _LEET, _BROKEN, _RUN_ON])
_PLAIN = {"clean", "look-alikes", *(name for name, _, _ in _HIDDEN_WORDS)}
"""Views that show what their parents do, better."""
_CIPHERS = (
    ("rot13", decoders.rot13, decoders.rot13),
    ("atbash", decoders.atbash, decoders.atbash),
    ("backwards", decoders.backwards, decoders.backwards),
    ("backwards words", decoders.backwards, decoders.backwards_words),
)
"""(name, how it writes a word, how a text is read)"""


_CIPHER_CUES = {word for word in WATCHED if len(word) > 4} | set(
    "the you with this that from your make give tell what how write create about into people for can have all"
    " would could please need want some use someone without when where which they there their".split()
)


def _ciphered_words(encode: Callable[[str], str]) -> str:
    words = "|".join(sorted(encode(word) for word in _CIPHER_CUES))
    return rf"(?:^|[^A-Za-z])(?:{words})(?:$|[^A-Za-z])"


_CIPHERED = [_ciphered_words(encode) for _, encode, _ in _CIPHERS]
_CIPHERED_WORDS = [re2.compile(f"(?i){pattern}") for pattern in _CIPHERED]
_CIPHERING = Prefilter(_CIPHERED)


def _decoded_views(views: list[View], signs: set[str]) -> Iterator[View]:
    """What is encoded in the views of one text."""
    for view in views:
        for name, start, end, decoded in decoders.decode(view.text):
            if name == decoders.LIMIT:
                signs.add("limit")
                continue
            yield View(decoded, name, view, ((0, len(decoded), start, end),))
    clean = views[-1]
    for number in _CIPHERING.candidates(clean.text):
        if len(set(_CIPHERED_WORDS[number].findall(clean.text))) >= _MIN_CIPHERED:
            name, _, read_cipher = _CIPHERS[number]
            whole = ((0, len(clean.text), 0, len(clean.text)),)
            yield View(read_cipher(clean.text), name, clean, whole)
