"""Chats with reasoning, from HTTP to the engine's socket; only the model is scripted."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai.types.chat import ChatCompletion
from tokenizers import AddedToken

from backend.tokenizer import Tokenizer
from backend.tokenizer.thinking import ThinkingMode
from backend.types import Request, StepOutput, TokenLogprobs
from gateway.errors import InvalidRequest
from gateway.providers.engine.provider import EngineProvider
from gateway.providers.engine.replicas import Replicas
from gateway.providers.engine.service import EngineService
from gateway.requests.parse import typed
from gateway.requests.reasoning import chat_reasoning, default_effort_error, resolve_reasoning
from gateway.requests.types import ChatRequest
from policies.document import Reasoning
from tests.backend.tokenizer.checkpoints import save_byte_level
from tests.gateway.conftest import MakeApp, http_client
from tests.gateway.connection import events
from tests.gateway.scripted_engine import ScriptedEngine, says

CHAT = "/v1/chat/completions"
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}"
    "{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking %}<think>\n{% endif %}{% endif %}"
)
REASONING, ANSWER = "7+5=12", "It is 12."
HIGH = {"reasoning_effort": "high"}
SWITCHED_ON = {"chat_template_kwargs": {"enable_thinking": True}}
SWITCHED_OFF = {"chat_template_kwargs": {"enable_thinking": False}}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """Like pico's: the template has a switch, the tags are special tokens."""
    added = [AddedToken(tag, special=True) for tag in ("<think>", "</think>")]
    folder = save_byte_level(tmp_path_factory.mktemp("reasoning"), added=added, chat_template=TEMPLATE)
    return Tokenizer.from_checkpoint(folder)


@pytest.fixture(autouse=True)
def reasons_on_request(engine: ScriptedEngine, tokenizer: Tokenizer) -> None:
    """The engine continues the reasoning that the prompt has opened, and otherwise answers at once."""
    reasoning = says(tokenizer.encode(f"{REASONING}\n</think>\n\n{ANSWER}"))
    direct = says(tokenizer.encode(ANSWER))

    def script(request: Request) -> AsyncIterator[StepOutput]:
        return (reasoning if tokenizer.opens_thought(request.prompt_token_ids) else direct)(request)

    engine.script = script


def chat(**more: Any) -> dict[str, Any]:  # noqa: ANN401
    return {"model": "ours", "messages": [{"role": "user", "content": "7 + 5?"}]} | more


async def ask(client: httpx.AsyncClient, **more: Any) -> dict[str, Any]:  # noqa: ANN401
    response = await client.post(CHAT, json=chat(**more))
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


async def refused(client: httpx.AsyncClient, **more: Any) -> tuple[int, str]:  # noqa: ANN401
    response = await client.post(CHAT, json=chat(**more))
    return response.status_code, response.json()["error"]["param"]


def deltas(content: bytes, index: int = 0) -> list[dict[str, Any]]:
    found = [event["choices"][0] for event in events(content) if event != "[DONE]" and event["choices"]]
    return [choice["delta"] for choice in found if choice["index"] == index]


async def test_reasoning_is_returned_beside_the_answer(
    engine_http: httpx.AsyncClient, engine: ScriptedEngine, tokenizer: Tokenizer
) -> None:
    for asked in (HIGH, SWITCHED_ON, {"reasoning_effort": "minimal"}, HIGH | SWITCHED_ON):
        answer = await ask(engine_http, **asked)
        message = answer["choices"][0]["message"]
        assert message == {
            "role": "assistant",
            "content": ANSWER,
            "reasoning_content": REASONING,
            "reasoning": REASONING,
            "refusal": None,
            "annotations": [],
        }
        ChatCompletion.model_validate(answer, strict=True)
        assert answer["choices"][0]["finish_reason"] == "stop"
        usage = answer["usage"]
        num_reasoning = len(tokenizer.encode(f"{REASONING}\n</think>"))
        assert usage["completion_tokens_details"]["reasoning_tokens"] == num_reasoning
        assert usage["completion_tokens"] == num_reasoning + len(tokenizer.encode(f"\n\n{ANSWER}"))


