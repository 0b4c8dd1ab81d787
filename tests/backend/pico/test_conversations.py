"""An instance becomes messages and tools in OpenAI's format, and renders as expected."""

from __future__ import annotations

from backend.pico.conversations import messages_of
from backend.pico.tasks.base import Context, Instance, Tool, Turn
from backend.pico.tasks.tool_calls import call_text
from backend.pico.tokenizer import render

CALLS = "\n".join(call_text("add", {"a": number, "b": "é"}) for number in (1, 2))
CONTEXT = Context(
    system="Be brief.",
    turns=(Turn("user", "Hi"), Turn("assistant", "Hello!")),
    tools=(Tool("add", "Add numbers.", (("a", "number"), ("b", "string"))),),
    after=(Turn("assistant", CALLS), Turn("tool", "3"), Turn("tool", "4")),
)


def test_a_plain_question() -> None:
    found = messages_of(Instance("f", 1, "p", "a", "k", "steps"), thinking=False)
    expected = [{"role": "user", "content": "p"}, {"role": "assistant", "content": "a"}]
    assert found == {"messages": expected, "tools": None}


def test_thoughts_only_when_thinking() -> None:
    for thought in ("steps", ""):
        instance = Instance("f", 1, "p", "a", "k", thought)
        assert messages_of(instance, thinking=True)["messages"][-1]["reasoning_content"] == thought


def test_the_context_surrounds_the_question() -> None:
    found = messages_of(Instance("f", 1, "p", "a", "k", context=CONTEXT), thinking=False)
    messages = found["messages"]
    roles = [message["role"] for message in messages]
    assert roles == ["system", "user", "assistant", "user", "assistant", "tool", "tool", "assistant"]
    calls = messages[4]["tool_calls"]
    assert [call["function"]["arguments"] for call in calls] == ['{"a": 1, "b": "é"}', '{"a": 2, "b": "é"}']
    assert [call["id"] for call in calls] == [messages[5]["tool_call_id"], messages[6]["tool_call_id"]]
    assert len({call["id"] for call in calls}) == 2
    assert f"<|im_start|>assistant\n{CALLS}<|im_end|>" in render(**found)


def test_tools_have_a_json_schema() -> None:
    found = messages_of(Instance("f", 1, "p", "a", "k", context=CONTEXT), thinking=False)
    assert found["tools"] is not None
    function = found["tools"][0]["function"]
    assert function["parameters"]["properties"] == {"a": {"type": "number"}, "b": {"type": "string"}}
    assert function["parameters"]["required"] == ["a", "b"]
    assert "Tools:\nadd(a: number, b: string): Add numbers.<|im_end|>" in render(**found)
