"""Calls whose parameters are elements: one matcher and a table of the families' tags.

A value is plain text, typed by the tool's schema. It ends at its closing tag only where another tag of the
syntax follows, so a value may quote that tag. Strings are passed on while they are read, other values whole.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from gateway.tool_calls.call_syntax import CallSink, Matcher, function_name, next_tag
from gateway.tool_calls.json_scanner import WHITESPACE, NotACall
from gateway.tool_calls.parser import CallForm, Syntax
from gateway.tool_calls.schema_values import STRING, escaped, parameter_types, typed

MAX_KEY_CHARS = 256


@dataclass(frozen=True, slots=True)
class Shape:
    """The tags of one syntax, as written around a block, a call, a key and a value."""

    block: tuple[str, str]
    call: tuple[str, str, str]  # before the name, after it, at the call's end
    key: str  # before a parameter's name
    key_ends: tuple[str, ...]  # what may end that name; they begin with the same character
    value: str  # before the value; "": it follows the key's end
    value_end: str
    is_padded: bool = False  # one line break on each side of a value is not part of it

    @property
    def after_value(self) -> tuple[str, ...]:
        """The tags of which one must follow a value."""
        return tuple(dict.fromkeys((self.key, self.call[2], self.block[1])))


def _match(shape: Shape, sink: CallSink) -> Matcher[None]:
    opening, after_name, call_end = shape.call
    tag = shape.block[0]
    while tag != shape.block[1]:
        if tag == shape.block[0] and opening:
            tag, _ = yield from next_tag((opening,))
            if not tag:
                raise NotACall
        name, char = yield from function_name()
        for wanted in after_name:
            if char != wanted:
                raise NotACall
            char = (yield) if wanted != after_name[-1] else ""
        tag = yield from _call(shape, sink, name, char)
        if tag == call_end and call_end != shape.block[1]:
            tag, _ = yield from next_tag((opening, *shape.block))
        if not tag:
            raise NotACall  # what follows is text


def _call(shape: Shape, sink: CallSink, name: str, char: str) -> Matcher[str]:
    """The parameters of a call after its name; the tag that ended it."""
    schema = sink.begin(name)
    keys: set[str] = set()
    tag, _ = yield from next_tag(shape.after_value, char)
    sink.put("{", len(tag))
    while tag == shape.key:
        key, end, read = yield from _key(shape)
        if not key or key in keys:
            raise NotACall
        sink.put(f'{", " if keys else ""}"{escaped(key)}": ', 0)
        keys.add(key)
        types = parameter_types(schema, key)
        if end.endswith('string="true">') and (not types or "string" in types):
            types = STRING
        elif end.endswith('string="false">'):
            types -= STRING
        tag = yield from _value(shape, sink, types, read)
    if not tag:
        raise NotACall
    sink.put("}", 0)
    sink.end()
    return tag


def _key(shape: Shape) -> Matcher[tuple[str, str, str]]:
    """A parameter's name, the tag that ended it, and what was read of the value."""
    key = ""
    while (char := (yield)) != shape.key_ends[0][0]:
        key += char
        if char in '<>"\n' or len(key) > MAX_KEY_CHARS:
            raise NotACall
    end = char
    while end not in shape.key_ends:
        end += yield
        if not any(each.startswith(end) for each in shape.key_ends):
            raise NotACall
    tag, read = (end, "") if shape.value else ("", "")
    while tag == end:  # models repeat it, and forget the value's tag
        tag, read = yield from next_tag((shape.value, end))
    return key.strip(WHITESPACE), end, "" if tag else read.lstrip()


def _value(shape: Shape, sink: CallSink, types: frozenset[str], first: str) -> Matcher[str]:
    """One value, of which `first` has been read; the tag that follows its end."""
    if types != STRING:
        pieces: list[str] = []
        tag, read = yield from _text(shape, first, lambda text, _: pieces.append(text))
        sink.put(typed("".join(pieces), types), len(read))
        return tag
    sink.put('"', 0)
    tag, read = yield from _text(shape, first, lambda text, num_held: sink.put(escaped(text), num_held))
    sink.put('"', len(read))
    return tag


