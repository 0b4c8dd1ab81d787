"""Personal data and secrets with a fixed shape or a check digit. Every pattern is bounded in length.

Technical text is not personal data: versions, hashes, UUIDs, private network addresses and code do not match.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from functools import cache
from typing import get_args

import regex

from policies.guardrails import PersonalDataKind as Kind

KINDS: tuple[Kind, ...] = get_args(Kind)

_PATTERNS: dict[Kind, str] = {
    "private_key": r"-----BEGIN [A-Z ]{0,20}PRIVATE KEY-----[A-Za-z0-9+/=\s:,-]{1,8000}?"
    r"-----END [A-Z ]{0,20}PRIVATE KEY-----",
    "jwt": r"(?<![\w-])eyJ[\w-]{8,1000}\.eyJ[\w-]{8,4000}\.[\w-]{16,1000}(?![\w-])",
    "api_key": r"(?<![\w-])(?:sk-(?:ant-|proj-|or-)?[\w-]{20,200}|AKIA[0-9A-Z]{16}"
    r"|gh[pousr]_[A-Za-z0-9]{36,80}|github_pat_\w{40,100}|xox[abprs]-[\w-]{10,120}|AIza[\w-]{35}|glpat-[\w-]{20,40}|hf_[A-Za-z0-9]{30,50}"
    r"|[sr]k_(?:live|test)_[A-Za-z0-9]{20,120})(?![\w-])",
    "email": r"(?<![\w.+-])[A-Za-z0-9_][\w.+%-]{0,63}@(?:[A-Za-z0-9][A-Za-z0-9-]{0,62}\.){1,6}"
    r"[A-Za-z]{2,24}(?![\w-])",
    "iban": r"(?<![A-Za-z0-9])[A-Z]{2}\d{2}(?: ?[A-Z0-9]){11,30}(?![A-Za-z0-9])",
    "card": r"(?<![\w.-])\d(?:[ -]?\d){12,18}(?![\w-])",
    "ssn": r"(?<![\w-])(?!000|666|9)\d{3}-(?!00)\d{2}-(?!0000)\d{4}(?![\w-])",
    "phone": r"(?<![\w.+-])(?:\+[1-9]\d{0,2}(?:[ .-]?\(?\d{1,4}\)?){2,6}|\(\d{3}\) ?\d{3}-\d{4})(?![\w-])",
    "ip": r"(?<![\w.:-])(?:\d{1,3}\.){3}\d{1,3}(?![\w.:-]|\.\d)",
}


@cache
def pattern_of(kinds: tuple[Kind, ...], more: str = "") -> regex.Pattern[str]:
    """One pattern with a group for each kind; `more` is tried first."""
    parts = [f"(?P<{kind}>{_PATTERNS[kind]})" for kind in KINDS if kind in kinds]
    return regex.compile("|".join([more, *parts] if more else parts))


def is_valid(kind: str, text: str) -> bool:
    """Whether a match is what it looks like: check digits, public addresses, numbers of digits."""
    check = _CHECKS.get(kind)
    return check is None or check(text)


def _has_luhn_digit(text: str) -> bool:
    digits = [int(char) for char in text if char.isdigit()]
    doubled = [sum(divmod(2 * digit, 10)) for digit in digits[-2::-2]]
    return len(set(digits)) > 1 and (sum(digits[-1::-2]) + sum(doubled)) % 10 == 0


def _has_iban_digits(text: str) -> bool:
    """ISO 13616: the number with its head at the end is 1 modulo 97."""
    compact = text.replace(" ", "")
    return int("".join(str(int(char, 36)) for char in compact[4:] + compact[:4])) % 97 == 1


def _is_public_address(text: str) -> bool:
    try:
        return ipaddress.ip_address(text).is_global
    except ValueError:
        return False


def _has_phone_length(text: str) -> bool:
    return 8 <= sum(char.isdigit() for char in text) <= 15


_CHECKS: dict[str, Callable[[str], bool]] = {
    "iban": _has_iban_digits,
    "card": _has_luhn_digit,
    "phone": _has_phone_length,
    "ip": _is_public_address,
}