@pytest.mark.parametrize(
    "asked", [{}, {"reasoning_effort": "none"}, SWITCHED_OFF, {"reasoning_effort": None}]
)
async def test_without_a_request_for_it_there_is_no_reasoning(
    engine_http: httpx.AsyncClient, asked: dict[str, Any]
) -> None:
    answer = await ask(engine_http, **asked)
    assert answer["choices"][0]["message"] == {
        "role": "assistant", "content": ANSWER, "refusal": None, "annotations": []
    }  # fmt: skip
    assert answer["usage"]["completion_tokens_details"]["reasoning_tokens"] == 0


async def test_a_stream_gives_the_reasoning_first(engine_http: httpx.AsyncClient) -> None:
    response = await engine_http.post(CHAT, json=chat(stream=True, n=2, **HIGH))
    for index in range(2):
        first, *middle, last = deltas(response.content, index)
        assert first == {"role": "assistant", "content": "", "reasoning_content": None, "refusal": None}
        assert last == {"content": "", "reasoning_content": None}
        reasonings = [delta for delta in middle if delta["content"] is None]
        texts = middle[len(reasonings) :]
        assert "".join(delta["reasoning_content"] for delta in reasonings) == REASONING
        assert all(delta["reasoning"] == delta["reasoning_content"] for delta in reasonings)
        assert "".join(delta["content"] for delta in texts) == ANSWER
        assert all(delta["reasoning_content"] is None and "reasoning" not in delta for delta in texts)


@pytest.mark.parametrize("stream", [False, True])
async def test_reasoning_can_be_hidden(engine_http: httpx.AsyncClient, stream: bool) -> None:
    body = chat(stream=stream, include_reasoning=False, **HIGH)
    if stream:
        body["stream_options"] = {"include_usage": True}
    response = await engine_http.post(CHAT, json=body)
    assert "7+5" not in response.text and "reasoning_content" not in response.text
    usage = (events(response.content)[-2] if stream else response.json())["usage"]
    assert usage["completion_tokens_details"]["reasoning_tokens"] > 0
    if stream:
        assert "".join(delta.get("content") or "" for delta in deltas(response.content)) == ANSWER


