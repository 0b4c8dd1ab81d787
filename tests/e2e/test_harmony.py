"""gpt-oss end to end: a tiny random checkpoint whose reasoning, calls and text come in channels."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from backend.tokenizer import Tokenizer
from tests.backend.models.checkpoints import VARIANTS, Variant, write_checkpoint
from tests.backend.tokenizer.harmony import eos_ids, save_harmony
from tests.e2e.conftest import StartServer
from tests.e2e.server import Server

MODEL = "oss"
ENTRY = "{{engine: {{checkpoint: {path}, kv_cache_bytes: 8388608, num_threads: 1}}}}"
PARAMETERS = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Oslo", "Łódź"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
FUNCTION = {"name": "weather", "parameters": PARAMETERS, "strict": True}
TOOLS = [{"type": "function", "function": FUNCTION}]
ASKED: dict[str, Any] = {
    "model": MODEL,
    "messages": [{"role": "user", "content": "How is the weather in Oslo?"}],
    "temperature": 0,
    "max_tokens": 120,
}
BUDGET = {"thinking_token_budget": 8}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_harmony(tmp_path_factory.mktemp("harmony") / MODEL)


@pytest.fixture(scope="module")
def tokenizer(checkpoint: Path) -> Tokenizer:
    return Tokenizer.from_checkpoint(checkpoint)


@pytest.fixture(scope="module")
def served(start_module_server: StartServer, checkpoint: Path) -> Server:
    folder = checkpoint.parent
    ends = eos_ids(checkpoint)
    (variant,) = (each for each in VARIANTS if each.name == "gpt-oss")
    size = max(ends) + 16
    changes = {
        **variant.changes,
        "vocab_size": size,
        "eos_token_id": ends,
        "pad_token_id": None,
        "max_position_embeddings": 1024,
    }
    write_checkpoint(Variant(MODEL, variant.model_type, changes), checkpoint)
    (folder / "policies").mkdir()
    (folder / "policies" / "models.yaml").write_text(f"models:\n  {MODEL}: {ENTRY.format(path=checkpoint)}\n")
    return start_module_server("--policies", str(folder / "policies"))


@pytest.fixture(scope="module")
def client(served: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=served.base_url, api_key="none", max_retries=0) as client:
        yield client


def parts(
    client: openai.OpenAI,
    *,
    is_streamed: bool,
    **more: Any,  # noqa: ANN401
) -> tuple[str, str, list[tuple[str, str]], str]:
    """Reasoning, text, calls and finish reason of a chat."""
    asked = {**ASKED, **more, "extra_body": BUDGET}
    if not is_streamed:
        choice = client.chat.completions.create(**asked).choices[0]
        calls = [(call.function.name, call.function.arguments) for call in choice.message.tool_calls or ()]
        reasoning = getattr(choice.message, "reasoning_content", None)
        return reasoning or "", choice.message.content or "", calls, choice.finish_reason
    reasoning, text, reason = "", "", ""
    listed: list[list[str]] = []
    for chunk in client.chat.completions.create(**asked, stream=True):
        choice = chunk.choices[0]
        reasoning += getattr(choice.delta, "reasoning_content", None) or ""
        text += choice.delta.content or ""
        for call in choice.delta.tool_calls or ():
            if call.index == len(listed):
                listed.append([call.function.name, ""])
            listed[call.index][1] += call.function.arguments or ""
        reason = choice.finish_reason or reason
    return reasoning, text, [(name, arguments) for name, arguments in listed], reason


def test_reasoning_and_an_enforced_call_come_apart_whole_and_streamed(client: openai.OpenAI) -> None:
    for choice in ("required", {"type": "function", "function": {"name": "weather"}}):
        whole = parts(client, is_streamed=False, tools=TOOLS, tool_choice=choice)
        assert parts(client, is_streamed=True, tools=TOOLS, tool_choice=choice) == whole
        reasoning, text, ((name, arguments),), reason = whole
        assert reasoning and (text, name, reason) == ("", "weather", "tool_calls")
        values = json.loads(arguments)
        assert values["city"] in ("Oslo", "Łódź") and 1 <= values["days"] <= 9
        assert "<|" not in reasoning


def test_reasoning_and_an_enforced_text_come_apart_whole_and_streamed(client: openai.OpenAI) -> None:
    shape = {"type": "json_schema", "json_schema": {"name": "w", "schema": PARAMETERS, "strict": True}}
    whole = parts(client, is_streamed=False, response_format=shape)
    assert parts(client, is_streamed=True, response_format=shape) == whole
    reasoning, text, calls, reason = whole
    assert reasoning and set(json.loads(text)) == {"city", "days"} and (calls, reason) == ([], "stop")


def test_responses_have_the_same_parts_whole_and_streamed(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {
        "model": MODEL,
        "input": "How is the weather in Oslo?",
        "tools": [{"type": "function", **FUNCTION}],
        "tool_choice": "required",
        "temperature": 0,
        "max_output_tokens": 120,
        "extra_body": BUDGET,
    }

    def shown(response: Any) -> list[tuple[str, Any]]:  # noqa: ANN401
        found = []
        for item in response.output:
            if item.type == "function_call":
                found.append((item.name, json.loads(item.arguments)))
            else:
                found.append((item.type, [part.text for part in item.content or ()]))
        return found

    whole = shown(client.responses.create(**asked))
    with client.responses.stream(**asked) as stream:
        events = list(stream)
        assert shown(stream.get_final_response()) == whole
    assert [name for name, _ in whole] == ["reasoning", "weather"]
    arguments = "".join(
        each.delta for each in events if each.type == "response.function_call_arguments.delta"
    )
    assert json.loads(arguments) == whole[1][1]


def test_a_loop_of_calls_renders_back(client: openai.OpenAI, served: Server, tokenizer: Tokenizer) -> None:
    """Reasoning of this turn goes back in, older does not; each call is before its result."""
    calls = [
        {"id": f"c{i}", "type": "function", "function": {"name": "weather", "arguments": f'{{"days": {i}}}'}}
        for i in range(2)
    ]
    results = [{"role": "tool", "tool_call_id": f"c{i}", "content": f"sunny {i}"} for i in range(2)]
    old = {"role": "assistant", "content": "Good day.", "reasoning_content": "OLD"}
    message = {"role": "assistant", "content": "I look.", "reasoning_content": "NEW", "tool_calls": calls}
    messages = [ASKED["messages"][0], old, ASKED["messages"][0], message, *results]
    body = {"model": MODEL, "messages": messages, "tools": TOOLS}
    found = httpx.post(f"{served.root_url}/tokenize", json=body).json()
    prompt = tokenizer.decode(found["tokens"], skip_special_tokens=False)
    after = prompt.rpartition("<|start|>user")[2].partition("<|end|>")[2]
    assert after == (
        "<|start|>assistant<|channel|>analysis<|message|>NEW\n\nI look.<|end|>"
        '<|start|>assistant to=functions.weather<|channel|>commentary json<|message|>{"days": 0}<|call|>'
        '<|start|>functions.weather to=assistant<|channel|>commentary<|message|>"sunny 0"<|end|>'
        '<|start|>assistant to=functions.weather<|channel|>commentary json<|message|>{"days": 1}<|call|>'
        '<|start|>functions.weather to=assistant<|channel|>commentary<|message|>"sunny 1"<|end|>'
        "<|start|>assistant"
    )
    assert "OLD" not in prompt and "Good day." in prompt
    answer = client.chat.completions.create(
        **{**ASKED, "messages": messages, "tools": TOOLS, "tool_choice": "required", "extra_body": BUDGET}
    )
    assert answer.choices[0].message.tool_calls
