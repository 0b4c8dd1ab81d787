"""Tool calls as the model writes them: JSON between <tool_call> marks, one block per call."""

from __future__ import annotations

import json
import re
from typing import Any

NO_JSON = (ValueError, RecursionError)
"""What `json` raises for text that is no JSON, numbers of thousands of digits and deep nesting included."""

_CALL = re.compile(r"<tool_call>\n(.*?)\n</tool_call>", re.DOTALL)


def call_text(name: str, arguments: object) -> str:
    """One call, as JSON with the usual spaces. Arguments that are no object, a mistake, are written too."""
    call = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{call}\n</tool_call>"


def parse_calls(text: str) -> list[dict[str, Any]] | None:
    """The calls in a text, in order; None when there are none, or anything else stands in it."""
    if _CALL.sub("", text).strip():
        return None
    try:
        calls = [json.loads(found) for found in _CALL.findall(text)]
    except NO_JSON:
        return None
    return calls or None
