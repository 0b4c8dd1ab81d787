"""The sandboxed Jinja environment of chat templates: no access to Python internals, bounded work and size.

Templates come with checkpoints and are untrusted. The environment offers what transformers offers to them.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from typing import Any, cast

from jinja2 import TemplateError as JinjaError
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.filters import FILTERS
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

MAX_ITERATIONS = 1_000_000  # of all loops of one rendering
MAX_SIZE = 16_000_000  # characters or items in the prompt plus all operator results of one rendering
MAX_WIDTH = 9_999  # of paddings, precisions and exponents

_WIDTH_FILTERS = (
    "batch",
    "center",
    "format",
    "indent",
    "replace",
    "round",
    "slice",
    "tojson",
    "truncate",
    "wordwrap",
)


@dataclass(slots=True)
class _Budget:
    """What is left of one rendering's limits."""

    iterations: int = MAX_ITERATIONS
    size: int = MAX_SIZE

    def spend_iterations(self, count: int) -> None:
        self.iterations -= count
        if self.iterations < 0:
            raise SecurityError(f"loops run more than {MAX_ITERATIONS} times")

    def spend_size(self, count: int) -> None:
        self.size -= count
        if self.size < 0:
            raise SecurityError(f"the template builds more than {MAX_SIZE} characters")


_budget: ContextVar[_Budget] = ContextVar("template_budget")


