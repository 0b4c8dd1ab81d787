"""Chooses a model's call syntax: from the policy, or from how its chat template renders earlier calls."""

from __future__ import annotations

import re
from collections.abc import Mapping

from backend.tokenizer.tool_use import PROBE_KEY, PROBE_NAME, ToolUse
from gateway.tool_calls.hermes import HERMES
from gateway.tool_calls.llama_json import LLAMA_JSON
from gateway.tool_calls.mistral import MISTRAL
from gateway.tool_calls.parser import Syntax
from gateway.tool_calls.pythonic import PYTHONIC

SYNTAXES: Mapping[str, Syntax] = {syntax.name: syntax for syntax in (HERMES, LLAMA_JSON, PYTHONIC, MISTRAL)}
_EXAMPLES = (
    (HERMES, rf'<tool_call>\s*\{{[^<]*"{PROBE_KEY}"[^<]*</tool_call>'),
    (MISTRAL, rf"\[TOOL_CALLS\]\s*(?:\[\s*\{{[^\[]*\"{PROBE_NAME}\"|{PROBE_NAME})"),
    (LLAMA_JSON, rf'\{{"name": "{PROBE_NAME}", "parameters":'),
    (PYTHONIC, rf"\[{PROBE_NAME}\({PROBE_KEY}="),
)


def find_syntax(use: ToolUse, parser: str = "auto") -> Syntax | None:
    """The syntax that the policy's `tool_parser` names; for "auto" that of the template, None if unknown."""
    if parser != "auto":
        return SYNTAXES[parser]
    return next((syntax for syntax, example in _EXAMPLES if re.search(example, use.example)), None)
