"""llguidance's errors in words of our own: its messages quote grammars and schemas of the caller."""

from __future__ import annotations

import re

from llguidance import LLMatcher

_DEAD_END = "NoExtension"
_UNSATISFIABLE = "nothing satisfies it"
_PLACE = re.compile(r"(?:at )?(?P<line>\d+)\((?P<column>\d+)\): ")
_REGEX_CAUSE = re.compile(r"^error: (?P<cause>.+)$", re.MULTILINE)  # regex-syntax has fixed sentences
_GBNF_CAUSE = re.compile(r"(?P<cause>Expected \W+|Unexpected end of input) at line (?P<line>\d+), ")

_SCHEMA = "failed to compile JSON schema: "
_BOUND = r"((?:min|max)(?:imum|Length|Items|Properties)|exclusiveM(?:in|ax)imum)"
_KEYWORD = r"((?:patternP|p)roperties|required|(?:prefixI|i)tems|enum|(?:any|one|all)Of|definitions)"
_CAUSES = (
    # Anchored at the start: the groups are keywords of JSON Schema, never what a caller wrote.
    (rf"{_BOUND} \([^)]*\) is greater than {_BOUND} ", "{} is greater than {}"),
    (
        r"minProperties \([0-9]+\) is greater than number of",
        "minProperties is greater than the number of properties",
    ),
    (r"minProperties > maxProperties", "minProperties is greater than maxProperties"),
    (
        r"min/maxProperties only supported when",
        "minProperties and maxProperties need every property of 'properties' to be required",
    ),
    (r"Expected ([a-z0-9 ]+) for '(\w+)'", "expected {} for '{}'"),
    (rf"{_KEYWORD} must be an? (\w+)", "'{}' must be of type {}"),
    (r'Unimplemented keys: \["([A-Za-z]+)"', "the keyword '{}' is not supported"),
    (r"oneOf constraints are not supported", "the keyword 'oneOf' is not supported"),
    (r"Invalid type:", "invalid type"),
    (r"Unknown format:", "unknown format"),
    (r"Pointer .* does not exist", "a '$ref' points to nothing"),
    (r"Resource .* is not present", "a '$ref' points to another document"),
    (r"required property .* is unsatisfiable", "a required property is unsatisfiable"),
    (r"anyOf is empty", "'anyOf' or 'enum' is empty"),
    (r"incompatible types", "incompatible types"),
    (
        r".*lookarounds not supported",
        "invalid regex: look-around, word boundaries included, is not supported",
    ),
    (r"invalid regex|regex parse error", "invalid regex"),
    (r"unknown name", "unknown name"),
    (r"unknown special token", "unknown special token"),
    (r"unknown grammar", "unknown grammar"),
    (r"Unknown common regex", "unknown import"),
    (r"range end must be >= start", "the end of a range is before its start"),
    (r"lexer error$", "it cannot be read"),
    (r"Parser Error: Current row has", "too many rules apply at once"),
    (r"Parser Error: token", "the text does not satisfy it"),
    (r".*too deep", "it is nested too deeply"),
    (r".*(?:too (?:big|large|complex|many)|[Ee]xceeded|limit)", "it is too large"),
)


def explanation(message: str) -> str:
    """Return what an llguidance error says, without what it quotes; for unknown ones a general sentence.

    Keeps the place, as `at LINE(COLUMN): `: in a grammar composed of several schemas it tells which is meant.
    """
    if message.startswith(_DEAD_END):
        return _UNSATISFIABLE
    place = _PLACE.match(message)
    start = f"at {place['line']}({place['column']}): " if place else ""
    text = message[place.end() :] if place else message
    start += _SCHEMA if text.startswith(_SCHEMA) else ""
    return start + _cause(text.removeprefix(_SCHEMA).removeprefix("Unsatisfiable schema: "))


def gbnf_explanation(message: str) -> str:
    """`explanation` for errors of the conversion of GBNF to Lark."""
    found = _GBNF_CAUSE.match(message)
    return f"{found['cause']} at line {found['line']}" if found else "it is neither Lark nor GBNF"


def _cause(message: str) -> str:
    quoted = _REGEX_CAUSE.findall(message) if "regex parse error" in message else []
    if quoted:
        return f"invalid regex: {quoted[-1]}"
    for pattern, cause in _CAUSES:
        if found := re.match(pattern, message.split("\n", 1)[0]):
            return cause.format(*found.groups())
    return "it cannot be compiled"


def error_summary(matcher: LLMatcher) -> str:
    """Return the `explanation` of a matcher's error."""
    return explanation(matcher.get_error())


def generation_error(matcher: LLMatcher) -> str:
    """Return a message for the user about an error during generation."""
    if matcher.get_error().startswith(_DEAD_END):
        return (
            "the grammar of this request cannot be completed from here: nothing satisfies what comes next; "
            "correct that rule or schema"
        )
    return f"the grammar of this request became too complex: {error_summary(matcher)}"
