"""Conditions in CEL, type-checked by Google's cel-cpp when the policies are loaded."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from cel_expr_python import cel

from policies.names import nearest
from policies.variables import MAPS, VARIABLES

_FUNCTIONS = (
    "contains", "startsWith", "endsWith", "matches", "size", "has", "exists", "all", "exists_one", "filter",
    "map", "int", "uint", "double", "string", "bool", "duration", "timestamp", "type", "getDate",
    "getDayOfMonth", "getDayOfWeek", "getDayOfYear", "getFullYear", "getHours", "getMinutes", "getMonth",
    "getSeconds", "getMilliseconds",
)  # fmt: skip
_ERROR = re.compile(r"ERROR: <input>:(\d+):(\d+): ([^\n]*)")
_UNKNOWN = re.compile(r"undeclared reference to '([^']*)'")
_OVERLOAD = re.compile(r"found no matching overload for '_?([^'_]*(?:_:|\[_\])?)_?' applied to '\((.*)\)'")
_STRING = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"", re.DOTALL)
_NAMES = {name: re.compile(rf"(?<![\w.]){re.escape(name)}(?!\w)") for name in VARIABLES}
_KEYED = re.compile(rf"(?<![\w.])(?P<map>{'|'.join(map(re.escape, sorted(MAPS)))})(?!\w)")
_LITERAL_ARGUMENT = re.compile(
    rf"\.(?P<name>matches|get[A-Z]\w+)\(\s*(?P<text>{_STRING.pattern})\s*\)", re.DOTALL
)
"""Expressions and time zones: what is wrong with them shows only when they are evaluated."""
_KEY = re.compile(r"\s*\[\s*(?:'(?P<single>[^'\\]*)'|\"(?P<double>[^\"\\]*)\")\s*\]")


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong with a condition, and where in its text, both from 1."""

    message: str
    line: int = 1
    column: int = 1


class ConditionError(Exception):
    """A condition that cannot be compiled."""

    def __init__(self, faults: list[Fault]) -> None:
        self.faults = faults
        super().__init__("; ".join(fault.message for fault in faults))


class Condition:
    """A compiled condition. `names` are the variables in it, `keys` the (variable, key) pairs."""

    __slots__ = ("_program", "constant", "keys", "names", "source")

    def __init__(self, source: str) -> None:
        """Raises ConditionError."""
        self.source = source
        bare = _without_strings(source)
        packed = re.sub(r"(?<!\s)\s*+\.\s*", ".", bare)
        self.names = frozenset(name for name, pattern in _NAMES.items() if pattern.search(packed))
        self._program = _compile(source)
        self.keys = _keys(source, bare)
        self.constant: bool | None = None
        if not self.names:
            found = _value(self._program)
            self.constant = found if isinstance(found, bool) else None

    def holds(self, activation: Any) -> bool | None:  # noqa: ANN401 - cel.Activation
        """Whether it is true; None when it cannot be evaluated, such as after a division by zero."""
        found = _value(self._program, activation)
        return found if isinstance(found, bool) else None

    def shown(self, facts: Mapping[str, Any]) -> dict[str, object]:
        """The values that it was evaluated with, by name as it is written in conditions."""
        shown: dict[str, object] = {name: facts[name] for name in sorted(self.names - MAPS)}
        return shown | {f"{name}[{key!r}]": facts[name][key] for name, key in sorted(self.keys)}


def activation(facts: Mapping[str, Any]) -> Any:  # noqa: ANN401 - cel.Activation
    """Facts by variable name, ready to evaluate conditions with."""
    return _environment().Activation(facts)


def _value(program: Any, *activation: Any) -> Any:  # noqa: ANN401 - cel.Expression, cel.Activation
    """What it gives; None where cel-cpp gives up: too many iterations, or text that is not Unicode."""
    try:
        return program.eval(*activation).value()
    except RuntimeError:
        return None


@cache
def _environment() -> Any:  # noqa: ANN401 - cel.Env
    return cel.NewEnv(variables={name: variable.kind for name, variable in VARIABLES.items()})


def _compile(source: str) -> Any:  # noqa: ANN401 - cel.Expression
    try:
        program = _environment().compile(source)
    except RuntimeError as error:
        found = [_fault(int(line), int(column), text) for line, column, text in _ERROR.findall(str(error))]
        raise ConditionError(found or [Fault(str(error).partition("\n")[0])]) from None
    kind = program.return_type().name().lower()
    if kind != "bool":
        raise ConditionError([Fault(f"a condition must give a bool, not a value of type {kind}; compare it")])
    for call in _LITERAL_ARGUMENT.finditer(source):
        subject = "''" if call["name"] == "matches" else "timestamp('2026-01-01T00:00:00Z')"
        check = _value(_environment().compile(f"{subject}.{call['name']}({call['text']})"))
        if not isinstance(check, bool | int):
            cause = str(check).partition(": ")[2] if call["name"] == "matches" else "unknown time zone"
            raise ConditionError([_fault_at(source, call.start("text"), cause)])
    return program


def _fault(line: int, column: int, text: str) -> Fault:
    """cel-cpp's message in our words; a select expression begins before the dot that it points to."""
    text = text.strip()
    if unknown := _UNKNOWN.search(text):
        name = unknown[1]
        column = max(1, column - len(name.rpartition(".")[0])) if "." in name else column
        return Fault(f"unknown name {name!r}{_nearest(name)}", line, column)
    if overload := _OVERLOAD.search(text):
        operator = overload[1].strip("_") or overload[1]
        return Fault(
            f"{operator!r} is not defined for ({overload[2]}); convert one, as with int(x)", line, column
        )
    if text.startswith("Syntax error: "):
        text = re.sub(r" expecting \{.*", "", text.removeprefix("Syntax error: ")).replace(
            "'<EOF>'", "the end"
        )
        return Fault(f"is not valid CEL: {text}", line, column)
    return Fault(text, line, column)


def _nearest(name: str) -> str:
    """A hint at the variable or function that was meant, if only by its last part."""
    by_last = [each for each in VARIABLES if each.rpartition(".")[2] == name]
    if by_last:
        return f"; did you mean {by_last[0]!r}?"
    hint = nearest(name, (*VARIABLES, *_FUNCTIONS))
    return hint if "did you mean" in hint else f"; known: {', '.join(VARIABLES)}"


def _fault_at(source: str, offset: int, message: str) -> Fault:
    before = source[:offset]
    return Fault(message, before.count("\n") + 1, offset - (before.rfind("\n") + 1) + 1)


def _without_strings(source: str) -> str:
    """The source with the content of its string literals blanked, of the same length."""
    return _STRING.sub(lambda found: found[0][0] + " " * (len(found[0]) - 2) + found[0][-1], source)


def _keys(source: str, bare: str) -> frozenset[tuple[str, str]]:
    """The literal keys of maps. Raises ConditionError for a map used in any other way."""
    keys: set[tuple[str, str]] = set()
    for found in _KEYED.finditer(bare):
        name = found["map"]
        key = _KEY.match(source, found.end("map"))
        if key is None:
            message = f"{name} is used without a literal key; write {name}['KEY']"
            raise ConditionError([_fault_at(source, found.start(), message)])
        keys.add((name, key["single"] if key["single"] is not None else key["double"]))
    return frozenset(keys)
