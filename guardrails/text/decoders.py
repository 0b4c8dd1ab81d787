"""What encoded parts of a text say: base64, hex, binary, escapes, tag characters, ciphers …"""

from __future__ import annotations

import base64
import binascii
import codecs
import html
import string
from collections.abc import Callable, Iterator
from urllib.parse import unquote

import regex

from guardrails.scan.prefilter import Prefilter

MAX_PAYLOADS = 16
"""Encoded parts of one kind that are decoded in a text."""
MIN_DECODED_CHARS = 6
LIMIT = "limit"
"""In place of an encoding: there is more that was not decoded."""

TAGS = regex.compile("(?<!\U0001f3f4)[\U000e0020-\U000e007e]{2,4000}(?!\U000e007f)")
"""Invisible copies of ASCII; flags of regions use a few of them."""
SELECTORS = regex.compile("[\ufe00-\ufe0f\U000e0100-\U000e01ef]{4,4000}")
"""Variation selectors in a row: bytes hidden behind a character."""

_ATBASH = str.maketrans(string.ascii_letters, string.ascii_lowercase[::-1] + string.ascii_uppercase[::-1])
_WORD = regex.compile(r"[A-Za-z]+")
_ESCAPE = regex.compile(r"\\(?:x([0-9a-fA-F]{2})|u\{?([0-9a-fA-F]{4,6})\}?|U([0-9a-fA-F]{8}))")
_MORSE = dict(
    zip(
        ".- -... -.-. -.. . ..-. --. .... .. .--- -.- .-.. -- -. --- .--. --.- .-. ... - ..- ...- .-- -..- "
        "-.-- --.. ----- .---- ..--- ...-- ....- ..... -.... --... ---.. ----.".split(),
        string.ascii_lowercase + string.digits,
        strict=True,
    )
)  # fmt: skip


def _pattern(text: str) -> regex.Pattern[str]:
    """With possessive repetitions: nothing is tried twice."""
    return regex.compile(text, regex.IGNORECASE | regex.ASCII)


def _escaped(escape: str, stop: str) -> regex.Pattern[str]:
    """At least three escapes and what stands around them, between two `stop`s."""
    other = rf"(?:(?!{escape})[^{stop}])*+"
    return _pattern(rf"(?<![^{stop}]){other}(?:{escape}{other}){{3,}}+")


def rot13(text: str) -> str:
    """Letters moved by 13 places."""
    return codecs.encode(text, "rot13")


def atbash(text: str) -> str:
    """Letters from the other end of the alphabet."""
    return text.translate(_ATBASH)


def backwards(text: str) -> str:
    """From the end."""
    return text[::-1]


def backwards_words(text: str) -> str:
    """Each word from its end."""
    return _WORD.sub(lambda match: str(match[0])[::-1], text)


def decode(text: str) -> Iterator[tuple[str, int, int, str]]:
    """(encoding, start, end, decoded) of each encoded part that holds readable text."""
    for candidate in _PREFILTER.candidates(text):
        name, (pattern, decoder) = _NUMBERED[candidate]
        whole = (match for match in pattern.finditer(text) if not _goes_on(name, text, match.end()))
        for number, match in enumerate(whole):
            if number >= MAX_PAYLOADS:
                yield LIMIT, match.start(), match.end(), ""
                break
            decoded = _readable(decoder(str(match[0])))
            if decoded and decoded != match[0]:
                yield name, match.start(), match.end(), decoded


def _goes_on(name: str, text: str, end: int) -> bool:
    return name in _GOES_ON and _GOES_ON[name].match(text, end) is not None


def _readable(data: bytes | str) -> str:
    """The text, or "" where it is none: too short or not mostly letters and spaces."""
    try:
        text = data.decode("utf-8") if isinstance(data, bytes) else data
    except UnicodeDecodeError:
        return ""
    if len(text) < MIN_DECODED_CHARS:
        return ""
    letters = sum(char.isalnum() or char.isspace() for char in text)
    return text if letters >= 0.7 * len(text) and text.isprintable() | ("\n" in text) else ""


