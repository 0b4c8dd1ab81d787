"""Attacks on the prompt that patterns recognise: overriding instructions, jailbreaks, extraction.

The text is read as a person would: Unicode is normalised and invisible characters are dropped first. High
precision, not high recall: other wordings pass.
"""

from __future__ import annotations

import unicodedata

import regex

MAX_CHARS = 100_000

_EARLIER = (
    r"(?:all |any |the |your |my |these |of )*"
    r"(?:previous|prior|above|earlier|preceding|foregoing|system|original|initial)"
)
_RULES = r"(?:instructions?|prompts?|rules?|directions?|guidelines?|commands?|messages?)"
_PATTERNS = {
    "override": r"\b(?:ignore|disregard|forget|override|bypass|do not follow|stop following)"
    rf" {_EARLIER} {_RULES}\b",
    "jailbreak": r"\b(?:you are now|act as|pretend to be|enter|enable|activate) (?:in |a |an |the )*"
    r"(?:dan|stan|dude|developer|jailbreak|unrestricted|unfiltered|god)(?: mode| ai| assistant| model)?\b"
    r"(?=.{0,300}\b(?:no|without|any|ignore|free|anything|restrictions?|rules|filters?|never refuse)\b)",
    "extraction": rf"\b(?:reveal|show|print|repeat|output|display|give|tell)(?: me| us)? (?:verbatim )?"
    r"(?:all |the |your |of |exact |full |entire |hidden |secret )*(?:system|initial|original|hidden)"
    rf" {_RULES}\b",
}
_PATTERN = regex.compile(
    "|".join(f"(?P<{name}>{text})" for name, text in _PATTERNS.items()), regex.IGNORECASE | regex.DOTALL
)
_INVISIBLE = regex.compile(r"[\p{Cf}\p{Mn}\U000E0000-\U000E007F]")


def readable(text: str) -> str:
    """NFKC without invisible characters and accents, with single spaces."""
    decomposed = unicodedata.normalize("NFKD", text[:MAX_CHARS])
    return " ".join(_INVISIBLE.sub("", decomposed).split())


def find_injection(text: str) -> str:
    """The kind of attack, or ""."""
    match = _PATTERN.search(readable(text))
    return "" if match is None else str(match.lastgroup)
