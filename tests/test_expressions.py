"""Every compiled expression of the house, and its hand-written scanners: cost linear in hostile texts.

Expressions are found, not listed: in modules, classes and containers, and as literals in calls of `re`. The
scanners of SCANNERS and the expressions that are compiled at first use are listed. `pytest -s` prints the
worst cost of each.
"""

from __future__ import annotations

import ast
import importlib
import re
import time
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import re2
import regex

from backend.encoder.language import language_of
from gateway.providers.engine.reasoning_splitter import ReasoningSplitter
from gateway.providers.upstream.sse import EventReader
from gateway.tool_calls.families import SYNTAXES
from gateway.tool_calls.parser import Syntax, ToolCallParser
from guardrails import languages
from guardrails.checks import injection, words
from guardrails.checks.personal_data import names
from guardrails.checks.personal_data.patterns import KINDS
from guardrails.masking import Masking
from guardrails.text import decoders, normalise, sentences
from guardrails.text.windows import windows
from policies.masking import masked
from router.estimate import asking

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("guardrails", "cache", "router", "gateway", "policies", "backend")
Call = Callable[[Any], object]
Expression = Any
"""An expression of re, regex or re2."""
EXPRESSIONS = (re.Pattern, regex.Pattern, re2._Regexp)
USES = re.compile(r"\b(?:re|regex|re2)\.[a-z]")
LITERAL = {"re": re, "regex": regex}

SHAPES = {
    "one letter": "a",
    "dots": ".",
    "line ends": "\n",
    "spaces and tabs": " \t",
    "alternating pairs": "!?",
    "nested quotes": "\"'“‘",
    "zero width": "a\u200b",
    "right to left": "\u05d0.\u05d1 ",
    "addresses": "a@a.",
    "digits": "7",
    "groups of digits": "DE12 ",
    "brackets": "([{<",
    "dashes": "a-",
    "escapes": "\\n%41",
}
MORE_UNITS = (
    "A",
    '"',
    "-",
    "1 ",
    "+1 ",
    "(1) ",
    "12.",
    ".- ",
    "|a",
    "a\t",
    "_",
    "[[",
    "1:",
    "a. ",
    "“",
    "é",
    "A ",
    "://",
)
"""For scanners, which are few: numbers, Morse, marks."""
UNITS = (*SHAPES.values(), *MORE_UNITS)
NUM_OWN_WORDS = 6
TAILS = ("", "x")
KIB = 1024
SIZES_KIB = (1, 2, 4, 8)
MAX_MS_PER_KIB = 5.0
"""About twice what the slowest expression of all costs."""
OF_SEVERAL = {"normalise.read": 24.0, "Masking.mask": 18.0}
"""Scanners of ten or more expressions, and of numbers at each group of digits: twice their cost."""
MAX_TOOL_CALL_MS_PER_KIB = 5.0
"""In pieces of four characters."""
NOMINAL_MS, NOMINAL_EXPRESSION_MS = 6.5, 5.0
"""CPU time of the loop and the expression of `_slowness` where the limits were set."""
_SLOW = regex.compile(r"\b(?:send|post)\b.{0,80}\b(?:inbox|secrets?)\b", regex.DOTALL | regex.IGNORECASE)
NUM_REPEATS = 6
MAX_GROWTH = 1.5
"""Growth of the cost of a character when the text is twice as long."""
FLOOR_MS_PER_KIB = 0.03
"""Less at the longest text says nothing: clocks and caches."""


def _modules() -> Iterator[types.ModuleType]:
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
            if USES.search(path.read_text("utf-8")) and path.stem != "__main__":
                yield importlib.import_module(name)


def _inside(value: object, name: str, seen: set[int]) -> Iterator[tuple[str, Any]]:
    """The expressions in a value, with where they are."""
    if isinstance(value, types.BuiltinMethodType) and isinstance(value.__self__, EXPRESSIONS):
        value = value.__self__  # as of `re.compile(…).fullmatch`
    if isinstance(value, EXPRESSIONS):
        yield name, value
        return
    items: list[tuple[object, object]] = []
    if isinstance(value, dict):
        items = list(value.items())
    elif isinstance(value, list | tuple | set | frozenset):
        items = list(enumerate(value))
    elif type(value).__module__.startswith(PACKAGES) or str(getattr(value, "__module__", "")).startswith(
        PACKAGES
    ):
        items = list(getattr(value, "__dict__", {}).items())
    if items and id(value) not in seen:
        seen.add(id(value))
        for key, each in items:
            yield from _inside(each, f"{name}[{key!r}]", seen)


