"""GrammarSpec → the automata library's own text, with what may come before the body: a thought."""

from __future__ import annotations

import json
from typing import Any

import msgspec
from llguidance import LLMatcher

from backend.errors import RequestError
from backend.structured.vocabulary import Vocabulary
from backend.tokenizer.thinking import CLOSE_TAG, OPEN_TAG
from backend.types import GrammarSpec

MAX_TEXT_CHARS = 256 * 1024

UNREAD = "unread_grammar"
"""Marks a body in Lark or GBNF. Which of them it is only the sandbox finds out: that may take for ever."""

_WHITESPACE = r"(\n[ \t]{0,40}| )?"
"""Between a JSON document's tokens: what printers write, and no room for a model to get lost in."""


def automaton_text(spec: GrammarSpec, vocabulary: Vocabulary) -> str:
    """Raises RequestError when the text cannot be read at all; the library judges the rest."""
    if len(spec.text) > MAX_TEXT_CHARS:
        raise RequestError(
            f"the grammar has {len(spec.text)} characters; send at most {MAX_TEXT_CHARS}", spec.param
        )
    try:
        body = _body(spec)
    except (ValueError, RecursionError) as error:
        shown = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        raise RequestError(f"the grammar cannot be read ({shown}); mend it", spec.param) from None
    start = _start(spec.thought, vocabulary)
    return json.dumps({"grammars": [{"lark_grammar": start}, {**body, "name": "body"}]})


def _start(thought: str, vocabulary: Vocabulary) -> str:
    """The rule above the body. A tag is a special token or plain text, as the checkpoint has it."""
    if thought == "none":
        return "start: @body\n"
    opening, closing = vocabulary.special_id(OPEN_TAG), vocabulary.special_id(CLOSE_TAG)
    start = "thought LEAD? @body"
    if thought == "whole":
        start = f"LEAD? {json.dumps(OPEN_TAG) if opening is None else f'<[{opening}]>'} {start}"
    lines = [f"start: {start}", "LEAD: /\\n{1,2}/"]
    if closing is None:
        closing_pattern = CLOSE_TAG.replace("/", "\\/")
        lines.append(f"thought[lazy]: /(?s:.*){closing_pattern}/")
    else:
        lines += [f"thought: TEXT <[{closing}]>", "TEXT: /(?s:.*)/"]
    return "\n".join(lines)


def _body(spec: GrammarSpec) -> dict[str, Any]:
    match spec.kind:
        case "json_schema":
            schema = msgspec.json.decode(spec.text, type=dict[str, Any])
            schema["x-guidance"] = {
                "whitespace_pattern": _WHITESPACE,
                "lenient": not spec.is_exact,
                "coerce_one_of": not spec.is_exact,
            }
            return {"json_schema": schema}
        case "regex":
            pattern = spec.text.removeprefix("^")
            if pattern.endswith("$") and not pattern.endswith("\\$"):
                pattern = pattern[:-1]
            found: dict[str, Any] = json.loads(LLMatcher.grammar_from_regex(pattern))["grammars"][0]
            return {"lark_grammar": found["lark_grammar"]}
        case "choice":
            choices = msgspec.json.decode(spec.text, type=list[str])
            # One terminal: as rules they would all be open at once, and more than 2,000 may not be.
            return {"lark_grammar": "start: CHOICE\nCHOICE: " + " | ".join(map(json.dumps, choices))}
        case "lark":
            return {UNREAD: spec.text}
