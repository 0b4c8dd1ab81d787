"""Numbers of people: cards, bank accounts, phones, identity numbers.

A candidate is a run of groups of digits and letters. Its beginnings, longest first, are looked up by shape
(`999-99-9999`); check digits and the words before the number decide.
"""

from __future__ import annotations

import re
import string
from collections.abc import Collection, Iterator
from functools import lru_cache

from guardrails.checks.personal_data import phones
from guardrails.checks.personal_data.announcements import announced_kinds
from guardrails.checks.personal_data.national_ids import SHAPES, has_luhn_digit
from guardrails.checks.personal_data.span import Span

MAX_RUN_CHARS = 64
"""Longer than any number with its separators."""

CONTEXT_CHARS = 48
"""How far before a number the words are read that announce it."""

_FIRST_DIGIT = re.compile(  # of a group; of six digits, or of a PAN's four; not of a date
    r"(?a)[0-9](?<![0-9./@].)(?<![0-9]:.)"
    r"(?=(?:[A-Za-z+ ().\-/\u00a0]{0,6}[0-9]){5}|(?<=[A-Za-z].)[0-9]{3}[A-Za-z])"
    r"(?!(?:(?<=1)9|(?<=2)0)\d\d[-/.][01]?\d[-/.]|\d?[-/.][0-3]?\d[-/.](?:19|20)\d\d\b)"
)
_HEAD = re.compile(r"(?a)(?:(?<![A-Za-z0-9.+/@\\-])|(?<=\\[nrt]))[+(]{0,2}(?:[A-Z]{1,6}[ -]?|[a-z]{1,6})?\Z")
_RUN = re.compile(r"(?a)[0-9][0-9A-Za-z]{0,31}(?:[ ().\-/\u00a0]{1,2}[0-9A-Z]{1,19}(?![a-wyz])){0,9}")
_MIDST = re.compile(  # of a table: a number has fewer groups; its cost must not grow with those around it
    r"(?a)(?<=[0-9][ )\u00a0])[0-9](?:[0-9A-Z]{0,3}[ ().\-/\u00a0]{1,2}){8}"
)
_HEX = re.compile(r"(?a)0x|(?![a-z]{2}\d{13})(?=\d*[a-f])[0-9a-f]{8}")
_GROUP = re.compile(r"(?:(?!x\d)[\dA-Za-z])+", re.ASCII)
_GOES_ON = re.compile(r"(?!x\d)[0-9A-Za-z]|[./-]\w", re.ASCII)
_IS_LONGER = re.compile(r"[ \u00a0]\d", re.ASCII)
_IS_LATER = re.compile(r"\d[ \u00a0]", re.ASCII)
_NO_PHONE_BESIDE = re.compile("[_#]")
_MONEY = re.compile(r"[$€£¥₹] ?\Z")
_IBAN = re.compile(r"(?ai)[A-Z]{2}[ -]?\d\d(?:([ -]?)[A-Z0-9]{4}(?:\1[A-Z0-9]{4}){2,6}(?:\1[A-Z0-9]{1,3})?)")
_HAN = re.compile("[\u3400-\u9fff]")
_SHAPE = str.maketrans("012345678BCDEFGHIJKLMNOPQRSTUVWXYZ", "9" * 9 + "A" * 25)
_SEPARATORS = str.maketrans("", "", " ().-/+\u00a0")

_CARD = re.compile(
    r"4\d{15}(?:\d{3})?|(?:5[1-5]|2[2-7])\d{14}|3[47]\d{13}|3(?:0[0-5]|[689]\d)\d{11}|35\d{14}|(?:1800|2131)\d{11}"
    r"|(?:50|5[6-9]|6\d)\d{14}"
)
_CARD_SHAPES = {
    shape.replace(" ", separator)
    for shape in ("9999 9999 9999 9999", "9999 999999 99999", "9999 999999 9999", "9999 9999 9999 9999 999")
    for separator in (" ", "-", "\u00a0", ".")
}
_SSN = re.compile(r"(?!000|666|9)\d{3}(?!00)\d{2}(?!0000)\d{4}")
_NUMBER = re.compile(r"[A-Z]{0,3}\d{4,17}[A-Z]{0,2}\d?")
_LIKELY = re.compile(r"[A-Z]{0,3}\d{4,17}(?:[A-Z]{0,2}\d?\Z|\d{0,3}\Z)|[A-Z]{2}\d\d[A-Z0-9]{11}")
"""Without separators: anything else is a number only by its shape."""
_NUMBERED = {
    "ssn": _SSN,
    "passport": re.compile(r"[A-Z]{0,2}\d{6,9}[A-Z]?"),
    "driver_license": re.compile(r"[A-Z]{0,3}\d{4,14}[A-Z]{0,2}\d?"),
    "bank_account": re.compile(r"\d{6,17}"),
}


def search(text: str, start: int, kinds: Collection[str]) -> Span | None:
    """The first number of one of these kinds."""
    for digit in _FIRST_DIGIT.finditer(text, start):
        place = digit.start()
        if _MIDST.match(text, place):
            continue
        head = _HEAD.search(text, max(start, place - 9), place)
        run = _RUN.match(text, place)
        if head is None or run is None or _HEX.match(text, head.start()):
            continue
        first = head.start()
        starts = {first} | ({first + 1, place} if first < place and not text[place - 1].isalnum() else set())
        for begin in sorted(starts):
            found = _Run(text, begin, run.end()).classify(kinds)
            if found is not None:
                return found
    return None


