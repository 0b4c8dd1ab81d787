"""What a chat template does with tools, found by rendering it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from backend.errors import TemplateError

PROBE_NAME = "probe_function"
PROBE_KEY = "probe_key"
_PROBE_RESULT = "probe_result"
_CALL_ID = "probe0001"  # nine letters and digits, which Mistral's templates insist on


@dataclass(frozen=True, slots=True)
class ToolUse:
    """Which parts of a conversation with tools reach the prompt."""

    reads_tools: bool = False
    reads_results: bool = False  # and the calls that they answer
    example: str = ""  # a prompt in which PROBE_NAME was called with the argument PROBE_KEY; "": unknown


def tool_use(render: Callable[..., str]) -> ToolUse:
    """`render` gives the prompt of messages and, as a keyword, `tools`."""

    def rendered(messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None = None) -> str:
        try:
            return render(messages, tools=tools)
        except TemplateError:
            return ""

    asked = [{"role": "user", "content": "Hello"}]
    function = {"name": PROBE_NAME, "arguments": {PROBE_KEY: "value"}}
    call = {"id": _CALL_ID, "type": "function", "function": function}
    called = {"role": "assistant", "content": "", "tool_calls": [call]}
    result = {"role": "tool", "content": _PROBE_RESULT, "name": PROBE_NAME, "tool_call_id": _CALL_ID}
    # Some templates write earlier calls only where tools are offered.
    example = rendered([*asked, called, result], [_definition("other_function")])
    return ToolUse(
        reads_tools=PROBE_NAME in rendered(asked, [_definition(PROBE_NAME)]),
        reads_results=PROBE_KEY in example and _PROBE_RESULT in example,
        example=example if PROBE_KEY in example else "",
    )


def _definition(name: str) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {"unit": {"type": "string", "description": "Unit."}}}
    function = {"name": name, "description": "A function.", "parameters": parameters}
    return {"type": "function", "function": function}