def _literals(module: types.ModuleType) -> Iterator[tuple[str, Any]]:
    """`re.findall("…", text)` and the like."""
    for node in ast.walk(ast.parse(Path(str(module.__file__)).read_text("utf-8"))):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args):
            continue
        owner, method, first = node.func.value, node.func.attr, node.args[0]
        is_literal = isinstance(owner, ast.Name) and owner.id in LITERAL and isinstance(first, ast.Constant)
        if is_literal and method not in ("compile", "escape"):
            yield f"{module.__name__}:{node.lineno}.{method}", LITERAL[owner.id].compile(first.value)


def _compiled_late() -> dict[str, list[tuple[str, Expression]]]:
    """Expressions by module that none of its variables holds."""
    numbers = range(len(injection._SOURCES))
    name = injection.__name__
    return {name: [(f"{name}:_pattern[{number}]", injection._pattern(number)) for number in numbers]}


@cache
def _expressions() -> dict[str, Expression]:
    """All expressions by name, each once."""
    seen: set[int] = set()
    found: dict[Any, tuple[str, Expression]] = {}
    late = _compiled_late()
    for module in _modules():
        places = [
            place
            for name, value in vars(module).items()
            for place in _inside(value, f"{module.__name__}:{name}", seen)
        ]
        for name, expression in [*places, *_literals(module), *late.pop(module.__name__, [])]:
            found.setdefault(
                (type(expression), expression.pattern, str(getattr(expression, "flags", ""))),
                (name, expression),
            )
    assert not late, "modules that have moved"
    return dict(found.values())


def _call(name: str, expression: Expression) -> Call:
    """The call that its module makes: where it only ever matches from one place, a search would cost more."""
    module, _, variable = name.partition(":")
    base, _, method = re.sub(r"\[.*\]", "", variable).partition(".")
    source = Path(str(importlib.import_module(module).__file__)).read_text("utf-8")
    methods = {method} if method else set(re.findall(rf"\b{base}(?:\[[^\]]*\])?\.(\w+)", source))
    methods |= {found[1] for found in re.findall(rf"\b(\w+)\.(\w+)\(.* for \1 in {base}\b", source)}
    if methods and methods <= {"match", "fullmatch"}:
        return lambda text: [getattr(expression, method)(text) for method in methods]
    return lambda text: sum(1 for _ in expression.finditer(text))


def _is_of_bytes(expression: Expression) -> bool:
    return isinstance(expression.pattern, bytes) and not isinstance(expression, re2._Regexp)


def _own_words(expression: Expression) -> list[str]:
    """Words that the expression has: what begins as a match costs most."""
    pattern = expression.pattern
    pattern = pattern if isinstance(pattern, str) else pattern.decode("latin-1")
    words = dict.fromkeys(re.findall(r"(?<![\\])[^\W\d_]{2,}", pattern))
    return [f"{word} " for word in list(words)[:NUM_OWN_WORDS]]


def _slowness() -> float:
    """How much slower Python and expressions are now than where the limits were set, at least 1."""
    began = time.process_time()
    sum(ord(char) for char in "a" * 100_000)
    middle = time.process_time()
    sum(1 for _ in _SLOW.finditer("send post " * 400))
    of_python, of_expressions = middle - began, time.process_time() - middle
    return max(of_python * 1000 / NOMINAL_MS, of_expressions * 1000 / NOMINAL_EXPRESSION_MS, 1.0)


