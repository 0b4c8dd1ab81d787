"""cel-cpp's errors in words: what is wrong with a condition, and what to write in its place."""

from __future__ import annotations

import difflib
import re
import zoneinfo
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from policies.names import nearest
from policies.variables import VARIABLES

_FUNCTIONS = (
    "contains", "startsWith", "endsWith", "matches", "size", "has", "exists", "all", "exists_one", "filter",
    "map", "int", "uint", "double", "string", "bool", "duration", "timestamp", "type", "getDate",
    "getDayOfMonth", "getDayOfWeek", "getDayOfYear", "getFullYear", "getHours", "getMinutes", "getMonth",
    "getSeconds", "getMilliseconds",
)  # fmt: skip
_UNKNOWN = re.compile(r"undeclared reference to '([^']*)'")
_OVERLOAD = re.compile(r"found no matching overload for '_?([^'_]*(?:_:|\[_\])?)_?' applied to '\((.*)\)'")
_NO_OPERATOR = r"\1 where an operator such as '&&' or '==' is expected"
_SELECT = re.compile(r"expression of type '([^']*)' cannot be the operand")
_LITERALS = {"True": "true", "False": "false", "TRUE": "true", "FALSE": "false", "None": "''", "nil": "''"}
_OTHER_NAMES = {
    "len": "size(x)",
    "length": "size(x)",
    "lower": "matches('(?i)…')",
    "toLowerCase": "matches('(?i)…')",
}

