"""Tool calls and their results with the official client and pico-small, whole and streamed."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

from tests.e2e.conftest import MODEL


def tool(name: str, description: str, **parameters: str) -> Any:  # noqa: ANN401 - the SDK's union of tools
    properties = {key: {"type": kind} for key, kind in parameters.items()}
    schema = {"type": "object", "properties": properties, "required": list(parameters)}
    function = {"name": name, "description": description, "parameters": schema}
    return {"type": "function", "function": function}


CALCULATOR = tool("calculator", "Compute an expression.", expression="string")
WEATHER = tool("weather", "Look up the weather.", city="string")
TOOLS = [CALCULATOR, WEATHER]
SUM: Any = [{"role": "user", "content": "What is 417 + 256?"}]
LOOK_UP: Any = [{"role": "user", "content": "What is the weather in Paris?"}]


def call_of(client: openai.OpenAI, messages: Any, **options: Any) -> Any:  # noqa: ANN401
    """The one call of an answer, its arguments, and the message."""
    answer = client.chat.completions.create(
        model=MODEL, messages=messages, **{"temperature": 0, "tools": TOOLS, **options}
    )
    (choice,) = answer.choices
    assert choice.finish_reason == "tool_calls", choice
    assert choice.message.content is None and choice.message.tool_calls is not None
    (call,) = choice.message.tool_calls
    assert call.type == "function" and call.id.startswith("call_")
    return call.function.name, json.loads(call.function.arguments), choice.message


@pytest.mark.parametrize(
    ("messages", "expected", "result", "told"),
    [
        (SUM, ("calculator", {"expression": "417 + 256"}), "673", "673"),
        (LOOK_UP, ("weather", {"city": "Paris"}), "sunny, 21 degrees", "sunny"),
    ],
)
def test_a_loop_of_two_turns(
    client: openai.OpenAI,
    messages: Any,  # noqa: ANN401
    expected: tuple[str, Any],
    result: str,
    told: str,
) -> None:
    name, arguments, message = call_of(client, messages)
    assert (name, arguments) == expected
    returned: Any = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": result}
    answer = client.chat.completions.create(
        model=MODEL, messages=[*messages, message, returned], tools=TOOLS, temperature=0
    )
    assert answer.choices[0].finish_reason == "stop"
    assert told in (answer.choices[0].message.content or "")


def test_a_stream_adds_up_to_the_same(client: openai.OpenAI) -> None:
    name, arguments, _ = call_of(client, SUM)
    with client.chat.completions.stream(model=MODEL, messages=SUM, tools=TOOLS, temperature=0) as stream:
        final = stream.get_final_completion().choices[0]
    assert final.finish_reason == "tool_calls" and not final.message.content
    ((streamed),) = final.message.tool_calls or []
    assert (streamed.function.name, json.loads(streamed.function.arguments)) == (name, arguments)


def test_tool_choice_none_hides_tools(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL, messages=SUM, tools=TOOLS, tool_choice="none", temperature=0
    )
    assert answer.choices[0].finish_reason == "stop" and answer.choices[0].message.tool_calls is None


@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_a_call_can_be_required(client: openai.OpenAI, temperature: float) -> None:
    hello: Any = [{"role": "user", "content": "Hello!"}]
    name, _, _ = call_of(
        client,
        hello,
        tool_choice="required",
        parallel_tool_calls=False,
        temperature=temperature,
        seed=3,
        max_tokens=200,
    )
    assert name in ("calculator", "weather")
    named: Any = {"type": "function", "function": {"name": "weather"}}
    name, arguments, _ = call_of(
        client, SUM, tool_choice=named, temperature=temperature, seed=3, max_tokens=200
    )
    assert name == "weather" and isinstance(arguments["city"], str)


def test_a_function_without_parameters_is_called_without_arguments(client: openai.OpenAI) -> None:
    clock: Any = {"type": "function", "function": {"name": "clock", "description": "Tell the time."}}
    for temperature in (0, 1.5):
        name, arguments, _ = call_of(
            client, SUM, tools=[clock], tool_choice="required", temperature=temperature, seed=3
        )
        assert (name, arguments) == ("clock", {})


def test_strict_arguments_fit_their_schema(client: openai.OpenAI) -> None:
    strict = json.loads(json.dumps(CALCULATOR))
    strict["function"]["strict"] = True
    strict["function"]["parameters"]["additionalProperties"] = False
    name, arguments, _ = call_of(client, SUM, tools=[strict, WEATHER])
    assert name == "calculator" and set(arguments) == {"expression"}


def test_an_invalid_tool_is_named(client: openai.OpenAI) -> None:
    broken = tool("calculator", "Compute.", expression="text")
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model=MODEL, messages=SUM, tools=[broken])
    assert refused.value.param == "tools[0].function.parameters.properties.expression.type"


def test_the_function_that_no_grammar_can_enforce_is_named(client: openai.OpenAI) -> None:
    odd = json.loads(json.dumps(WEATHER))
    parameters = odd["function"]["parameters"]
    parameters |= {"additionalProperties": False, "required": ["city"]}
    parameters["properties"]["city"] = {"type": "array", "uniqueItems": True}
    odd["function"]["strict"] = True
    for tool_choice in ("auto", "required"):
        with pytest.raises(openai.BadRequestError, match="function 'weather': .*uniqueItems") as refused:
            client.chat.completions.create(
                model=MODEL, messages=SUM, tools=[CALCULATOR, odd], tool_choice=tool_choice
            )
        assert refused.value.param == "tools[1].function.parameters"
        assert "calculator" not in refused.value.message