def _base64(text: str) -> bytes:
    compact = "".join(text.split()).rstrip("=").replace("-", "+").replace("_", "/")
    try:
        return base64.b64decode(compact[: len(compact) - (len(compact) % 4 == 1)] + "=" * (-len(compact) % 4))
    except (binascii.Error, ValueError):
        return b""


def _base32(text: str) -> bytes:
    compact = text.rstrip("=")
    try:
        return base64.b32decode(compact + "=" * (-len(compact) % 8))
    except (binascii.Error, ValueError):
        return b""


def _hex(text: str) -> bytes:
    digits = regex.sub(r"0x|[^0-9a-fA-F]", "", text)
    return bytes.fromhex(digits[: len(digits) // 2 * 2])


def _binary(text: str) -> bytes:
    bits = "".join(text.split())
    return bytes(int(bits[i : i + 8], 2) for i in range(0, len(bits) // 8 * 8, 8))


def _decimal(text: str) -> bytes:
    codes = [int(code) for code in regex.findall(r"\d+", text)]
    return bytes(codes) if max(codes) < 128 else b""


def _morse(text: str) -> str:
    words = regex.split(r"\s*/\s*|\s{2,}", text.strip())
    return " ".join("".join(_MORSE.get(letter, "?") for letter in word.split()) for word in words)


def _escapes(text: str) -> str:
    def char(match: regex.Match[str]) -> str:
        code = int(match[1] or match[2] or match[3], 16)
        return chr(code) if code < 0x110000 and not 0xD800 <= code < 0xE000 else ""

    return _ESCAPE.sub(char, text)


def _tags(text: str) -> str:
    return "".join(chr(ord(char) - 0xE0000) for char in text)


def _selectors(text: str) -> bytes:
    codes = (ord(char) for char in text)
    return bytes(code - 0xFE00 if code < 0xE0100 else code - 0xE0100 + 16 for code in codes)


_DECODERS: dict[str, tuple[regex.Pattern[str], Callable[[str], bytes | str]]] = {
    "base64": (_pattern(r"(?<![\w+/-])[\w+/-]{16,}+(?:\r?\n[\w+/-]{16,}+)*+={0,2}"), _base64),
    "base32": (_pattern(r"(?<!\w)[A-Z2-7]{16,}+={0,6}(?!\w)"), _base32),
    "hex": (_pattern(r"(?<!\w)(?:0x|\\x)?[0-9a-f]{2}(?:[\s,:]{0,2}(?:0x|\\x)?[0-9a-f]{2}){7,}+"), _hex),
    "binary": (_pattern(r"(?<!\w)[01]{8}(?:\s{0,2}[01]{8}){5,}+"), _binary),
    "decimal": (_pattern(r"(?<!\w)\d{2,3}(?:[\s,]{1,2}\d{2,3}){6,}+"), _decimal),
    "morse": (_pattern(r"(?<![\w.-])[.-]{1,5}+(?:[ /|]{1,3}+[.-]{1,5}+){7,}+"), _morse),
    "percent": (_escaped(r"%[0-9a-f]{2}", r"\s"), unquote),
    "entities": (_escaped(r"&#x?[0-9a-f]{1,6};", r"\n"), html.unescape),
    "escapes": (_escaped(r"\\(?:x[0-9a-f]{2}|u\{?[0-9a-f]{4,6})", r"\n"), _escapes),
    "tags": (TAGS, _tags),
    "selectors": (SELECTORS, _selectors),
}
_GOES_ON = {name: regex.compile(r"\w", regex.ASCII) for name in ("hex", "binary", "decimal")} | {
    "morse": regex.compile(r"[\w.-]", regex.ASCII)
}
"""What may not stand behind a run of groups: as a part of its pattern, each group would be read again."""
_NUMBERED = tuple(_DECODERS.items())
_PREFILTER = Prefilter([pattern.pattern for pattern, _ in _DECODERS.values()])
