"""How a chat template renders tools, detected by rendering it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from backend.errors import TemplateError

PROBE_NAME = "probe_function"
PROBE_KEY = "probe_key"
_PROBE_RESULT = "probe_result"
_CALL_ID = "probe0001"  # nine letters and digits, as Mistral's templates require


@dataclass(frozen=True, slots=True)
class ToolUse:
    """The parts of a conversation with tools that a chat template renders."""

    reads_tools: bool = False
    reads_results: bool = False  # tool results and the calls that they answer
    takes_text: bool = False  # arguments must be text in JSON, not an object
    example: str = ""  # a prompt in which PROBE_NAME was called with the argument PROBE_KEY; "": not rendered
    offer: str = ""  # a prompt that offers PROBE_NAME


def tool_use(render: Callable[..., str]) -> ToolUse:
    """Detect tool support; `render(messages, tools=...)` returns a prompt or raises TemplateError."""

    def rendered(messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None = None) -> str:
        try:
            return render(messages, tools=tools)
        except TemplateError:
            return ""

    def called(arguments: object) -> str:
        function = {"name": PROBE_NAME, "arguments": arguments}
        call = {"id": _CALL_ID, "type": "function", "function": function}
        answer = {"role": "assistant", "content": "", "tool_calls": [call]}
        result = {"role": "tool", "content": _PROBE_RESULT, "name": PROBE_NAME, "tool_call_id": _CALL_ID}
        # Some templates render earlier calls only if tools are offered.
        return rendered([*asked, answer, result], [_definition("other_function")])

    asked = [{"role": "user", "content": "Hello"}]
    example = called({PROBE_KEY: "value"})
    text = json.dumps({PROBE_KEY: "value"})
    # A template for text fails for an object, or prints it as Python does.
    takes_text = (PROBE_KEY not in example or f"{{'{PROBE_KEY}'" in example) and text in called(text)
    if takes_text:
        example = called(text)
    offer = rendered(asked, [_definition(PROBE_NAME)])
    return ToolUse(
        reads_tools=PROBE_NAME in offer,
        reads_results=PROBE_KEY in example and _PROBE_RESULT in example,
        takes_text=takes_text,
        example=example if PROBE_KEY in example else "",
        offer=offer,
    )


def _definition(name: str) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {"unit": {"type": "string", "description": "Unit."}}}
    function = {"name": name, "description": "A function.", "parameters": parameters}
    return {"type": "function", "function": function}
