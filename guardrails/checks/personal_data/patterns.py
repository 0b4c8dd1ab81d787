"""Everything that a pattern finds, from left to right, in a text that may go on."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from typing import get_args

from guardrails.checks.personal_data import network, numbers, phones, secrets
from guardrails.checks.personal_data.span import Span
from policies.guardrails import PatternKind

KINDS: tuple[PatternKind, ...] = get_args(PatternKind)

Search = Callable[[str, int, Collection[str]], Span | None]

MIN_LONG_TOKEN_CHARS = 20
"""No known key is shorter: most prose has no such word."""
_DIGIT = re.compile("[0-9]")
_SEARCHES: tuple[tuple[Search, frozenset[str]], ...] = (
    # Of two that begin at the same place the first one counts.
    (secrets.search_key_block, frozenset({"private_key"})),
    (secrets.search_in_url, frozenset({"password"})),
    (secrets.search_named, frozenset({"password", "api_key"})),
    (network.search_email, frozenset({"email"})),
)
_SEARCHES_IN_LONG_TOKENS: tuple[tuple[Search, frozenset[str]], ...] = (
    (secrets.search_known, frozenset({"jwt", "api_key"})),
    (network.search_wallet, frozenset({"crypto_address"})),
)
_SEARCHES_WITH_DIGITS: tuple[tuple[Search, frozenset[str]], ...] = (
    (network.search_mac, frozenset({"mac"})),
    (network.search_ip, frozenset({"ip"})),
    (
        numbers.search,
        frozenset(
            {"iban", "card", "ssn", "phone", "national_id", "passport", "driver_license", "bank_account"}
        ),
    ),
)
_TOKEN_CHARS = "".join(filter(re.compile(f"[{secrets.TOKEN_CHARS}]").match, map(chr, range(0x250))))
_RUN_CHARS = " \u00a0().+-/0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_OPEN_RUN = re.compile(
    r"(?a)[(+]{0,2}(?:[A-Z]{1,6}[ -])?[^ ()\u00a0]{0,64}\d"
    r"|[(+]+(?:[A-Z]{1,6}[ -]?)?\Z|[A-Z]{1,6}[ -]\Z"
)
_PLAIN = str.maketrans(
    {
        chr(zero + digit): str(digit)
        for zero in (0x660, 0x6F0, 0x966, 0x9E6, 0xE50, 0xFF10)
        for digit in range(10)
    }
    | dict.fromkeys("\u2010\u2011\u2012\u2013\u2212\uff0d", "-")
    | dict.fromkeys("\u00a0\u2007\u2009\u202f\u3000", " ")
    | {"\uff0b": "+", "\uff08": "(", "\uff09": ")"}
)
"""Digits of other scripts and the signs between them, each as one character."""
_NOT_PLAIN = re.compile(f"[{''.join(map(chr, _PLAIN))}]")
MAX_TOKEN_CHARS = 8192
"""Longer than any match without spaces."""


class PatternFinder:
    """Finds personal data of some kinds."""

    def __init__(self, kinds: Collection[str], *more: Search) -> None:
        self._kinds = frozenset(kinds)
        self._searches = [*more, *(search for search, found in _SEARCHES if found & self._kinds)]
        self._searches_in_long_tokens = [
            search for search, found in _SEARCHES_IN_LONG_TOKENS if found & self._kinds
        ]
        self._searches_with_digits = [
            search for search, found in _SEARCHES_WITH_DIGITS if found & self._kinds
        ]

    def spans(self, text: str, start: int = 0, settled: int | None = None) -> Iterator[Span]:
        """From left to right, disjoint; those before `settled`, and perhaps more.

        A search that starts behind one of them finds the following ones.
        """
        text = _plain(text)
        searches = self._searches
        if len(max(text[start:].split(), key=len, default="")) >= MIN_LONG_TOKEN_CHARS:
            searches = self._searches_in_long_tokens + searches
        if _DIGIT.search(text, start):
            searches = searches + self._searches_with_digits
        heads = [(search, search(text, start, self._kinds)) for search in searches]
        found = [(search, head) for search, head in heads if head is not None]
        while found:
            first = min((head for _, head in found), key=lambda head: head.start)
            yield first
            renewed = [
                (search, search(text, first.end, self._kinds) if head.start < first.end else head)
                for search, head in found
            ]
            found = [(search, head) for search, head in renewed if head is not None]

    def open_from(self, text: str, start: int) -> int:
        """The first place on from `start` where something may begin that more text could change."""
        text = _plain(text)
        token = max(start, len(text.rstrip(_TOKEN_CHARS)), len(text) - MAX_TOKEN_CHARS)
        end = phones.open_extension(text, start)
        run = max(start, len(text[:end].rstrip(_RUN_CHARS)), end - numbers.MAX_RUN_CHARS)
        open_run = _OPEN_RUN.search(text, run, end) if run < token else None
        block = secrets.open_key_block(text, start)
        return min(token, token if open_run is None else open_run.start(), block)


def _plain(text: str) -> str:
    """With ASCII digits; as long as the text."""
    return text if text.isascii() or not _NOT_PLAIN.search(text) else text.translate(_PLAIN)
