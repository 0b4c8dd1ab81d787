"""GrammarSpec → the automata library's own text, with what may come before the body: a thought."""

from __future__ import annotations

import json
from typing import Any

import msgspec
from llguidance import LLMatcher
from llguidance.gbnf_to_lark import any_to_lark

from backend.errors import RequestError
from backend.structured.vocabulary import Vocabulary
from backend.tokenizer.thinking import CLOSE_TAG, OPEN_TAG
from backend.types import GrammarSpec

MAX_TEXT_CHARS = 256 * 1024

_WHITESPACE = r"(\n[ \t]{0,40}| )?"
"""Between a JSON document's tokens: what printers write, and no room for a model to get lost in."""


def library_text(spec: GrammarSpec, vocabulary: Vocabulary) -> str:
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
    start = _START[spec.thought].format(open=_tag(OPEN_TAG, vocabulary), close=_tag(CLOSE_TAG, vocabulary))
    return json.dumps({"grammars": [{"lark_grammar": start}, {**body, "name": "body"}]})


_LEAD = "LEAD: /\\n{{1,2}}/\n"
_THOUGHT = "thought: TEXT {close}\nTEXT: /(?s:.*)/\n" + _LEAD
_START = {
    "none": "start: @body\n",
    "inside": "start: thought LEAD? @body\n" + _THOUGHT,
    "whole": "start: LEAD? {open} thought LEAD? @body\n" + _THOUGHT,
}


def _tag(text: str, vocabulary: Vocabulary) -> str:
    """A tag as the library's syntax has it: a special token by id, else plain text."""
    token_id = vocabulary.special_id(text)
    return json.dumps(text) if token_id is None else f"<[{token_id}]>"


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
            return {"lark_grammar": "start: " + " | ".join(json.dumps(choice) for choice in choices)}
        case "lark":
            return {"lark_grammar": any_to_lark(spec.text)}
