"""Phone numbers: shapes that are one anywhere, and shapes that are one after a word that says so.

The library `phonenumbers` needs a region, takes 4 to 7 ms per KB for each and flags logs. Numbers of all
countries have few shapes: a plus, a trunk prefix 0, an area code in brackets, three groups in North America.
"""

from __future__ import annotations

import re

_SHAPES = re.compile(
    r"""(?ax)
    (?P<plus> \(?\+ \(?[1-9] [\d ().\-/]+ )
    | (?: (?:\+|00)?1[ .-]? )? (?: \(\d{3}\)[ -]? \d{3}[ .-]?\d{4} | \d{3}([.-])\d{3}[.-]\d{4}
        | [2-9]\d\d[ ][2-9]\d\d[ -]\d{4} )
    | (?: [0178][ -]? )? \((?!19\d\d|20\d\d)0?\d{1,5}\)[ -]? \d{2,5}(?: [ .-]?\d{2,5} ){1,3}
    | (?: 00[1-9]\d{0,2} | 0[1-9]\d{0,3} )
      (?: (?: [ ]?[/-][ ]? | [ ] ) \d{2,8} (?: [ ]\d{2,8} | -\d{1,4} )? )
    | (?: 00[1-9]\d{0,2} | 0[1-9]\d{0,3} | 0(?=-|[ ]\d{3}[ ]\d{3}[ ]\d\d) )
      (?: [ /-] \d{2,4} (?: ([ .-]) \d{2,4} ) (?: \3\d{2,4} ){0,3} | (?: \.\d{2,4} ){2,4} )
    """
)
_DATE = re.compile(r"(?a)(?:^|\D)(?:19|20)\d\d([-./])[01]?\d\1[0-3]?\d(?:\D|$)")
_NO_PHONE = re.compile(r"(?a)\d+\.\d+|\d{1,3}(?:\.\d{1,3}){3}|\d{1,3}(?:\.\d{3}){2}|1[4-9]\d{8}|0+\d{1,5}")
"""Decimals, IP addresses, thousands, seconds since 1970: also where a word announces a phone."""
_EXTENSION = re.compile(
    r"(?ai),?[ ]?(?:x|ext(?:ension)?|dw|durchwahl|poste|int|ramal|wew|toestel)\.?:?[ ]?[0-9]{1,6}"
    r"(?![0-9A-Za-z_]|[.-][0-9])"
)
_OPEN_EXTENSION = re.compile(r"(?ai)(?<=[0-9]),?[ ]?[a-z]{0,9}\.?:?[ ]?[0-9]{0,6}[.-]?\Z")
MAX_EXTENSION_CHARS = 20


def is_shaped(value: str, digits: str) -> bool:
    """Whether a number looks like a phone's without any word."""
    match = _SHAPES.fullmatch(value) if has_shape(value, digits) else None
    if match is None or len(set(digits)) < 3 or _NO_PHONE.fullmatch(value) or _DATE.search(value):
        return False
    if match["plus"]:
        return (8 if len(digits) + 1 < len(value) else 9) <= len(digits) <= 15
    return (9 if value[0] == "0" else 8) <= len(digits) <= (15 if digits.startswith("00") else 12)


def has_shape(value: str, digits: str) -> bool:
    """Whether its length and beginning leave a shape to try, which costs more."""
    return 8 <= len(digits) <= 15


def is_announced(value: str, digits: str, *, is_weakly: bool) -> bool:
    """Whether a number after a word can be a phone's; a verb such as `call` announces weakly."""
    if _NO_PHONE.fullmatch(value) or _DATE.search(value):
        return False
    is_bare = len(value) == len(digits)
    most = 15 if digits.startswith("00") else 12 if is_bare else 13
    return (6 if not is_bare else 9 if is_weakly else 7) <= len(digits) <= most


def is_chinese(digits: str) -> bool:
    """Whether it can be a mobile phone's in China: enough beside Han characters."""
    return len(digits) == 11 and digits[0] == "1" and digits[1] > "2"


def end_of_extension(text: str, end: int) -> int:
    """Where the extension ends that stands behind a phone number, or the number."""
    match = _EXTENSION.match(text, end)
    return end if match is None else match.end()


def open_extension(text: str, start: int) -> int:
    """Where an extension begins that may go on behind the end of the text, or the end."""
    match = _OPEN_EXTENSION.search(text, max(start, len(text) - MAX_EXTENSION_CHARS))
    return len(text) if match is None else match.start()
