"""Addresses: e-mail, IP, MAC, wallets of crypto-currencies."""

from __future__ import annotations

import hashlib
import ipaddress
import re
from collections.abc import Collection

from guardrails.checks.personal_data.span import Span

_LETTERS = r"A-Za-z0-9\u00c0-\u024f"
_LOCAL_PART = re.compile(  # an escaped line end may stand before it in JSON
    rf"(?a)(?:(?<![{_LETTERS}_.+%\\-])|(?<=\\[nrt]))(?!git\Z)[{_LETTERS}_][{_LETTERS}_.+%-]{{0,63}}\Z"
)
_DOMAIN = re.compile(
    rf"(?a)@(?:[{_LETTERS}](?:[{_LETTERS}-]{{0,61}}[{_LETTERS}])?\.){{1,6}}[A-Za-z]{{2,24}}(?![{_LETTERS}_-]|\.[A-Za-z])"
)
# Lookbehinds stand behind the first character, so that the search for it is fast.
_IPV4 = re.compile(
    r"(?a)\d(?<![\w.:-]\d)(?<![A-Za-z]/\d)(?<!==\d)(?<![Vv]ersion \d)\d{0,2}(?:\.\d{1,3}){3}(?!\w|-\w|\.\w)"
)
_IPV6 = re.compile(r"(?a)[0-9A-Fa-f](?<![\w:.].)[0-9A-Fa-f]{0,3}(?::[0-9A-Fa-f]{0,4}){2,7}(?![\w:]|\.\d)")
MAX_IPV6_CHARS = 48
"""With what may stand behind one."""
_MAC = re.compile(
    r"(?a)[0-9A-Fa-f](?<![\w:-].)[0-9A-Fa-f]([:-])(?:[0-9A-Fa-f]{2}\1){4}[0-9A-Fa-f]{2}(?![\w:-])"
)
_WALLET = re.compile(
    r"(?a)[013DLMTbl](?<!\w.)(?:(?<=0)x[0-9a-fA-F]{40}|(?:(?<=b)c1|(?<=l)tc1)[02-9ac-hj-np-z]{39,71}"
    r"|(?<=[13DLMT])[1-9A-HJ-NP-Za-km-z]{25,34})(?!\w)"
)
_BASE58 = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"


def search_email(text: str, start: int, kinds: Collection[str]) -> Span | None:
    """The first e-mail address."""
    at = text.find("@", start)
    while at >= 0:
        domain = _DOMAIN.match(text, at)
        local = _LOCAL_PART.search(text, max(start, at - 64), at) if domain is not None else None
        if domain is not None and local is not None:
            return Span(local.start(), domain.end(), "email")
        at = text.find("@", at + 1)
    return None


def search_ip(text: str, start: int, kinds: Collection[str]) -> Span | None:
    """The first public IP address."""
    first = _first_public(_IPV4, text, start, len(text))
    end = len(text) if first is None else min(len(text), first.start() + MAX_IPV6_CHARS)
    if text.count(":", start, end) > 1:
        other = _first_public(_IPV6, text, start, end)
        if other is not None and (first is None or other.start() < first.start()):
            first = other
    return None if first is None else Span(first.start(), first.end(), "ip")


def _first_public(pattern: re.Pattern[str], text: str, start: int, end: int) -> re.Match[str] | None:
    return next((match for match in pattern.finditer(text, start, end) if _is_public(match.group())), None)


def _is_public(text: str) -> bool:
    """Compressed IPv6 addresses must be in the block that is in use: `a::b` is a name in C++."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return False
    return address.is_global and ("::" not in text or (text[0] in "23" and len(text.split(":")[0]) == 4))


def search_mac(text: str, start: int, kinds: Collection[str]) -> Span | None:
    """The first address of a network card that its maker gave, no group's and no virtual one's."""
    for match in _MAC.finditer(text, start):
        if not int(match.group()[:2], 16) & 3 and match.group().strip("0:-"):
            return Span(match.start(), match.end(), "mac")
    return None


def search_wallet(text: str, start: int, kinds: Collection[str]) -> Span | None:
    """The first address of Bitcoin, Ethereum, Litecoin, Dogecoin or Tron."""
    for match in _WALLET.finditer(text, start):
        if match.group()[:2] in ("0x", "bc", "lt") or _is_base58check(match.group()):
            return Span(match.start(), match.end(), "crypto_address")
    return None


def _is_base58check(text: str) -> bool:
    number = 0
    for char in text:
        number = number * 58 + _BASE58.index(char)
    payload = number.to_bytes(26, "big")[1:]
    return hashlib.sha256(hashlib.sha256(payload[:-4]).digest()).digest()[:4] == payload[-4:]
