"""Conditions in CEL, type-checked by Google's cel-cpp when the policies are loaded."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any

from cel_expr_python import cel

from policies.condition_faults import Fault, fault, fault_at, syntax_faults, unknown_time_zone
from policies.time_limit import check_time
from policies.variables import MAPS, VARIABLES

_ERROR = re.compile(r"ERROR: <input>:(\d+):(\d+): ([^\n]*)")
_STRING = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"", re.DOTALL)
_NAMES = {name: re.compile(rf"(?<![\w.]){re.escape(name)}(?!\w)") for name in VARIABLES}
_KEYED = re.compile(rf"(?<![\w.])(?P<map>{'|'.join(map(re.escape, sorted(MAPS)))})(?!\w)")
_LITERAL_ARGUMENT = re.compile(
    rf"\.(?P<name>matches|get[A-Z]\w+)\(\s*(?P<text>{_STRING.pattern})\s*\)", re.DOTALL
)
"""Expressions and time zones: what is wrong with them shows only when they are evaluated."""
_KEY = re.compile(r"\s*\[\s*(?:'(?P<single>[^'\\]*)'|\"(?P<double>[^\"\\]*)\")\s*\]")


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
        check_time()
        self.source = source
        bare = without_strings(source)
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
        errors = _ERROR.findall(str(error))
        is_syntax = any(text.strip().startswith("Syntax error") for _, _, text in errors)
        found = [*syntax_faults(source, without_strings(source))] if is_syntax else []
        found = found or [fault(source, int(line), int(column), text) for line, column, text in errors]
        raise ConditionError(found or [Fault(str(error).partition("\n")[0])]) from None
    kind = program.return_type().name().lower()
    if kind != "bool":
        raise ConditionError([Fault(f"a condition must give a bool, not a value of type {kind}; compare it")])
    for call in _LITERAL_ARGUMENT.finditer(source):
        subject = "''" if call["name"] == "matches" else "timestamp('2026-01-01T00:00:00Z')"
        check = _value(_environment().compile(f"{subject}.{call['name']}({call['text']})"))
        if not isinstance(check, bool | int):
            if call["name"] == "matches":
                cause = str(check).partition(": ")[2]
            else:
                cause = unknown_time_zone(call["text"][1:-1])
            raise ConditionError([fault_at(source, call.start("text"), cause)])
    return program


def without_strings(source: str) -> str:
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
            raise ConditionError([fault_at(source, found.start(), message)])
        keys.add((name, key["single"] if key["single"] is not None else key["double"]))
    return frozenset(keys)
