"""A Lark grammar or regular expression → one of the same texts inside a JSON string, between its quotes.

Models write the free input of a tool as a member of a JSON object, so its grammar must match escaped text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from re import _constants as ops  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

MAX_REPEAT = 4096
ESCAPED = {
    **{chr(code): f"\\u{code:04x}" for code in range(0x20)},
    "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t", '"': '\\"', "\\": "\\\\",
}  # fmt: skip
"""What JSON escapes, as models write it."""
_UNESCAPED = r'[^"\\\x00-\x1f]'
_STRING = r'"(?:\\.|[^"\\\n])*"'
_REGEX = r"/(?:\\.|[^/\\\n])+/[imslux]*"
_RANGE = re.compile(rf"({_STRING})\s*\.\.\s*({_STRING})")
_TOKEN = re.compile(
    rf"(?P<space>(?:\s+|//[^\n]*)+)"
    rf"|(?P<ignore>%ignore\s+(?P<ignored>{_STRING}i?|{_REGEX}|\w+))"
    r"|(?P<import>%import\s+(?P<module>[\w.]+)(?:[ \t]*(?P<names>\([^)]*\)))?"
    r"(?:[ \t]*->[ \t]*(?P<alias>\w+))?)"
    r"|(?P<alias_of>->\s*\w+)"
    r"|(?P<defined>(?P<modifiers>[?!]?)(?P<name>[a-zA-Z_]\w*)(?P<priority>\.-?\d+)?\s*:)"
    rf"|(?P<range>{_STRING}\s*\.\.\s*{_STRING})|(?P<string>{_STRING}i?)|(?P<regex>{_REGEX})"
    r"|(?P<word>[a-zA-Z_]\w*)"
    r"|(?P<other>\{\s*\d+(?:\s*,\s*\d*)?\s*\}|~\s*\d+(?:\s*\.\.\s*\d+)?|[|()\[\]?*+])"
)
_EXPONENT = r"[eE][+-]?[0-9]+"
_DECIMAL = r"([0-9]+\.[0-9]*|\.[0-9]+)"
_FLOAT = rf"([0-9]+{_EXPONENT}|{_DECIMAL}({_EXPONENT})?)"
_COMMON = {
    "CNAME": r"[_a-zA-Z][_a-zA-Z0-9]*",
    "CPP_COMMENT": r"//[^\n]*",
    "CR": r"\r",
    "C_COMMENT": r"/\*([^*]|\*+[^*/])*\*+/",
    "DECIMAL": _DECIMAL,
    "DIGIT": r"[0-9]",
    "ESCAPED_STRING": r'"([^"\\\n]|\\.)*"',
    "FLOAT": _FLOAT,
    "HEXDIGIT": r"[0-9a-fA-F]",
    "INT": r"[0-9]+",
    "LCASE_LETTER": r"[a-z]",
    "LETTER": r"[a-zA-Z]",
    "LF": r"\n",
    "NEWLINE": r"(\r?\n)+",
    "NUMBER": rf"({_FLOAT}|[0-9]+)",
    "SH_COMMENT": r"#[^\n]*",
    "SIGNED_FLOAT": rf"[+-]?{_FLOAT}",
    "SIGNED_INT": r"[+-]?[0-9]+",
    "SIGNED_NUMBER": rf"[+-]?({_FLOAT}|[0-9]+)",
    "SQL_COMMENT": r"--[^\n]*",
    "UCASE_LETTER": r"[A-Z]",
    "WORD": r"[a-zA-Z]+",
    "WS": r"[ \t\f\r\n]+",
    "WS_INLINE": r"[ \t]+",
}
"""The terminals of Lark's `common`, as its documentation defines them."""
_SPACES = "\t\n\v\f\r "
_CATEGORIES = {
    ops.CATEGORY_DIGIT: r"\d",
    ops.CATEGORY_NOT_DIGIT: r"\D",
    ops.CATEGORY_SPACE: r"\s",
    ops.CATEGORY_NOT_SPACE: r"\S",
    ops.CATEGORY_WORD: r"\w",
    ops.CATEGORY_NOT_WORD: r"\W",
}


def quoted_lark(grammar: str) -> str:
    """The grammar of escaped texts, as Lark. Raises ValueError with the reason, which quotes nothing."""
    return _Quoting(grammar).text()


def quoted_regex(pattern: str) -> str:
    """The same for a regular expression that the whole text matches."""
    return f"start: {_expression(pattern)}\n"


