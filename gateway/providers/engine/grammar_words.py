"""Words of Lark grammars: texts with special tokens in them, patterns, JSON of a schema."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from gateway.tool_calls.parser import Syntax

TokenId = Callable[[str], int | None]
_WHITESPACE = " ?"


class Words:
    """Terms for the texts of one call syntax."""

    def __init__(self, syntax: Syntax, token_id: TokenId) -> None:
        """`token_id` maps a special token's text to its id, any other text to None."""
        self._special = {
            token: f"<[{found}]>" for token in syntax.tokens if (found := token_id(token)) is not None
        }
        longest = sorted(self._special, key=len, reverse=True)
        self._split = re.compile(f"({'|'.join(map(re.escape, longest))})") if longest else None

    def is_special(self, token: str) -> bool:
        """Whether one of the syntax's tokens is special here."""
        return token in self._special

    def pieces(self, text: str) -> list[str]:
        """The terms that match `text`, special tokens by their ids."""
        parts = self._split.split(text) if self._split is not None else [text]
        found = []
        for part in filter(None, parts):
            if part.startswith("{") and part != "{":  # JSON that is no call may begin with the brace as well
                found.append(json.dumps("{"))
                part = part[1:]
            found.append(self._special.get(part) or json.dumps(part, ensure_ascii=False))
        return found

    def terms(self, text: str) -> str:
        """The terms that match `text`, as one sequence."""
        return " ".join(self.pieces(text))


def pattern(text: str) -> str:
    """A pattern that matches `text`, for use between slashes."""
    return re.escape(text).replace("\\\n", "\\n").replace("/", "\\/")


def json_rule(schema: Mapping[str, Any], *, is_exact: bool) -> str:
    """A rule's body: JSON that fits the schema, with the white space of the families' chat templates."""
    options = {"whitespace_pattern": _WHITESPACE, "lenient": not is_exact, "coerce_one_of": not is_exact}
    return f"%json {json.dumps({**schema, 'x-guidance': options})}"