class _Run:
    """Groups of digits and letters that begin at one place."""

    def __init__(self, text: str, start: int, end: int) -> None:
        self._text = text
        self._start = start
        self._end = end
        self._announced: list[str] | None = None

    def classify(self, kinds: Collection[str]) -> Span | None:
        """The longest beginning that is a number of one of these kinds."""
        text, start = self._text, self._start
        upper = text[start : self._end].upper()
        shapes = upper.translate(_SHAPE)
        most = 34 if upper.lstrip("(+")[:1].isalpha() else 20  # only an IBAN is longer
        whole = upper.translate(_SEPARATORS)
        size, at, sizes = len(upper[:5].translate(_SEPARATORS)), start + 5, []
        for group in _GROUP.finditer(text, at, self._end):
            size += group.end() - group.start() + upper.count("X", at - start, group.start() - start)
            at = group.end()
            if size > most:
                break
            if size >= 6:
                sizes.append((at, size))
        for end, size in reversed(sizes):
            shape, compact = shapes[: end - start], whole[:size]
            if (shape not in SHAPES and not _LIKELY.match(compact)) or _GOES_ON.match(text, end):
                continue
            value = text[start:end]
            for kind in self._kinds_of(value, compact, shape, end):
                if kind in kinds and (kind == "phone" or "_" not in self._around(end)):
                    end = phones.end_of_extension(self._text, end) if kind == "phone" else end
                    return Span(self._start, end, kind)
        return None

    def _kinds_of(self, value: str, compact: str, shape: str, end: int) -> Iterator[str]:
        """What a beginning is, most certain first."""
        if _is_iban(compact) and _IBAN.fullmatch(value):
            yield "iban"
        is_number = compact.isdigit()
        if (
            shape in SHAPES
            and self._announced_kind() == "national_id"
            and self._is_national_id(shape, compact, end)
        ):
            yield "national_id"
        if is_number and 12 <= len(compact) <= 19 and self._is_card(shape, compact):
            yield "card"
        if shape == "999-99-9999" and _SSN.fullmatch(compact):
            yield "ssn"
        if is_number and self._is_phone(value, compact, end):
            yield "phone"
        kind = self._announced_kind() if _NUMBER.fullmatch(compact) else ""
        if kind in _NUMBERED and _NUMBERED[kind].fullmatch(compact):
            yield kind
        if shape in SHAPES and self._is_national_id(shape, compact, end):
            yield "national_id"

    def _is_card(self, shape: str, digits: str) -> bool:
        if not (shape in _CARD_SHAPES or len(shape) == len(digits)) or len(set(digits)) == 1:
            return False
        announced = self._announced_kind()
        has_issuer = _CARD.fullmatch(digits) is not None and announced != "other"
        return (has_issuer or announced == "card") and has_luhn_digit(digits)

    def _is_national_id(self, shape: str, compact: str, end: int) -> bool:
        is_whole = self._is_whole(end) and self._announced_kind() != "other"
        return any(
            national_id.check(compact)
            for national_id, needs_words in SHAPES[shape]
            if ("national_id" in self._announced_kinds() if needs_words else is_whole)
        )

    def _is_phone(self, value: str, digits: str, end: int) -> bool:
        announced = self._announced_kind()
        if announced in ("other", "national_id") and value[0] != "+":
            return False
        if not announced and not phones.has_shape(value, digits) and not phones.is_chinese(digits):
            return False
        around = self._around(end)
        if phones.is_shaped(value, digits) and (value[0] != "0" or self._is_whole(end)):
            return True
        if _MONEY.search(self._text, max(0, self._start - 2), self._start):
            return False
        if announced != "phone" and _NO_PHONE_BESIDE.search(around):
            return False
        if phones.is_chinese(digits) and _HAN.search(around):
            return True
        is_verb = announced == "calls"
        return (is_verb or announced == "phone") and phones.is_announced(value, digits, is_weakly=is_verb)

    def _around(self, end: int) -> str:
        """The characters before and behind it."""
        return self._text[max(0, self._start - 1) : self._start] + self._text[end : end + 1]

    def _is_whole(self, end: int) -> bool:
        """Whether no other group of digits stands beside it."""
        before = self._text[max(0, self._start - 2) : self._start]
        return not _IS_LONGER.match(self._text, end) and not _IS_LATER.fullmatch(before)

    def _announced_kind(self) -> str:
        """What the nearest word before the number announces, or ""."""
        kinds = self._announced_kinds()
        return kinds[-1] if kinds else ""

    def _announced_kinds(self) -> list[str]:
        if self._announced is None:
            before = self._text[max(0, self._start - CONTEXT_CHARS) : self._start]
            self._announced = announced_kinds(before)
        return self._announced


@lru_cache(maxsize=1024)
def _is_iban(compact: str) -> bool:
    """ISO 13616: the number with its head at the end is 1 modulo 97."""
    return (
        compact[0].isalpha()
        and len(compact) >= 15
        and int((compact[4:] + compact[:4]).translate(_LETTER_VALUES)) % 97 == 1
    )


_LETTER_VALUES = {ord(letter): str(value) for value, letter in enumerate(string.ascii_uppercase, 10)}
