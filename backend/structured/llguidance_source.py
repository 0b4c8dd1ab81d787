"""GrammarSpec → a grammar in llguidance's JSON format, with free reasoning text allowed before the body."""

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

UNPARSED = "unread_grammar"
"""Key of a body in Lark or GBNF. To tell them apart means parsing, which may hang: left to the sandbox."""

_WHITESPACE = r"(\n[ \t]{0,40}| )?"
"""Between JSON tokens: enough for pretty-printing, but bounded, or a model may emit whitespace forever."""


def llguidance_source(spec: GrammarSpec, vocabulary: Vocabulary) -> str:
    """Return the source. Raises RequestError if the spec cannot be parsed; llguidance validates it later."""
    if len(spec.text) > MAX_TEXT_CHARS:
        raise RequestError(
            f"the grammar has {len(spec.text)} characters; send at most {MAX_TEXT_CHARS}", spec.param
        )
    try:
        body = _body(spec)
    except (ValueError, RecursionError) as error:
        # msgspec names types and places; other errors may quote the grammar.
        cause = f" ({error})" if isinstance(error, msgspec.MsgspecError) else ""
        raise RequestError(f"the grammar cannot be read{cause}; correct it", spec.param) from None
    start = _start(spec, vocabulary)
    return json.dumps({"grammars": [{"lark_grammar": start}, {**body, "name": "body"}]})


def _start(spec: GrammarSpec, vocabulary: Vocabulary) -> str:
    """Return the Lark start rule: the body after an optional reasoning block.

    A tag of the block is a special token or plain text, depending on the checkpoint.
    """
    if spec.thought == "none":
        return "start: @body\n"
    opening, closing = vocabulary.special_id(OPEN_TAG), vocabulary.special_id(CLOSE_TAG)
    start = "thought LEAD? @body"
    if spec.thought == "whole":
        start = f"LEAD? {json.dumps(OPEN_TAG) if opening is None else f'<[{opening}]>'} {start}"
    lines = [f"start: {start}", "LEAD: /\\n{1,2}/"]
    if spec.max_thought_tokens:
        tag = json.dumps(CLOSE_TAG) if closing is None else f"<[{closing}]>"
        budget = f"text[max_tokens={spec.max_thought_tokens}]: TEXT"
        lines += [f"thought: text {tag}", budget, "TEXT: /(?s:.*)/"]
    elif closing is None:
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
            # One terminal, not a rule per choice: the parser tracks at most 2,000 rules at once.
            return {"lark_grammar": "start: CHOICE\nCHOICE: " + " | ".join(map(json.dumps, choices))}
        case "lark":
            return {UNPARSED: spec.text}