_MISTAKES: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), message)
    for pattern, message in (
        (r"[“”‘’„]", "strings stand in straight quotes: write 'text'"),
        (r"[=!]==", "'{0}' is no operator; write '{1}'"),
        (r"<>", "'<>' is no operator; write '!='"),
        (r"=~|(?<![\w])~", "'{0}' is no operator; write x.matches('REGEX')"),
        (r"=>|=<", "'{0}' is no operator; write '>=' or '<='"),
        (r"(?<![=!<>])=(?![=~<>])", "'=' is no operator; write '==' to compare"),
        (r"(?<!&)&(?!&)", "'&' is no operator; write '&&'"),
        (r"(?<!\|)\|(?!\|)", "'|' is no operator; write '||'"),
        (r"\b(?:and|AND)\b", "'{0}' is no operator; write '&&'"),
        (r"\b(?:or|OR)\b", "'{0}' is no operator; write '||'"),
        (r"\bnot\s+in\b", "'not in' is no operator; write !(x in ['a', 'b'])"),
        (r"\b(?:not|NOT)\b", "'{0}' is no operator; write '!', as in !(a == b)"),
        (r"\bis\b", "'is' is no operator; write '=='"),
        (
            r"(?<=\s)(?:like|LIKE|contains|startsWith|endsWith|matches)(?=\s)",
            "'{0}' is called: write x.contains('text')",
        ),
        (r"\bin\s*\(", "a list stands in brackets: write x in ['a', 'b']"),
        (r";", "';' does not end a condition; remove it"),
        (r"^\s*if\b", "a condition has no 'if': write what must be true"),
    )
)


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong with a condition, and where in its text, both from 1."""

    message: str
    line: int = 1
    column: int = 1


def syntax_faults(source: str, bare: str) -> Iterator[Fault]:
    """Operators of other languages in a source that does not compile; `bare` has no content of strings."""
    taken: set[int] = set()
    for pattern, message in _MISTAKES:
        for found in pattern.finditer(bare):
            if taken.isdisjoint(range(*found.span())):
                taken.update(range(*found.span()))
                yield fault_at(source, found.start(), message.format(found[0].strip(), found[0][:2]))
    opened = re.search(
        r"'[^']*$|\"[^\"]*$", re.sub(r"'[^'\"]*'|\"[^\"']*\"", lambda text: " " * len(text[0]), bare)
    )
    if opened and not taken:
        yield fault_at(source, opened.start(), "a string begins here and does not end; add its closing quote")


def fault(source: str, line: int, column: int, text: str) -> Fault:
    """One message in our words; a select expression begins before the dot that it points to."""
    text = text.strip()
    if unknown := _UNKNOWN.search(text):
        name = unknown[1]
        column = max(1, column - len(name.rpartition(".")[0])) if "." in name else column
        return Fault(f"unknown name {name!r}{_nearest(name)}", line, column)
    if overload := _OVERLOAD.search(text):
        operator = overload[1].strip("_") or overload[1]
        types = overload[2].split(", ")
        remedy = _convert(operator, types, _line(source, line), column)
        return Fault(f"{operator!r} is not defined for ({overload[2]}); {remedy}", line, column)
    if select := _SELECT.search(text):
        return Fault(_field_of(select[1]), line, column)
    if text.startswith("Syntax error: "):
        text = re.sub(r" expecting \{.*", "", text.removeprefix("Syntax error: "))
        text = re.sub(r"token recognition error at: .*", "a character that CEL does not know", text)
        text = re.sub(r"input '['\"].*['\"]'", "input of a string", text)
        text = text.replace("mismatched input '<EOF>'", "it ends where a value is expected")
        text = re.sub(r"(?:mismatched|extraneous) (input .*) expecting <EOF>", _NO_OPERATOR, text)
        text = text.replace("'<EOF>'", "the end")
        return Fault(f"is not valid CEL: {text}", line, column)
    return Fault(text, line, column)


def fault_at(source: str, offset: int, message: str) -> Fault:
    """A fault at a character of the source."""
    before = source[:offset]
    return Fault(message, before.count("\n") + 1, offset - (before.rfind("\n") + 1) + 1)


def unknown_time_zone(zone: str) -> str:
    """What is wrong with a name that is no time zone, and the nearest that is one."""
    zones = zoneinfo.available_timezones()
    wanted = _ABBREVIATIONS.get(zone.upper()) or _near_zone(zone.replace(" ", "_"), zones)
    return f"unknown time zone {zone!r}; " + (
        f"did you mean {wanted!r}?" if wanted else "write one as 'Europe/Berlin'"
    )


_ABBREVIATIONS: Mapping[str, str] = {
    "CEST": "Europe/Berlin", "MESZ": "Europe/Berlin", "MEZ": "Europe/Berlin", "BST": "Europe/London",
    "EDT": "America/New_York", "CST": "America/Chicago", "CDT": "America/Chicago", "MDT": "America/Denver",
    "PST": "America/Los_Angeles", "PDT": "America/Los_Angeles", "IST": "Asia/Kolkata", "JST": "Asia/Tokyo",
    "AEST": "Australia/Sydney", "AEDT": "Australia/Sydney", "Z": "UTC",
}  # fmt: skip


def _near_zone(zone: str, zones: set[str]) -> str:
    """By the whole name or its last part, in any case; else the one with the fewest differences."""
    by_fold = {each.lower(): each for each in sorted(zones)}
    by_last = {each.lower().rpartition("/")[2]: each for each in sorted(zones, reverse=True)}
    lower = zone.lower()
    if lower in by_fold or lower in by_last:
        return by_fold.get(lower) or by_last[lower]
    close = difflib.get_close_matches(lower, by_fold, n=1, cutoff=0.75)
    if close:
        return by_fold[close[0]]
    last = difflib.get_close_matches(lower.rpartition("/")[2], by_last, n=1, cutoff=0.8)
    return by_last[last[0]] if last else ""


def _nearest(name: str) -> str:
    """A hint at the variable or function that was meant, if only by its last part."""
    if name in _LITERALS:
        return f"; write {_LITERALS[name]}"
    last = name.rpartition(".")[2]
    if last in _OTHER_NAMES:
        return f"; write {_OTHER_NAMES[last]}"
    by_last = [each for each in VARIABLES if each.rpartition(".")[2] == name]
    if by_last:
        return f"; did you mean {by_last[0]!r}?"
    hint = nearest(name, (*VARIABLES, *_FUNCTIONS))
    if "did you mean" in hint:
        return hint
    return f"; text stands in quotes, as '{last}'; known: {', '.join(VARIABLES)}"


def _line(source: str, number: int) -> str:
    return (source.split("\n") + [""] * number)[number - 1]


def _convert(operator: str, types: list[str], line: str, column: int) -> str:
    """How to make both sides of an operator the same type."""
    pair = set(types)
    if operator == "!":
        return "write !(…) around a comparison, as in !(a == b)"
    if pair == {"double", "int"}:
        return _number(line, column)
    if "null_type" in pair:
        return "nothing is null: compare with '', 0 or false, which stand for what is missing"
    if "google.protobuf.Timestamp" in pair:
        return "write timestamp('2026-01-31T08:00:00Z'), or time.getHours('Europe/Berlin')"
    if pair == {"bool", "string"}:
        return "write true or false without quotes"
    if types == ["bool", "int"] and operator in ("<", "<=", ">", ">="):
        return "compare twice: a < x && x < b"
    if pair == {"bool", "int"}:
        return "write true or false"
    if pair == {"int", "string"} or pair == {"double", "string"}:
        return "write the number in quotes" if types[0] == "string" else "write the number without quotes"
    return "convert one, as with int(x)"


_LITERAL = r"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?"


def _number(line: str, column: int) -> str:
    """The literal with or without its decimals; conversions where there is none."""
    after = re.compile(rf"[<>=!+*/-]+\s*({_LITERAL})").match(line, column - 1)
    before = re.compile(rf"({_LITERAL})\s*$").search(line[: column - 1])
    literal = after[1] if after else before[1] if before else ""
    if not literal:
        return "write double(x) around the whole number"
    is_double = not literal.lstrip("-").isdigit()
    if is_double and not float(literal).is_integer():
        return "compare with a whole number, or write double(x) around the other side"
    return f"write {float(literal):g}" if is_double else f"write {literal}.0"


def _field_of(kind: str) -> str:
    if kind.endswith("Timestamp"):
        return (
            "a time has no fields; write time.getHours('Europe/Berlin'), time.getDayOfWeek('UTC') and so on"
        )
    what = {"string": "a text", "int": "a number", "double": "a number", "bool": "true or false"}.get(
        kind, f"a {kind}"
    )
    return f"{what} has no fields; functions are called, as x.size()"
