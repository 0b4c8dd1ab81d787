"""The Lark grammar of answers with tool calls: enforces required calls and strict arguments.

Its JSON has the whitespace with which the families' chat templates render earlier calls.
"""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec

from backend.structured.quoted import quoted_lark, quoted_regex
from backend.types import GrammarSpec
from gateway.providers.engine.element_grammar import Function, element_rules
from gateway.providers.engine.grammar_words import TokenId, Words, json_rule, pattern
from gateway.providers.engine.quoted_values import quoted_value_rules
from gateway.requests import refusals
from gateway.requests.custom_tools import INPUT
from gateway.requests.tools import ToolChoice
from gateway.tool_calls.parser import CallForm, Syntax

CLOSING = '"}'
"""Ends the input of a custom tool."""

MAX_PREAMBLE_CHARS = 1000


def call_grammar(
    syntax: Syntax, choice: ToolChoice, token_id: TokenId, content: GrammarSpec | None = None
) -> str:
    """Lark text. `token_id` maps a special token's text to its id, any other text to None.

    An answer without calls is a JSON document that matches `content`, or any text. Raises InvalidRequest.
    """
    form = syntax.form
    words = Words(syntax, token_id)
    mark = next((mark for mark in syntax.marks if form.opening.startswith(mark)), "")
    more = "" if choice.max_calls == 1 else f" ({words.terms(form.between)} function)*"
    lines = [
        *_calls(mark, form, words),
        f"rest: {words.terms(form.opening.removeprefix(mark))} function{more} {words.terms(form.closing)}",
        *_functions(syntax, form, choice, words),
        *_inputs(choice),
    ]
    if choice.is_required:
        start = ["start: calls"]
    elif content is not None:
        schema = msgspec.json.decode(content.text, type=dict[str, Any])
        start = [
            f"start: calls | {words.terms(form.text)} content",
            f"content: {json_rule(schema, is_exact=content.is_exact)}",
        ]
    elif form.text:
        start = [f"start: calls | {words.terms(form.text)} TEXT?", "TEXT: /(?s:.+)/"]
    else:
        start = _free(mark, syntax.leading_chars, token_id)
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


def _calls(mark: str, form: CallForm, words: Words) -> list[str]:
    """Calls, after a text for the user where the form has a place for one."""
    calls = f"{words.terms(mark)} rest"
    if not words.is_special(form.preamble[1]):  # plain text would never have to end
        return [f"calls: {calls}"]
    before, after = map(words.terms, form.preamble)
    text = f"PREAMBLE: /(?s:.{{1,{MAX_PREAMBLE_CHARS}}})/"
    return [f"calls: preamble? {calls}", f"preamble: {before} PREAMBLE {after}", text]


def _free(mark: str, leading_chars: str, token_id: TokenId) -> list[str]:
    """Start rules for free text, with or without calls."""
    if not mark:
        return ["start: TEXT? | calls", rf"TEXT: /\s*[^\s{re.escape(leading_chars)}](?s:.*)/"]
    if token_id(mark) is not None:  # a special token: cannot be part of text
        return ["start: TEXT? calls?", "TEXT: /(?s:.+)/"]
    return ["start: TEXT? | head rest", "TEXT: /(?s:.+)/", f"head[lazy]: /(?s:.*){pattern(mark)}/"]


def _functions(syntax: Syntax, form: CallForm, choice: ToolChoice, words: Words) -> list[str]:
    names = choice.names
    lines = ["function: " + " | ".join(f"function_{i}" for i in range(len(names)))]
    if "{number}" in form.before:
        lines.append("NUMBER: /[0-9]{1,4}/")
    for i, (name, rule) in enumerate(zip(names, argument_rules(choice), strict=True)):
        before = " NUMBER ".join(map(words.terms, form.before.replace("{name}", name).split("{number}")))
        schema = {**choice.parameters[name], "type": "object"}
        lines.append(f"function_{i}: {before} {rule} {words.terms(form.after)}")
        if form.parameter[0]:
            function = Function(
                name, schema, choice.places.get(name, "tools"), is_strict=name in choice.strict
            )
            rules_of = quoted_value_rules if form.quote else element_rules
            lines += rules_of(rule, function, form, words)
        elif name in choice.grammars:
            lines.append(
                f"{rule}: {json.dumps(json.dumps({INPUT: ''})[:-2])} {rule}_input {json.dumps(CLOSING)}"
            )
        else:
            lines.append(f"{rule}: {json_rule(schema, is_exact=name in choice.strict)}")
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