@contextmanager
def new_budget() -> Iterator[_Budget]:
    """Set the budget of one rendering for the duration of the context."""
    token = _budget.set(budget := _Budget())
    try:
        yield budget
    finally:
        _budget.reset(token)


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """Sandboxed Jinja with transformers' extensions; loops and operators that build values are metered."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        # optimized=False: the optimizer would run filters on constants at load time, without a budget.
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols], optimized=False
        )
        self.filters["tojson"] = _tojson
        for name in _WIDTH_FILTERS:
            self.filters[name] = _width_checked(self.filters[name])
        self.filters.update(penstock_items=_metered_items, penstock_text=_metered_text)
        self.globals.update(
            raise_exception=_raise_exception,
            strftime_now=_strftime_now,
            dict=_new_dict,
            namespace=_SafeNamespace,
        )
        self.globals.pop("lipsum")

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        for loop in tree.find_all(nodes.For):
            loop.iter = _filtered("penstock_items", loop.iter)
        _meter_concatenations(tree)
        return tree

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:  # noqa: ANN401
        """Charge the result's size to the budget before the operator runs."""
        _check_operator(operator, left, right)
        return super().call_binop(context, operator, left, right)

    def wrap_str_format(self, value: Any) -> Any:  # noqa: ANN401
        """Wrap str.format as the base class does, and refuse huge widths."""
        wrapped = super().wrap_str_format(value)
        if wrapped is not None:
            _check_format(value.__self__)
        return wrapped

    def call(self, context: Context, obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        """Charge the results of string methods such as `'x'.ljust(10 ** 9)` to the budget, then call."""
        owner = getattr(obj, "__self__", None)
        if isinstance(owner, str):
            _check_string_method(owner, obj.__name__, args)
        return super().call(context, obj, *args, **kwargs)


class _GenerationTag(Extension):
    """{% generation %} marks assistant text for training masks; for inference its body is just rendered."""

    tags = {"generation"}  # noqa: RUF012 - the base class has it as an instance attribute

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _SafeNamespace(Namespace):
    """A namespace that cannot hold private attributes."""

    def __init__(*args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - `self` may be an attribute
        self, *rest = args
        attributes = dict(*rest, **kwargs)
        for name in attributes:
            _check_public(name)
        Namespace.__init__(self, attributes)

    def __setitem__(self, name: str, value: Any) -> None:  # noqa: ANN401
        _check_public(name)
        super().__setitem__(name, value)


def _check_public(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace has no private attributes, so not {name!r}")


def _filtered(name: str, node: nodes.Node) -> nodes.Filter:
    return nodes.Filter(cast(nodes.Expr, node), name, [], [], None, None, lineno=node.lineno)


def _meter_concatenations(node: nodes.Node) -> None:
    """Wrap every concatenation `a ~ b` in the syntax tree with the metering filter, innermost first."""
    for field, value in node.iter_fields():
        children = value if isinstance(value, list) else [value]
        for i, child in enumerate(children):
            if not isinstance(child, nodes.Node):
                continue
            _meter_concatenations(child)
            if isinstance(child, nodes.Concat):
                wrapped = _filtered("penstock_text", child)
                if isinstance(value, list):
                    value[i] = wrapped
                else:
                    setattr(node, field, wrapped)


def _metered_items(items: Any) -> Any:  # noqa: ANN401 - whatever the template loops over
    """Charge a loop's iterations to the budget before it runs."""
    listed = items if isinstance(items, list | tuple | str | dict) else list(items)
    _budget.get().spend_iterations(len(listed))
    return listed


def _metered_text(text: Any) -> Any:  # noqa: ANN401 - str or Markup
    _budget.get().spend_size(len(text))
    return text


def _check_operator(operator: str, left: Any, right: Any) -> None:  # noqa: ANN401
    sizes = [len(side) if isinstance(side, str | list | tuple) else None for side in (left, right)]
    if operator == "+" and None not in sizes:
        _budget.get().spend_size(sum(size or 0 for size in sizes))
    elif operator == "*" and sizes != [None, None]:
        times = right if isinstance(right, int) else left
        _budget.get().spend_size(max(sizes[0] or 0, sizes[1] or 0) * max(int(times), 0))
    elif operator in ("*", "**") and _has_huge_int(left, right):
        raise SecurityError("a number is too large to multiply")
    elif operator == "**" and isinstance(right, int) and abs(right) > MAX_WIDTH:
        raise SecurityError(f"an exponent is over {MAX_WIDTH}")
    elif operator == "%" and isinstance(left, str):
        _check_format(left)


def _has_huge_int(*values: object) -> bool:
    return any(isinstance(value, int) and abs(value) > 2**64 for value in values)


def _width_checked(filter_function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a filter to refuse arguments that would make its result huge."""

    @functools.wraps(filter_function)  # keeps the attribute by which Jinja marks @pass_context filters
    def checked(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        values = [*args[1:], *kwargs.values()]
        if any(isinstance(value, int) and abs(value) > MAX_WIDTH for value in values):
            raise SecurityError(f"a number given to a filter is over {MAX_WIDTH}")
        strings = [arg for arg in args if isinstance(arg, str)]
        if strings and filter_function is FILTERS["format"]:
            _check_format(strings[0])
        if len(strings) >= 3 and filter_function is FILTERS["replace"]:
            _check_string_method(strings[0], "replace", tuple(strings[1:]))
        return filter_function(*args, **kwargs)

    return checked


def _check_string_method(owner: str, method: str, args: tuple[Any, ...]) -> None:
    if any(isinstance(arg, int) and abs(arg) > MAX_SIZE for arg in args):
        raise SecurityError(f"a number given to {method}() is over {MAX_SIZE}")
    if method in ("ljust", "rjust", "center", "zfill", "expandtabs") and args and isinstance(args[0], int):
        _budget.get().spend_size(max(args[0], 0) * (owner.count("\t") if method == "expandtabs" else 1))
    elif method == "replace" and len(args) >= 2 and all(isinstance(arg, str) for arg in args[:2]):
        _budget.get().spend_size(len(owner) + owner.count(args[0]) * len(args[1]))


def _check_format(pattern: str) -> None:
    """Refuse format strings with widths over MAX_WIDTH, or with widths taken from an argument."""
    if "%*" in pattern or re.search(r"\d{5}", pattern) or re.search(r":[^:{}]*+\{", pattern):
        raise SecurityError(f"a width in a format string is over {MAX_WIDTH}, or computed")


def _raise_exception(message: str) -> None:
    raise JinjaError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().astimezone().strftime(pattern)


def _new_dict(*args: Any, **kwargs: Any) -> dict[Any, Any]:  # noqa: ANN401
    return dict(*args, **kwargs)


def _tojson(
    value: Any,  # noqa: ANN401
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Return JSON without the HTML escapes of Jinja's own filter, with the options that templates use."""
    dumps: Callable[..., str] = json.dumps
    return dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