async def test_tokens_may_run_out_inside_the_reasoning(engine_http: httpx.AsyncClient) -> None:
    answer = await ask(engine_http, max_tokens=2, logprobs=True, **HIGH)
    choice = answer["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("", "length")
    assert REASONING.startswith(choice["message"]["reasoning_content"])
    assert choice["logprobs"]["content"] == []
    assert answer["usage"]["completion_tokens_details"]["reasoning_tokens"] == 2


async def test_stop_strings_apply_to_the_answer_only(engine_http: httpx.AsyncClient) -> None:
    answer = await ask(engine_http, stop=["12", "="], **HIGH)
    choice = answer["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("It is ", "stop")
    assert choice["message"]["reasoning_content"] == REASONING


async def test_logprobs_are_of_the_answer_only(
    engine_http: httpx.AsyncClient, engine: ScriptedEngine, tokenizer: Tokenizer
) -> None:
    async def script(request: Request) -> AsyncIterator[StepOutput]:
        ids = tokenizer.encode(f"{REASONING}\n</think>{ANSWER}")
        records = [TokenLogprobs(i, -0.5, [(i, -0.5)]) for i in ids]
        yield StepOutput(request_id="", token_ids=ids, logprobs=records, finish_reason="stop")

    engine.script = script
    answer = await ask(engine_http, logprobs=True, **HIGH)
    tokens = answer["choices"][0]["logprobs"]["content"]
    assert b"".join(bytes(each["bytes"]) for each in tokens).decode() == ANSWER


async def test_reasoning_may_be_sent_back_with_the_conversation(
    engine_http: httpx.AsyncClient, engine: ScriptedEngine, tokenizer: Tokenizer
) -> None:
    message = (await ask(engine_http, **HIGH))["choices"][0]["message"]
    messages = [*chat()["messages"], message, {"role": "user", "content": "Sure?"}]
    await ask(engine_http, messages=messages)
    prompt = tokenizer.decode(engine.requests[-1].prompt_token_ids, skip_special_tokens=False)
    assert f"<|im_start|>assistant\n<think>{REASONING}</think>{ANSWER}<|im_end|>" in prompt


async def test_reasoning_is_continued(
    engine_http: httpx.AsyncClient, engine: ScriptedEngine, tokenizer: Tokenizer
) -> None:
    engine.script = says(tokenizer.encode(f"=12</think>{ANSWER}"))
    begun = {"role": "assistant", "content": "<think>7+5"}
    messages = [*chat()["messages"], begun]
    answer = await ask(engine_http, messages=messages, continue_final_message=True, **HIGH)
    assert answer["choices"][0]["message"]["reasoning_content"] == "=12"
    assert answer["choices"][0]["message"]["content"] == ANSWER
    engine.script = says(tokenizer.encode(" 12."))
    begun["content"] = "<think>7+5=12</think>It is"
    answer = await ask(engine_http, messages=messages, continue_final_message=True, **HIGH)
    assert answer["choices"][0]["message"]["content"] == " 12."


async def test_reasoning_in_parts_is_continued(
    engine_http: httpx.AsyncClient, engine: ScriptedEngine, tokenizer: Tokenizer
) -> None:
    engine.script = says(tokenizer.encode(f"=12</think>{ANSWER}"))
    parts = [{"type": "text", "text": text} for text in ("<think>Both are whole.", "7+5")]
    messages = [*chat()["messages"], {"role": "assistant", "content": parts}]
    answer = await ask(engine_http, messages=messages, continue_final_message=True, **HIGH)
    assert answer["choices"][0]["message"]["reasoning_content"] == "=12"
    assert answer["choices"][0]["message"]["content"] == ANSWER
    assert tokenizer.decode(engine.requests[-1].prompt_token_ids).endswith("Both are whole.\n7+5")


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({"reasoning_effort": "enormous"}, "reasoning_effort"),
        ({"reasoning_effort": 3}, "reasoning_effort"),
        ({"chat_template_kwargs": {"enable_thinking": 1}}, "chat_template_kwargs.enable_thinking"),
        ({"chat_template_kwargs": {"enable_thinkin": True}}, "chat_template_kwargs.enable_thinkin"),
        ({"chat_template_kwargs": {"enable_thinking": True, "thinking": False}}, "chat_template_kwargs"),
        (HIGH | SWITCHED_OFF, "chat_template_kwargs"),
        ({"include_reasoning": "no"}, "include_reasoning"),
    ],
)
async def test_invalid_and_contradictory_fields_are_refused_by_name(
    engine_http: httpx.AsyncClient, engine: ScriptedEngine, asked: dict[str, Any], param: str
) -> None:
    assert await refused(engine_http, **asked) == (400, param)
    assert engine.requests == []


async def test_the_policy_is_the_default(
    make_app: MakeApp, engine: ScriptedEngine, provider: EngineProvider, tokenizer: Tokenizer
) -> None:
    policy = Reasoning(default_effort="medium", expose=False)
    app = make_app(
        EngineProvider(EngineService(Replicas([provider.client]), tokenizer, reasoning=policy), "ours")
    )
    async with http_client(app) as http:
        answer = await ask(http)
        assert answer["usage"]["completion_tokens_details"]["reasoning_tokens"] > 0
        assert "reasoning_content" not in answer["choices"][0]["message"]
        answer = await ask(http, reasoning_effort="none")
        assert answer["usage"]["completion_tokens_details"]["reasoning_tokens"] == 0
        assert await refused(http, include_reasoning=True) == (400, "include_reasoning")
        body = chat()
        counts = [
            (await http.post("/tokenize", json=body | more)).json()["count"] for more in ({}, SWITCHED_OFF)
        ]
        assert [len(request.prompt_token_ids) for request in engine.requests] == counts


NEVER = ThinkingMode()
ALWAYS = ThinkingMode(is_default=True)
CAN = ThinkingMode(("enable_thinking",), is_default=True)