class _Quoting:
    """One grammar. Terminals become rules: see `_Printer`."""

    def __init__(self, grammar: str) -> None:
        self._grammar = grammar
        self._ignored: list[str] = []  # expressions of what may stand between terminals
        self._is_in_rule = False
        self._added: list[str] = []

    def text(self) -> str:
        pieces: list[str] = []
        has_start = False
        for token in self._tokens():
            pieces += self._token(token)
            has_start = has_start or token["name"] == "start"
        if not has_start:
            raise ValueError("it has no rule 'start'")
        if not self._ignored:
            return "".join([*pieces, *self._added])
        text = "".join([*pieces, *self._added, f"\nignored__: ({' | '.join(self._ignored)})*\n"])
        renamed = re.sub(r"(?m)^([^\S\n]*+[?!]?)start(\s*+:)", r"\1start__\2", text)
        return renamed + "start: ignored__ start__\n"

    def _tokens(self) -> list[re.Match[str]]:
        found: list[re.Match[str]] = []
        at = 0
        while at < len(self._grammar):
            token = _TOKEN.match(self._grammar, at)
            if token is None:
                line = self._grammar.count("\n", 0, at) + 1
                raise ValueError(f"line {line} of the grammar is not plain Lark")
            found.append(token)
            at = token.end()
        return found

    def _token(self, token: re.Match[str]) -> list[str]:
        if token["space"] is not None:
            return ["\n" * token[0].count("\n") or " "]
        if token["ignore"] is not None:
            self._ignored.append(self._one(token["ignored"]))
            return []
        if token["import"] is not None:
            self._import(token)
            return []
        if token["defined"] is not None:
            self._is_in_rule = token["name"].lstrip("_").islower()
            if token["priority"]:
                raise ValueError("a terminal has a priority")
            return [token["modifiers"], _rule_name(token["name"]), ":"]
        if token["alias_of"] is not None:
            return []
        if token["other"] is not None:
            return [token[0]]
        found = self._one(token[0])
        is_terminal = token["word"] is None or not token["word"].lstrip("_").islower()
        return [f"({found} ignored__)" if is_terminal and self._is_in_rule and self._has_ignored else found]

    @property
    def _has_ignored(self) -> bool:
        return "%ignore" in self._grammar

    def _one(self, text: str) -> str:
        """A string, expression, range or name as a part of a rule."""
        if text[0] == "/":
            body, _, flags = text[1:].rpartition("/")
            return _expression(body.replace("\\/", "/"), flags)
        if text[0] != '"':
            return _rule_name(text)
        if (ends := _RANGE.fullmatch(text)) is not None:
            return _expression(f"[{re.escape(_string(ends[1]))}-{re.escape(_string(ends[2]))}]")
        literal = text.removesuffix("i")
        return _expression(re.escape(_string(literal)), text[len(literal) :])

    def _import(self, token: re.Match[str]) -> None:
        module, names = token["module"], re.findall(r"\w+", token["names"] or "")
        if not names:
            module, _, name = module.rpartition(".")
            names = [name]
        for name in names:
            if module != "common" or name not in _COMMON:
                raise ValueError("an import is not one of Lark's 'common' terminals")
            target = _rule_name(token["alias"] or name)
            self._added.append(f"\n{target}: {_expression(_COMMON[name])}\n")


def _rule_name(name: str) -> str:
    """Terminals become rules, whose names are in lower case."""
    return name if name.lstrip("_").islower() else f"t__{name.lower()}"


def _expression(pattern: str, flags: str = "") -> str:
    """A regular expression as a part of a rule."""
    try:
        tree = parser.parse(pattern, _flags(flags))
    except (re.error, OverflowError, RecursionError):
        raise ValueError("a regular expression cannot be read") from None
    state = tree.state.flags
    folds, dot_is_all = bool(state & re.IGNORECASE), bool(state & re.DOTALL)
    return _Printer(folds=folds, dot_is_all=dot_is_all).sequence(tree)


def _string(literal: str) -> str:
    """The text of a Lark string. Raises ValueError."""
    try:
        found: str = json.loads(literal)
    except ValueError:
        try:
            found = literal[1:-1].encode("latin-1", "backslashreplace").decode("unicode_escape")
        except UnicodeDecodeError:
            raise ValueError("a string cannot be read") from None
    return found


def _flags(names: str) -> int:
    known = {"i": re.IGNORECASE, "m": re.MULTILINE, "s": re.DOTALL, "x": re.VERBOSE}
    found = 0
    for name in names:
        found |= known.get(name, 0)
    return int(found)


