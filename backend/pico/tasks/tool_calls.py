"""Tool calls in the model's syntax: JSON between <tool_call> tags, one block per call."""

from __future__ import annotations

import json
import re
from typing import Any

NO_JSON = (ValueError, RecursionError)
"""Raised by `json` for invalid JSON, including numbers of thousands of digits and deep nesting."""

_CALL = re.compile(r"<tool_call>\n(.*?)\n</tool_call>", re.DOTALL)


def call_text(name: str, arguments: object) -> str:
    """Return one call as JSON with the usual spaces; arguments that are not an object are kept."""
    call = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{call}\n</tool_call>"


def parse_calls(text: str) -> list[dict[str, Any]] | None:
    """Return the calls in a text, in order; None if there are none, or any other text."""
    if _CALL.sub("", text).strip():
        return None
    try:
        calls = [json.loads(found) for found in _CALL.findall(text)]
    except NO_JSON:
        return None
    return calls or None