def _text(shape: Shape, first: str, put: Callable[[str, int], None]) -> Matcher[tuple[str, str]]:
    """The text of a value, passed to `put` with the number of characters read beyond it."""
    closing = shape.value_end
    window = len(closing) + 1  # its last characters may be the closing tag and a line break
    held: list[str] = []
    is_first = shape.is_padded
    seen = iter(first)
    while True:
        char = next(seen, "") or (yield)
        if not (is_first and char == "\n"):
            held.append(char)
        is_first = False
        if char == closing[-1] and "".join(held[-len(closing) :]) == closing:
            tag, read = yield from next_tag(shape.after_value)
            if tag:
                text = "".join(held)[: -len(closing)]
                put(text.removesuffix("\n") if shape.is_padded else text, len(read))
                return tag, read
            held += read
        if len(held) > 4 * window:
            put("".join(held[:-window]), window)
            del held[:-window]


def _syntax(name: str, shape: Shape, form: CallForm) -> Syntax:
    tags = (
        *shape.block,
        shape.call[2],
        shape.key,
        *shape.key_ends,
        shape.value,
        shape.value_end,
        _DSML_TOKEN,
    )
    return Syntax(
        name,
        partial(_match, shape),
        marks=shape.block[:1],
        bare_marks=tuple(filter(None, shape.call[:1])),
        tokens=tuple(filter(None, tags)),
        endings=(shape.block[1],),
        form=form,
    )


def _of_functions(name: str, opening: str, closing: str, pad: str) -> Syntax:
    """Qwen's form: `<function=NAME>` and `<parameter=KEY>` in one block per call."""
    call = ("<function=", ">", "</function>")
    shape = Shape((opening, closing), call, "<parameter=", (">",), "", "</parameter>", bool(pad))
    parameter = (f"<parameter={{key}}>{pad}", f"{pad}</parameter>\n")
    start, end = f"{opening}\n", f"</function>\n{closing}"
    form = CallForm(start, "<function={name}>\n", end, f"\n{start}", parameter=parameter)
    return _syntax(name, shape, form)


def _of_invokes(name: str, block: str, prefix: str, attribute: str, key_ends: tuple[str, ...]) -> Syntax:
    """Anthropic's form: `<invoke name="NAME">` and `<parameter name="KEY">`, all calls in one block."""
    opening, closing = f"<{prefix}{block}>", f"</{prefix}{block}>"
    call = (f'<{prefix}invoke name="', '">', f"</{prefix}invoke>")
    key, end = f'<{prefix}parameter name="', f"</{prefix}parameter>"
    shape = Shape((opening, closing), call, key, key_ends, "", end)
    parameter = (f'{key}{{key}}"{attribute}>', f"{end}\n")
    form = CallForm(f"{opening}\n", f'{call[0]}{{name}}">\n', f"{call[2]}\n", "", closing, parameter)
    return _syntax(name, shape, form)


_DSML_TOKEN = "｜DSML｜"
_DSML_ENDS = ('" string="true">', '" string="false">', '">')
_GLM = Shape(
    ("<tool_call>", "</tool_call>"),
    ("", "", "</tool_call>"),
    "<arg_key>",
    ("</arg_key>",),
    "<arg_value>",
    "</arg_value>",
)
_GLM_PARAMETER = ("<arg_key>{key}</arg_key>\n<arg_value>", "</arg_value>\n")
XML_SYNTAXES = (
    _of_functions("qwen3_coder", "<tool_call>", "</tool_call>", "\n"),
    _of_functions("seed_oss", "<seed:tool_call>", "</seed:tool_call>", ""),
    _syntax(
        "glm45",
        _GLM,
        CallForm("<tool_call>", "{name}\n", "</tool_call>", "\n<tool_call>", parameter=_GLM_PARAMETER),
    ),
    _of_invokes("minimax_m2", "minimax:tool_call", "", "", ('">',)),
    _of_invokes("deepseek_v32", "function_calls", _DSML_TOKEN, ' string="{string}"', _DSML_ENDS),
    _of_invokes("deepseek_v4", "tool_calls", _DSML_TOKEN, ' string="{string}"', _DSML_ENDS),
)