class _Printer:
    """Prints a parsed expression as a part of a rule whose lexemes are single characters, escaped or not.

    These are a prefix code, so that the lexer, which takes the longest match, never takes too much.
    """

    def __init__(self, *, folds: bool, dot_is_all: bool) -> None:
        self._folds = folds
        self._dot_is_all = dot_is_all

    def sequence(self, items: Iterable[tuple[Any, Any]]) -> str:
        found = [part for op, value in items if (part := self._item(op, value))]
        return f"({' '.join(found)})" if len(found) > 1 else found[0] if found else '""'

    def _item(self, op: Any, value: Any) -> str:  # noqa: ANN401 - parts of `re`'s tree
        if op is ops.LITERAL:
            return self._character(f"[{_code(value)}]", [(op, value)])
        if op is ops.NOT_LITERAL:
            return self._character(f"[^{_code(value)}]", [(ops.NEGATE, None), (ops.LITERAL, value)])
        if op is ops.ANY:
            newline = [] if self._dot_is_all else [(ops.LITERAL, 10)]
            return self._character(
                r"[\s\S]" if self._dot_is_all else r"[^\n]", [(ops.NEGATE, None), *newline]
            )
        if op is ops.IN:
            return self._character(_class(value), value)
        if op is ops.BRANCH:
            return f"({' | '.join(self.sequence(branch) for branch in value[1])})"
        if op is ops.SUBPATTERN:
            return self._group(*value)
        if op in (ops.MAX_REPEAT, ops.MIN_REPEAT):
            return self._repeat(*value)
        ends = (ops.AT_BEGINNING, ops.AT_BEGINNING_STRING, ops.AT_END, ops.AT_END_STRING)
        if op is ops.AT and value in ends:
            return ""  # the whole text is matched in any case
        raise ValueError("a regular expression looks around or refers back")

    def _repeat(self, least: int, most: Any, inner: Any) -> str:  # noqa: ANN401
        if least > MAX_REPEAT or (most is not ops.MAXREPEAT and most > MAX_REPEAT):
            raise ValueError(f"a repetition counts beyond {MAX_REPEAT}")
        text = f"({self.sequence(inner)})"
        known = {(0, ops.MAXREPEAT): "*", (1, ops.MAXREPEAT): "+", (0, 1): "?"}
        if (sign := known.get((least, most))) is not None:
            return text + sign
        return f"{text}{{{least},{'' if most is ops.MAXREPEAT else most}}}"

    def _group(self, number: Any, added: int, removed: int, inner: Any) -> str:  # noqa: ANN401
        printer = _Printer(
            folds=(self._folds or bool(added & re.IGNORECASE)) and not removed & re.IGNORECASE,
            dot_is_all=(self._dot_is_all or bool(added & re.DOTALL)) and not removed & re.DOTALL,
        )
        return printer.sequence(inner)

    def _character(self, text: str, items: Sequence[tuple[Any, Any]]) -> str:
        """One lexeme: a character of a class, or the escape of one that JSON escapes."""
        escapes = [re.escape(ESCAPED[char]) for char in ESCAPED if _holds(items, char)]
        if len(items) == 1 and items[0][0] is ops.LITERAL:
            plain = [] if escapes else [text]
        else:
            plain = [f"[{text}&&{_UNESCAPED}]"]
        if self._folds:
            plain = [f"(?i:{each})" for each in plain]
        return f"/{'|'.join([*plain, *escapes])}/"


def _code(value: int) -> str:
    return rf"\x{{{value:x}}}"


def _class(items: Sequence[tuple[Any, Any]]) -> str:
    """The text of a class of characters."""
    pieces = []
    for op, value in items:
        if op is ops.LITERAL:
            pieces.append(_code(value))
        elif op is ops.RANGE:
            pieces.append(f"{_code(value[0])}-{_code(value[1])}")
        elif op is ops.CATEGORY:
            pieces.append(_CATEGORIES[value])
    is_negated = items[0][0] is ops.NEGATE
    return f"[{'^' if is_negated else ''}{''.join(pieces)}]"


def _holds(items: Sequence[tuple[Any, Any]], char: str) -> bool:
    """Whether a character that JSON escapes belongs to a class."""
    code = ord(char)
    is_negated = items[0][0] is ops.NEGATE
    is_listed = any(
        (op is ops.LITERAL and value == code)
        or (op is ops.RANGE and value[0] <= code <= value[1])
        or (op is ops.CATEGORY and _is_of(value, char))
        for op, value in items
    )
    return is_listed != is_negated


def _is_of(category: Any, char: str) -> bool:  # noqa: ANN401 - parts of `re`'s tree
    if category is ops.CATEGORY_SPACE:
        return char in _SPACES
    if category is ops.CATEGORY_NOT_SPACE:
        return char not in _SPACES
    return category in (ops.CATEGORY_NOT_DIGIT, ops.CATEGORY_NOT_WORD)
