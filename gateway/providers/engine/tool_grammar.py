"""The Lark grammar of answers with tool calls: enforces required calls and strict arguments.

Its JSON has the whitespace with which the families' chat templates render earlier calls.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from backend.structured.quoted import quoted_lark, quoted_regex
from backend.tokenizer.tool_use import ToolUse
from backend.types import GrammarSpec
from gateway.requests import refusals
from gateway.requests.custom_tools import INPUT
from gateway.requests.tools import ToolChoice
from gateway.tool_calls.hermes import CLOSE_TAG, HERMES, OPEN_TAG
from gateway.tool_calls.llama_json import LLAMA_JSON
from gateway.tool_calls.mistral import MARK, MISTRAL
from gateway.tool_calls.parser import Syntax

TokenId = Callable[[str], int | None]
_WHITESPACE = " ?"
CLOSING = '"}'
"""Ends the input of a custom tool."""


def can_enforce(syntax: Syntax, use: ToolUse) -> bool:
    """True when there is a grammar for calls as this model writes them."""
    is_list = re.search(re.escape(MARK) + r"\s*\[", use.example) is not None
    return syntax in (HERMES, LLAMA_JSON) or (syntax is MISTRAL and is_list)


def call_grammar(
    syntax: Syntax, choice: ToolChoice, token_id: TokenId, content: GrammarSpec | None = None
) -> str:
    """Lark text. `token_id` maps a special token's text to its id, any other text to None.

    An answer without calls is a JSON document that matches `content`, or any text.
    """
    mark = {HERMES.name: OPEN_TAG, MISTRAL.name: MARK}.get(syntax.name, "")
    lines = [
        f"calls: {_terminal(mark, token_id)} rest",
        f"rest: {_rest(syntax, token_id, is_single=choice.max_calls == 1)}",
        *_functions(syntax, choice),
        *_inputs(choice),
    ]
    if choice.is_required:
        start = ["start: calls"]
    elif content is not None:
        schema = msgspec.json.decode(content.text, type=dict[str, Any])
        start = ["start: calls | content", f"content: {_json_rule(schema, is_exact=content.is_exact)}"]
    else:
        start = _free(mark, token_id)
    return "\n".join([*start, *lines])


def argument_rules(choice: ToolChoice) -> list[str]:
    """Rule names of each function's arguments, in the order of `choice.names`; each rule is one line."""
    return [f"arguments_{i}" for i in range(len(choice.definitions))]


def definition_place(choice: ToolChoice, name: str) -> str:
    """The field of the request with the grammar of a custom tool."""
    return f"{choice.places[name]}.grammar.definition"


def input_opening(rule: str) -> str:
    """The line before a custom tool's own grammar, which ends at a line of one brace."""
    return f"{rule}_input: %lark {{"


def _free(mark: str, token_id: TokenId) -> list[str]:
    """Start rules for free text, with or without calls."""
    if not mark:
        return ["start: TEXT? | calls", r"TEXT: /\s*[^\s{](?s:.*)/"]
    if token_id(mark) is not None:  # a special token: cannot be part of text
        return ["start: TEXT? calls?", "TEXT: /(?s:.+)/"]
    escaped = "".join(char if char.isalnum() or char in "<_>" else "\\" + char for char in mark)
    return ["start: TEXT? | head rest", "TEXT: /(?s:.+)/", f"head[lazy]: /(?s:.*){escaped}/"]


def _terminal(text: str, token_id: TokenId) -> str:
    found = token_id(text)
    return json.dumps(text) if found is None else f"<[{found}]>"


def _rest(syntax: Syntax, token_id: TokenId, *, is_single: bool) -> str:
    """The first call after its opening mark, and further calls."""
    if syntax is MISTRAL:
        return '"[" function' + ("" if is_single else ' (", " function)*') + ' "]"'
    if syntax is LLAMA_JSON:
        return "function" + ("" if is_single else ' ("; " function)*')
    call = f'"\\n" function "\\n" {_terminal(CLOSE_TAG, token_id)}'
    return call + ("" if is_single else f' ("\\n" {_terminal(OPEN_TAG, token_id)} {call})*')


def _functions(syntax: Syntax, choice: ToolChoice) -> list[str]:
    key = "parameters" if syntax is LLAMA_JSON else "arguments"
    names = choice.names
    lines = ["function: " + " | ".join(f"function_{i}" for i in range(len(names)))]
    for i, (name, rule) in enumerate(zip(names, argument_rules(choice), strict=True)):
        opening = json.dumps(f'"name": {json.dumps(name)}, "{key}": ')
        schema = {**choice.parameters[name], "type": "object"}
        lines.append(f'function_{i}: "{{" {opening} {rule} "}}"')
        if name in choice.grammars:
            lines.append(
                f"{rule}: {json.dumps(json.dumps({INPUT: ''})[:-2])} {rule}_input {json.dumps(CLOSING)}"
            )
        else:
            lines.append(f"{rule}: {_json_rule(schema, is_exact=name in choice.strict)}")
    return lines


def _inputs(choice: ToolChoice) -> list[str]:
    """What the inputs of custom tools must match. Raises InvalidRequest."""
    lines = []
    for name, rule in zip(choice.names, argument_rules(choice), strict=True):
        if (grammar := choice.grammars.get(name)) is None:
            continue
        quoted = quoted_lark if grammar.syntax == "lark" else quoted_regex
        try:
            text = quoted(grammar.definition)
        except ValueError as error:
            place = definition_place(choice, name)
            raise refusals.unsupported(
                place, f"'{place}' of the tool {name!r} cannot be enforced: {error}; simplify it"
            ) from None
        lines.append(f"{input_opening(rule)}\n{text}\n}}")
    return lines


def _json_rule(schema: Mapping[str, Any], *, is_exact: bool) -> str:
    options = {"whitespace_pattern": _WHITESPACE, "lenient": not is_exact, "coerce_one_of": not is_exact}
    return f"%json {json.dumps({**schema, 'x-guidance': options})}"