@pytest.mark.parametrize(
    ("mode", "asked", "param"),
    [
        (NEVER, ("low", None), "reasoning_effort"),
        (NEVER, (None, {"enable_thinking": True}), "chat_template_kwargs"),
        (ALWAYS, ("none", None), "reasoning_effort"),
        (ALWAYS, (None, {"thinking": False}), "chat_template_kwargs"),
    ],
)
def test_what_a_model_cannot_do_is_refused_by_name(
    mode: ThinkingMode, asked: tuple[str | None, dict[str, bool] | None], param: str
) -> None:
    with pytest.raises(InvalidRequest, match="cannot do") as refusal:
        resolve_reasoning(*asked, mode, Reasoning())
    assert refusal.value.param == param


@pytest.mark.parametrize(("mode", "effort"), [(NEVER, "low"), (ALWAYS, "none")])
def test_an_effort_that_a_model_cannot_do_is_ignored_in_chats(mode: ThinkingMode, effort: str) -> None:
    request = typed(chat(reasoning_effort=effort), ChatRequest)
    found = chat_reasoning(request, mode, Reasoning())
    assert (found.is_on, found.ignores_effort) == (mode.is_default, True)
    with pytest.raises(InvalidRequest, match="'reasoning_effort' asks for something"):
        chat_reasoning(request, mode, Reasoning(), is_strict=True)
    assert not chat_reasoning(request, CAN, Reasoning()).ignores_effort


def test_an_unknown_effort_is_quoted_unless_it_may_be_text() -> None:
    with pytest.raises(InvalidRequest, match=r"'reasoning_effort' \(got 'hihg'\): expected one of none, "):
        resolve_reasoning("hihg", None, CAN, Reasoning())
    with pytest.raises(InvalidRequest, match="'reasoning_effort': expected one of none, "):
        resolve_reasoning("my question is", None, CAN, Reasoning())


def test_what_a_model_does_by_default_may_be_requested() -> None:
    assert not resolve_reasoning("none", {"enable_thinking": False}, NEVER, Reasoning()).is_on
    assert resolve_reasoning("xhigh", {"enable_thinking": True}, ALWAYS, Reasoning()).is_on
    assert resolve_reasoning(None, None, CAN, Reasoning()).is_on
    assert resolve_reasoning(None, None, CAN, Reasoning()).variables == {}
    off = resolve_reasoning(None, None, CAN, Reasoning(default_effort="none"))
    assert (off.is_on, off.variables) == (False, {"enable_thinking": False})
    low = resolve_reasoning("low", None, CAN, Reasoning(default_effort="none"))
    assert (low.is_on, low.variables) == (True, {"enable_thinking": True, "reasoning_effort": "low"})


def test_a_default_that_the_model_cannot_do_is_an_error() -> None:
    assert "no reasoning mode" in default_effort_error(NEVER, Reasoning(default_effort="high"))
    assert default_effort_error(CAN, Reasoning(default_effort="high")) == ""


async def test_a_model_that_opens_its_reasoning_itself(
    make_app: MakeApp, engine: ScriptedEngine, provider: EngineProvider, tmp_path: Path
) -> None:
    template = TEMPLATE.replace("enable_thinking %}<think>", "enable_thinking is false %}<think></think>")
    assert template != TEMPLATE
    own = Tokenizer.from_checkpoint(save_byte_level(tmp_path, added=[], chat_template=template))
    assert own.thinking == CAN
    engine.script = says(own.encode(f"<think>\n{REASONING}\n</think>\n\n{ANSWER}"))
    async with http_client(
        make_app(EngineProvider(EngineService(Replicas([provider.client]), own), "ours"))
    ) as http:
        message = (await ask(http))["choices"][0]["message"]
        assert (message["reasoning_content"], message["content"]) == (REASONING, ANSWER)
        engine.script = says(own.encode(ANSWER))
        message = (await ask(http))["choices"][0]["message"]
        assert (message["reasoning_content"], message["content"]) == (None, ANSWER)
        engine.script = says(own.encode("<think> is a tag."))
        message = (await ask(http, reasoning_effort="none"))["choices"][0]["message"]
        assert message["content"] == "<think> is a tag." and "reasoning" not in message
        text = (await http.post("/v1/completions", json={"model": "ours", "prompt": "x"})).json()
        assert text["choices"][0]["text"] == "<think> is a tag."
