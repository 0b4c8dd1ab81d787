"""Comparisons in conditions that never hold, or always: with undeclared names and numbers out of range."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass

from policies.conditions import without_strings
from policies.names import nearest
from policies.variables import VARIABLES

_STRING = r"(?:'[^']*'|\"[^\"]*\")"  # of a source without the content of its strings
_NAMES = "|".join(re.escape(name) for name in sorted(VARIABLES, key=len, reverse=True))
_NAME = rf"(?<![\w.])(?P<name>{_NAMES})(?![\w.(\[])"
_EQUALITY = re.compile(rf"{_NAME}\s*(?P<op>==|!=)\s*(?P<text>{_STRING})")
_REVERSED = re.compile(rf"(?P<text>{_STRING})\s*(?P<op>==|!=)\s*{_NAME}")
_MEMBER = re.compile(rf"{_NAME}\s+(?P<op>in)\s*\[(?P<texts>[^\]]*)\]")
_CALL = re.compile(
    rf"(?<![\w.])(?P<name>{_NAMES})\.(?P<op>startsWith|endsWith|contains)\(\s*(?P<text>{_STRING})\s*\)"
)

_NUMBER = r"(?<![\w.])(?P<number>-?\d+(?:\.\d+)?)(?![\w.])"
_KEYED = (
    rf"(?<![\w.])(?P<name>{_NAMES})(?:\.(?P<call>get[A-Z]\w+)\([^()]*\)|\[\s*{_STRING}\s*\])?(?![\w.(\[])"
)
_ORDER = re.compile(rf"{_KEYED}\s*(?P<op><=|>=|==|!=|<|>)\s*{_NUMBER}")
_REVERSED_ORDER = re.compile(rf"{_NUMBER}\s*(?P<op><=|>=|==|!=|<|>)\s*{_KEYED}")
_MIRRORED = {"<": ">", ">": "<", "<=": ">=", ">=": "<="}

_CALLERS = ("tenant.name", "principal.key_id")
"""What is compared with them may be an API key: it is quoted only where it is close to a name."""
_ENDLESS = float("inf")
RANGES: Mapping[str, tuple[float, float]] = {
    "signals.needs_reasoning": (0, 1),
    "signals.gain": (-1, 1),
    "signals.similarity": (-1, 1),
    "request.num_messages": (0, _ENDLESS),
    "request.num_tokens_estimate": (0, _ENDLESS),
    "request.max_tokens": (0, _ENDLESS),
    "signals.num_words": (0, _ENDLESS),
    "signals.num_constraints": (0, _ENDLESS),
    "tenant.spent_usd": (0, _ENDLESS),
    "live.queue": (0, _ENDLESS),
    "live.spent_usd": (0, _ENDLESS),
    "getHours": (0, 23),
    "getMinutes": (0, 59),
    "getSeconds": (0, 59),
    "getMilliseconds": (0, 999),
    "getDayOfWeek": (0, 6),
    "getDate": (1, 31),
    "getDayOfMonth": (0, 30),
    "getDayOfYear": (0, 365),
    "getMonth": (0, 11),
}
_COUNTED = {
    "getDayOfWeek": ", Sunday is 0",
    "getMonth": ", January is 0",
    "getDayOfMonth": ", the first is 0; getDate() counts from 1",
    "getDayOfYear": ", January 1st is 0",
}


MAX_LISTED = 12


@dataclass(frozen=True, slots=True)
class Known:
    """What a variable can be: these values, and those of the form `pattern`."""

    values: Collection[str]
    pattern: str = ""
    what: str = ""  # of what they are, as "tier"
    suggest: Callable[[str], str] | None = None  # a hint at what was meant by another value

    def has(self, value: str) -> bool:
        """Whether the variable can be this."""
        return value in self.values or (self.pattern != "" and re.fullmatch(self.pattern, value) is not None)

    def listed(self) -> str:
        """All values in one text, or the first of many."""
        values = sorted(self.values)
        more = f" … ({len(values)})" if len(values) > MAX_LISTED else ""
        return ", ".join(map(repr, values[:MAX_LISTED])) + more

    def hint(self, value: str) -> str:
        """The nearest value, or all of them."""
        if self.suggest is not None and (hint := self.suggest(value)):
            return hint
        named = [each for each in self.values if each]
        folded = next((each for each in named if each.lower() == value.strip().lower()), None)
        return f"; did you mean {folded!r}?" if folded else nearest(value, named)


def doubts(source: str, known: Mapping[str, Known]) -> Iterator[str]:
    """What is wrong with a condition that compiles, a sentence for each comparison."""
    bare = without_strings(source)
    for pattern in (_EQUALITY, _REVERSED):
        for found in pattern.finditer(bare):
            yield from _doubt(known, found["name"], found["op"], _text(source, found, "text"))
    for found in _MEMBER.finditer(bare):
        start = found.start("texts")
        for item in re.finditer(_STRING, found["texts"]):
            value = source[start + item.start() + 1 : start + item.end() - 1]
            yield from _doubt(known, found["name"], "in", value)
    for found in _CALL.finditer(bare):
        values, part = known.get(found["name"]), _text(source, found, "text")
        if (
            values is not None
            and not values.pattern
            and not any(_holds(found["op"], each, part) for each in values.values)
        ):
            yield f"no {values.what} has {found['op']}({part!r}): {found['name']} is one of {values.listed()}"
    yield from _number_doubts(bare)


def _doubt(known: Mapping[str, Known], name: str, operator: str, value: str) -> Iterator[str]:
    values = known.get(name)
    if values is None or "\\" in value or values.has(value):
        return
    outcome = "always holds" if operator == "!=" else "never holds"
    hint = values.hint(value)
    is_close = "did you mean" in hint or re.fullmatch(r"key-\w{8}|", value) is not None
    if name in _CALLERS and not is_close:
        value = "…"
    comparison = f"{name} in [{value!r}]" if operator == "in" else f"{name} {operator} {value!r}"
    yield f"{comparison} {outcome}: there is no such {values.what}{hint}"


def _text(source: str, found: re.Match[str], group: str) -> str:
    start, end = found.span(group)
    return source[start + 1 : end - 1]


def _holds(call: str, value: str, part: str) -> bool:
    return {
        "startsWith": value.startswith(part),
        "endsWith": value.endswith(part),
        "contains": part in value,
    }[call]


def _number_doubts(bare: str) -> Iterator[str]:
    found = [(each, each["op"]) for each in _ORDER.finditer(bare)]
    found += [(each, _MIRRORED.get(each["op"], each["op"])) for each in _REVERSED_ORDER.finditer(bare)]
    for match, operator in found:
        name, call = match["name"], match["call"]
        bounds = RANGES.get(call or name)
        if bounds is None or (call is not None and name != "time"):
            continue
        outcome = _outcome(operator, float(match["number"]), *bounds)
        if outcome is not None:
            label = f"{name}.{call}()" if call else name
            most = "" if bounds[1] == _ENDLESS else f" to {bounds[1]:g}"
            where = f"{bounds[0]:g}{most}" if most else f"{bounds[0]:g} or more"
            holds = "always holds" if outcome else "never holds"
            yield f"{label} {operator} {match['number']} {holds}: it is {where}{_COUNTED.get(call or '', '')}"


def _outcome(operator: str, number: float, low: float, high: float) -> bool | None:
    """Whether the comparison holds for every value in the range, or for none."""
    holds_at = {
        "<": lambda value: value < number,
        "<=": lambda value: value <= number,
        ">": lambda value: value > number,
        ">=": lambda value: value >= number,
    }
    if operator in ("==", "!="):
        return None if low <= number <= high else operator == "!="
    ends = {holds_at[operator](low), holds_at[operator](high)}
    return ends.pop() if len(ends) == 1 else None
