"""GrammarSpec → a grammar in llguidance's JSON format, with free reasoning text allowed before the body."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec
from llguidance import LLMatcher

from backend.errors import RequestError
from backend.structured.vocabulary import Vocabulary
from backend.types import GrammarSpec

MAX_TEXT_CHARS = 256 * 1024

UNPARSED = "unread_grammar"
"""Key of a body in Lark or GBNF. To tell them apart means parsing, which may hang: left to the sandbox."""

_SPECIAL = re.compile(r"(<\|?[^<>|]+\|?>)")
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
    opening, closing = (_terms(tag, vocabulary) for tag in spec.thought_tags)
    start = "thought LEAD? @body"
    if spec.thought == "whole":
        start = f"LEAD? {' '.join(opening)} {start}"
    lines = [f"start: {start}", "LEAD: /\\n{1,2}/"]
    if spec.max_thought_tokens:
        budget = f"text[max_tokens={spec.max_thought_tokens}]: TEXT"
        lines += [f"thought: text {' '.join(closing)}", budget, "TEXT: /(?s:.*)/"]
    elif closing[0].startswith("<"):
        lines += [f"thought: TEXT {' '.join(closing)}", "TEXT: /(?s:.*)/"]
    else:
        lines.append(f"thought[lazy]: /(?s:.*){re.escape(spec.thought_tags[1]).replace('/', chr(92) + '/')}/")
    return "\n".join(lines)


def _terms(tag: str, vocabulary: Vocabulary) -> list[str]:
    """Lark terms for a tag: ids of the special tokens in it, and the text between them."""
    terms = []
    for piece in filter(None, _SPECIAL.split(tag)):
        token_id = vocabulary.special_id(piece)
        terms.append(json.dumps(piece) if token_id is None else f"<[{token_id}]>")
    return terms


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