def _ms_per_kib(
    call: Call, unit: str, tail: str, kib: int, *, is_bytes: bool, is_repeated: bool = False
) -> float:
    text: Any = unit * (kib * KIB // len(unit.encode())) + tail
    text = text.encode() if is_bytes else text
    costs = []
    for _ in range(NUM_REPEATS if is_repeated else 1):
        began = time.process_time()
        call(text)
        cost = time.process_time() - began
        costs.append(cost / _slowness() if is_repeated else cost)
    return min(costs) * 1000 / kib


def _fault(cost: Callable[..., float], most: float, sizes_kib: Sequence[int]) -> tuple[float, str]:
    """The cost of a KiB in the longest text, and what is wrong with it."""
    longest = sizes_kib[-1]
    first, last = cost(sizes_kib[0]), 0.0
    if first < most and (last := cost(longest)) < min(most, max(FLOOR_MS_PER_KIB, MAX_GROWTH * first)):
        return last, ""
    cost = partial(cost, is_repeated=True)
    costs: list[float] = []
    for kib in sizes_kib:
        costs.append(cost(kib))
        if costs[-1] > most:
            return costs[-1], f"costs {costs[-1]:.2f} ms per KiB of {kib}"
    if costs[-1] > MAX_GROWTH * costs[-2] and (more := cost(4 * longest)) > MAX_GROWTH**2 * cost(longest):
        return costs[-1], f"grows to {more:.2f} ms per KiB of {4 * longest}"  # and that was no noise
    return costs[-1], ""


def _worst(
    call: Call,
    units: Iterable[str],
    *,
    is_bytes: bool = False,
    most: float = MAX_MS_PER_KIB,
    tails: Sequence[str] = TAILS,
    sizes_kib: Sequence[int] = SIZES_KIB,
) -> tuple[str, float, str]:
    """Fault, cost and shape of the worst text."""
    found = []
    for unit in units:
        for tail in tails:
            cost = partial(_ms_per_kib, call, unit, tail, is_bytes=is_bytes)
            cost_of_one, fault = _fault(cost, most, sizes_kib)
            found.append((fault, cost_of_one, repr(unit + tail)))
    return max(found, key=lambda each: (bool(each[0]), each[1]))


def _check(worst: dict[str, tuple[str, float, str]]) -> None:
    for name, (fault, cost, shape) in sorted(worst.items(), key=lambda each: -each[1][1]):
        print(f"{cost:7.3f} ms/KiB  {name}  {shape}  {fault}")
    assert {name: found for name, found in worst.items() if found[0]} == {}


def _pieces(feed: Callable[[str], object]) -> Call:
    """Fed as a stream brings it."""
    return lambda text: [feed(text[at : at + 4]) for at in range(0, len(text), 4)]


def _scanners() -> dict[str, Call]:
    """Scanners without an expression of their own, or with several."""
    return {
        "windows": windows,
        "sentences.split": sentences.split,
        "SentenceSplitter": lambda text: _pieces(sentences.SentenceSplitter().feed)(text),
        "names.sentences": lambda text: list(names.sentences(text, 0, [])),
        "words.sentences": words.sentences,
        "words.words": words.words,
        "normalise.read": normalise.read,
        "decoders.decode": lambda text: list(decoders.decode(text)),
        "language_of": language_of,
        "languages_of": lambda text: languages.languages_of(text, windows(text)),
        "Masking.mask": lambda text: Masking(KINDS, "mask").mask(text),
        "policies.masked": lambda text: masked(f"# {text}", ()),
        "asking_part": asking.asking_part,
        "ReasoningSplitter": lambda text: _pieces(ReasoningSplitter(begins_inside=True).push)(text),
        "EventReader": lambda text: _pieces(EventReader().feed)(text.encode()),
    }


def _tool_calls(syntax: Syntax, start: str) -> Call:
    def parse(text: str) -> None:
        parser = ToolCallParser(syntax, ["look_up"])
        _pieces(lambda piece: (parser.push(piece), parser.is_inside_call))(start + text)
        parser.flush()

    return parse


def test_expressions_are_found() -> None:
    assert len(_expressions()) > 300


@pytest.mark.parametrize("package", PACKAGES)
def test_every_expression_is_linear(package: str) -> None:
    _check(
        {
            name: _worst(
                _call(name, each), [*SHAPES.values(), *_own_words(each)], is_bytes=_is_of_bytes(each)
            )
            for name, each in _expressions().items()
            if name.startswith(package)
        }
    )


@pytest.mark.parametrize("pattern", [r"[.!?]+(?=\s)", r"^\s*\|"])
def test_the_measure_tells_a_quadratic_expression(pattern: str) -> None:
    assert _worst(lambda text: re.findall(pattern, text, re.M), [".", "\n"])[0]


def test_scanners_are_linear() -> None:
    language_of("")  # loads its model
    _check(
        {
            name: _worst(call, UNITS, most=OF_SEVERAL.get(name, MAX_MS_PER_KIB))
            for name, call in _scanners().items()
        }
    )


@pytest.mark.parametrize("syntax", SYNTAXES.values(), ids=lambda syntax: syntax.name)
def test_tool_calls_are_parsed_in_linear_time(syntax: Syntax) -> None:
    marks = syntax.marks + syntax.bare_marks or ("",)
    starts = [start for mark in marks for start in (mark, mark + '{"arguments": {"a": "')]
    _check(
        {
            start: _worst(
                _tool_calls(syntax, start),
                UNITS,
                most=MAX_TOOL_CALL_MS_PER_KIB,
                tails=TAILS[:1],  # a parser does not know where its text ends
                sizes_kib=SIZES_KIB[:-1],
            )
            for start in starts
        }
    )
