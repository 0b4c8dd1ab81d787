from __future__ import annotations

import json
from typing import Any

import pytest
from openai.types.chat.parsed_chat_completion import ParsedChatCompletionMessage
from openai.types.chat.parsed_function_tool_call import ParsedFunction, ParsedFunctionToolCall

from gateway.errors import InvalidRequest
from gateway.requests.messages import plain_messages, text_size

ASKED = {"role": "user", "content": "2 + 3?"}


def call(identifier: str = "c1", name: str = "add", arguments: Any = '{"a": 2}') -> dict[str, Any]:  # noqa: ANN401
    return {"id": identifier, "type": "function", "function": {"name": name, "arguments": arguments}}


def calls(*made: object, **fields: Any) -> dict[str, Any]:  # noqa: ANN401
    return {"role": "assistant", "content": None, "tool_calls": list(made), **fields}


def result(identifier: str = "c1", content: object = "5") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": identifier, "content": content}


def test_calls_get_arguments_as_objects_and_results_get_names() -> None:
    parts = [{"type": "text", "text": "5"}]
    messages = [ASKED, calls(call(), call("c2", "clock", "")), result("c2", parts), result(), ASKED]
    plain = plain_messages(messages)
    assert [c["function"]["arguments"] for c in plain[1]["tool_calls"]] == [{"a": 2}, {}]
    assert plain[1]["content"] == ""
    assert [(m["tool_call_id"], m["name"], m["content"]) for m in plain[2:4]] == [
        ("c2", "clock", "5"),
        ("c1", "add", "5"),
    ]
    assert messages[3] == result()


def test_an_answer_with_calls_may_be_sent_back_unchanged() -> None:
    answer = calls(call(), refusal=None, annotations=[], reasoning_content="so")
    assert plain_messages([ASKED, answer, result()])[1]["reasoning_content"] == "so"
    assert text_size([answer]) > text_size([ASKED]) + 40


def test_an_answer_may_be_sent_back_as_the_official_client_parsed_it() -> None:
    function = ParsedFunction(name="add", arguments='{"a": 2}', parsed_arguments={"a": 2})
    made = ParsedFunctionToolCall(id="c1", type="function", function=function)
    answer = ParsedChatCompletionMessage[dict[str, int]](
        role="assistant", content='{"b": 1}', tool_calls=[made], parsed={"b": 1}
    )
    sent = answer.model_dump(mode="json")
    sent["tool_calls"][0]["index"] = 0  # added when streamed
    assert sent["parsed"] and sent["tool_calls"][0]["function"]["parsed_arguments"]
    assert plain_messages([ASKED, sent, result()])[1] == {
        "role": "assistant",
        "content": '{"b": 1}',
        "tool_calls": [{**call(), "function": {"name": "add", "arguments": {"a": 2}}}],
    }


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([calls(call("c1"), call("c1"))], "messages[1].tool_calls"),
        ([calls("x")], "messages[1].tool_calls[0]"),
        ([calls({**call(), "number": 0})], "messages[1].tool_calls[0].number"),
        ([calls({**call(), "type": "mcp"})], "messages[1].tool_calls[0].type"),
        ([calls({**call(), "type": "custom"})], "messages[1].tool_calls[0].custom"),
        (
            [calls({"id": "c", "type": "custom", "custom": {"name": "n"}})],
            "messages[1].tool_calls[0].custom.input",
        ),
        ([calls({**call(), "id": ""})], "messages[1].tool_calls[0].id"),
        ([calls({"id": "c1"})], "messages[1].tool_calls[0].function"),
        ([calls({"function": {"name": "f", "arguments": "{}"}})], "messages[1].tool_calls[0].id"),
        ([calls(call(name=""))], "messages[1].tool_calls[0].function.name"),
        ([calls(call(arguments={"a": 1}))], "messages[1].tool_calls[0].function.arguments"),
        ([calls(call(arguments=None))], "messages[1].tool_calls[0].function.arguments"),
        ([calls(tool_calls={"a": 1})], "messages[1].tool_calls"),
        ([calls(call()), result("c2")], "messages[2].tool_call_id"),
        ([calls(call()), result(), result()], "messages[3].tool_call_id"),
        ([calls(call()), result(), ASKED, result()], "messages[4].tool_call_id"),
        ([calls(call()), ASKED], "messages[2]"),
        ([calls(call())], "messages[1]"),
        ([calls(call(), call("c2")), result("c2")], "messages[2]"),
        ([calls(call()), {"role": "tool", "tool_call_id": "c1"}], "messages[2].content"),
    ],
)
def test_errors_name_their_place(messages: list[dict[str, Any]], param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        plain_messages([ASKED, *messages])
    assert refused.value.param == param


def test_a_missing_result_is_named() -> None:
    with pytest.raises(InvalidRequest, match="'c2'"):
        plain_messages([calls(call(), call("c2")), result(), ASKED])


def test_an_unmatched_result_is_named_with_the_open_calls() -> None:
    with pytest.raises(InvalidRequest, match=r"'c3' matches no unanswered call .* \('c1', 'c2'\)"):
        plain_messages([calls(call(), call("c2")), result("c3")])


def test_a_repeated_id_is_named() -> None:
    with pytest.raises(InvalidRequest, match=r"two calls have the same id \('c1'\)"):
        plain_messages([calls(call(), call("c2"), call())])


def test_few_ids_are_named_and_no_other_text() -> None:
    ids = ["my question is", *(f"c{number}" for number in range(9))]
    with pytest.raises(InvalidRequest, match=r"one: 10 \('c0', 'c1', 'c2', 'c3', …\)\.$"):
        plain_messages([calls(*map(call, ids)), ASKED])
    for messages in (
        [calls(call(ids[0]), call(ids[0]))],
        [calls(call(ids[0])), ASKED],
        [calls(call()), result(ids[0])],
    ):
        with pytest.raises(InvalidRequest) as refused:
            plain_messages(messages)
        assert "question" not in refused.value.message


def test_arguments_keep_their_order() -> None:
    arguments = {"b": 1, "a": [2]}
    plain = plain_messages([calls(call(arguments=json.dumps(arguments))), result()])
    assert list(plain[0]["tool_calls"][0]["function"]["arguments"]) == ["b", "a"]


@pytest.mark.parametrize(
    "broken",
    [
        *(
            '{"a": ',
            "[1]",
            "null",
            "417 + 256",
            '{"a": 1}}',
            " ",
            "[" * 100_000,
            '{"a": ' + "9" * 5_000 + "}",
        ),
        *('{"a": NaN}', '{"a": [-Infinity]}', '{"a": 1e999}', '{"b": {"a": 1, "a": 2}}'),
    ],
)
def test_invalid_arguments_become_text(broken: str) -> None:
    plain = plain_messages([ASKED, calls(call(arguments=broken)), result(content="Send JSON.")])
    assert plain[1]["tool_calls"][0]["function"]["arguments"] == {"invalid_arguments": broken}
