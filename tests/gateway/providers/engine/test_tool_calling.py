"""Chats with tools, from HTTP to the engine's socket; only the model is scripted."""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from tokenizers import AddedToken

from backend.tokenizer import Tokenizer
from backend.tokenizer.tool_use import ToolUse
from backend.types import FinishReason, Request, StepOutput, TokenLogprobs
from gateway.providers.engine.provider import EngineProvider
from gateway.providers.engine.replicas import Replicas
from gateway.providers.engine.service import EngineService
from gateway.providers.engine.tool_calling import adapt_calls
from gateway.tool_calls.families import SYNTAXES
from tests.backend.tokenizer.checkpoints import save_byte_level
from tests.gateway.conftest import CHATML, MakeApp, http_client
from tests.gateway.connection import events
from tests.gateway.scripted_engine import Script, ScriptedEngine, says

CHAT = "/v1/chat/completions"
TEMPLATE = (
    "{% for t in tools or [] %}{{ t | tojson }}\n{% endfor %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    '{% for c in m.tool_calls or [] %}<tool_call>\n{"name": "{{ c.function.name }}", "arguments": '
    "{{ c.function.arguments | tojson }}}\n</tool_call>{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking %}<think>\n{% endif %}{% endif %}"
)
SCHEMA = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
TOOLS = [
    {"type": "function", "function": {"name": "say", "description": "Says.", "parameters": SCHEMA}},
    {"type": "function", "function": {"name": "clock"}},
]
ARGUMENTS = '{"text": "x}\\"雨🎉 </b>", "n": [1, {"a": null}]}'
SAY = f'<tool_call>\n{{"name": "say", "arguments": {ARGUMENTS}}}\n</tool_call>'
CLOCK = '<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>'


@pytest.fixture(scope="module", params=["special", "single", "several"])
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """The tags are special tokens as in pico, normal tokens, or several tokens each."""
    tags = ("<tool_call>", "</tool_call>", "<think>", "</think>")
    added = (
        []
        if request.param == "several"
        else [AddedToken(t, special=request.param == "special") for t in tags]
    )
    folder = save_byte_level(tmp_path_factory.mktemp("tools"), added=added, chat_template=TEMPLATE)
    return Tokenizer.from_checkpoint(folder)


@pytest.fixture
async def engine(tmp_path: Path, tokenizer: Tokenizer) -> AsyncIterator[ScriptedEngine]:
    """An engine with room for tools in its context."""
    size = tokenizer.vocab_size
    engine = ScriptedEngine(tmp_path / "engine.sock", says([]), vocab_size=size, max_model_tokens=4096)
    await engine.start()
    yield engine
    await engine.die()


def chat(**more: Any) -> dict[str, Any]:  # noqa: ANN401
    return {"model": "ours", "messages": [{"role": "user", "content": "Say it."}], "tools": TOOLS} | more


async def ask(client: httpx.AsyncClient, **more: Any) -> dict[str, Any]:  # noqa: ANN401
    response = await client.post(CHAT, json=chat(**more))
    assert response.status_code == 200, response.text
    ChatCompletion.model_validate(response.json(), strict=True)
    choice: dict[str, Any] = response.json()["choices"][0]
    return choice


async def stream(client: httpx.AsyncClient, **more: Any) -> list[dict[str, Any]]:  # noqa: ANN401
    response = await client.post(CHAT, json=chat(stream=True, **more))
    found = [event for event in events(response.content) if event != "[DONE]"]
    for event in found:
        ChatCompletionChunk.model_validate(event, strict=True)
    return [event["choices"][0] for event in found]


async def refused(client: httpx.AsyncClient, **more: Any) -> tuple[int, str]:  # noqa: ANN401
    response = await client.post(CHAT, json=chat(**more))
    return response.status_code, response.json()["error"]["param"]


def added_up(choices: list[dict[str, Any]]) -> tuple[str | None, list[tuple[str, str]]]:
    """Content and calls of a stream, as clients join them."""
    content: str | None = None
    calls: list[list[str]] = []
    for delta in (choice["delta"] for choice in choices):
        if delta.get("content") is not None:
            content = (content or "") + delta["content"]
        for call in delta.get("tool_calls", ()):
            if "id" in call:
                assert call["type"] == "function" and call["index"] == len(calls)
                calls.append([call["function"]["name"], ""])
            calls[call["index"]][1] += call["function"]["arguments"]
    return content, [(name, arguments) for name, arguments in calls]


def called(choice: dict[str, Any]) -> list[tuple[str, str]]:
    calls = choice["message"]["tool_calls"]
    return [(call["function"]["name"], call["function"]["arguments"]) for call in calls]


async def test_an_answer_with_only_a_call_has_no_content(
    engine_http: httpx.AsyncClient, engine: ScriptedEngine, tokenizer: Tokenizer
) -> None:
    engine.script = says(tokenizer.encode(SAY))
    choice = await ask(engine_http)
    ((name, arguments),) = called(choice)
    assert (name, arguments, choice["finish_reason"]) == ("say", ARGUMENTS, "tool_calls")
    assert choice["message"]["content"] is None
    assert choice["message"]["tool_calls"][0]["id"].startswith("call_")
    prompt = tokenizer.decode(engine.requests[-1].prompt_token_ids, skip_special_tokens=False)
    assert '"description": "Says."' in prompt and "clock" in prompt


async def test_a_stream_has_the_same_content(
    engine_http: httpx.AsyncClient, engine: ScriptedEngine, tokenizer: Tokenizer
) -> None:
    engine.script = says(tokenizer.encode(f"Well, I look.\n{SAY}\n{CLOCK}"))
    whole = await ask(engine_http)
    choices = await stream(engine_http)
    assert added_up(choices) == ("Well, I look.", called(whole))
    assert (whole["message"]["content"], len(called(whole))) == ("Well, I look.", 2)
    assert choices[0]["delta"] == {"role": "assistant", "content": None, "refusal": None}
    assert choices[-1]["finish_reason"] == "tool_calls" and choices[-1]["delta"] == {}


async def test_text_stays_text(
    engine_http: httpx.AsyncClient, engine: ScriptedEngine, tokenizer: Tokenizer
) -> None:
    for text in (
        "It is 5 < 6. <tool>",
        f"Broken: {SAY[:-30]}",
        SAY.replace("say", "rm"),
        CLOCK.replace("{}", "{]"),
    ):
        engine.script = says(tokenizer.encode(text))
        choice = await ask(engine_http)
        assert (choice["message"]["content"], choice["finish_reason"]) == (text, "stop")
        assert "tool_calls" not in choice["message"]
        assert added_up(await stream(engine_http)) == (text, [])


async def test_a_truncated_call_is_not_lost(
    engine_http: httpx.AsyncClient, engine: ScriptedEngine, tokenizer: Tokenizer
) -> None:
    ids = tokenizer.encode(f"{CLOCK}\n{SAY[:-40]}")
    engine.script = says([*ids, 0])
    choice = await ask(engine_http, max_tokens=len(ids))
    assert choice["finish_reason"] == "length"
    assert called(choice) == [("clock", "{}")]
    assert choice["message"]["content"].startswith('<tool_call>\n{"name": "say"')


async def test_without_tools_tags_are_text(
    engine_http: httpx.AsyncClient, engine: ScriptedEngine, tokenizer: Tokenizer
) -> None:
    engine.script = says(tokenizer.encode(CLOCK))
    for asked in ({"tool_choice": "none"}, {"tools": None}):
        choice = await ask(engine_http, **asked)
        assert choice["message"]["content"] == tokenizer.decode(tokenizer.encode(CLOCK))
        assert "clock" not in tokenizer.decode(engine.requests[-1].prompt_token_ids)


async def test_without_parallel_calls_the_first_call_ends_the_answer(
    engine_http: httpx.AsyncClient, engine: ScriptedEngine, tokenizer: Tokenizer
) -> None:
    engine.script = says(tokenizer.encode(CLOCK + SAY))
    choice = await ask(engine_http, parallel_tool_calls=False)
    assert (called(choice), choice["finish_reason"]) == ([("clock", "{}")], "tool_calls")
    await engine.cancellation.wait()


async def test_stop_strings_apply_outside_of_calls_only(
    engine_http: httpx.AsyncClient, engine: ScriptedEngine, tokenizer: Tokenizer
) -> None:
    engine.script = says(tokenizer.encode(f"I call it. {SAY} Then END it."))
    choice = await ask(engine_http, stop=["END", "name", "雨"])
    assert called(choice) == [("say", ARGUMENTS)]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("I call it.  Then ", "tool_calls")


def says_with_logprobs(ids: list[int]) -> Script:
    async def script(request: Request) -> AsyncIterator[StepOutput]:
        for i, token_id in enumerate(ids):
            record = TokenLogprobs(token_id, -0.5, [(token_id, -0.5)])
            reason: FinishReason | None = "stop" if i == len(ids) - 1 else None
            yield StepOutput(request_id="", token_ids=[token_id], logprobs=[record], finish_reason=reason)

    return script


async def test_log_probabilities_are_those_of_every_token(
    engine_http: httpx.AsyncClient, engine: ScriptedEngine, tokenizer: Tokenizer
) -> None:
    ids = tokenizer.encode(f"So: {SAY}{CLOCK} done.")
    engine.script = says_with_logprobs(ids)
    choice = await ask(engine_http, logprobs=True, top_logprobs=1)
    tokens = [entry["token"] for entry in choice["logprobs"]["content"]]
    assert tokens == [tokenizer.token_text(i) for i in ids]
    streamed = await stream(engine_http, logprobs=True, top_logprobs=1)
    found = [entry["token"] for c in streamed if c["logprobs"] for entry in c["logprobs"]["content"]]
    assert found == tokens
    engine.script = says_with_logprobs(tokenizer.encode(SAY))
    assert added_up(await stream(engine_http, logprobs=True)) == (None, [("say", ARGUMENTS)])


def says_in_steps(ids: list[int], sizes: Iterable[int]) -> Script:
    """Several tokens per step, as with accepted drafts."""

    async def script(request: Request) -> AsyncIterator[StepOutput]:
        left = list(ids)
        for size in itertools.cycle(sizes):
            step, left = left[:size], left[size:]
            records = [TokenLogprobs(token_id, -0.5, []) for token_id in step]
            reason: FinishReason | None = None if left else "length"
            yield StepOutput(request_id="", token_ids=step, logprobs=records, finish_reason=reason)
            if not left:
                return

    return script


@pytest.mark.parametrize(
    "asked",
    [{}, {"parallel_tool_calls": False}, {"stop": ["beside"]}, {"stop": ["Well"]}, {"tool_choice": "none"}],
    ids=str,
)
async def test_the_number_of_tokens_per_step_changes_nothing(
    engine_http: httpx.AsyncClient, engine: ScriptedEngine, tokenizer: Tokenizer, asked: dict[str, Any]
) -> None:
    ids = tokenizer.encode(f"Well, I look. {SAY}\n{CLOCK} and beside {SAY} that")
    found: list[object] = []
    for sizes in ((1,), (2, 5), (7, 1, 3), (1000,)):
        engine.script = says_in_steps(ids, sizes)
        response = await engine_http.post(CHAT, json=chat(logprobs=True, **asked))
        body = response.json()
        choice, usage = body["choices"][0], body["usage"]["completion_tokens"]
        calls = called(choice) if "tool_calls" in choice["message"] else []
        tokens = [entry["token"] for entry in choice["logprobs"]["content"]]
        found.append((choice["message"]["content"], calls, choice["finish_reason"], tokens, usage))
        asked_for_usage = {"stream_options": {"include_usage": True}}
        streamed = await engine_http.post(
            CHAT, json=chat(stream=True, logprobs=True, **asked, **asked_for_usage)
        )
        *events_of_choice, last, _ = events(streamed.content)
        choices = [event["choices"][0] for event in events_of_choice]
        content, calls = added_up(choices)
        tokens = [entry["token"] for c in choices if c["logprobs"] for entry in c["logprobs"]["content"]]
        usage = last["usage"]["completion_tokens"]
        found.append((content, calls, choices[-1]["finish_reason"], tokens, usage))
    assert [each for each in found if each != found[0]] == []


async def test_reasoning_precedes_calls(
    engine_http: httpx.AsyncClient, engine: ScriptedEngine, tokenizer: Tokenizer
) -> None:
    engine.script = says(tokenizer.encode(f"I need {CLOCK}.\n</think>\n\n{SAY}"))
    choice = await ask(engine_http, reasoning_effort="high")
    assert called(choice) == [("say", ARGUMENTS)] and choice["message"]["content"] is None
    assert choice["message"]["reasoning_content"] == f"I need {CLOCK}."
    assert added_up(await stream(engine_http, reasoning_effort="high")) == (None, [("say", ARGUMENTS)])


async def test_a_call_in_reasoning_that_is_never_closed_is_no_loss(
    engine_http: httpx.AsyncClient, engine: ScriptedEngine, tokenizer: Tokenizer
) -> None:
    engine.script = says(tokenizer.encode(f"I need it.\n{SAY}"))
    choice = await ask(engine_http, reasoning_effort="high")
    assert called(choice) == [("say", ARGUMENTS)] and choice["finish_reason"] == "tool_calls"
    assert choice["message"]["reasoning_content"] == "I need it."
    assert added_up(await stream(engine_http, reasoning_effort="high")) == (None, [("say", ARGUMENTS)])
    broken = f"I need it.\n{SAY[:-40]}"
    engine.script = says(tokenizer.encode(broken))
    choice = await ask(engine_http, reasoning_effort="high")
    assert (choice["message"]["reasoning_content"], choice["finish_reason"]) == (broken, "stop")


async def test_an_empty_answer_has_empty_content_whole_and_streamed(
    engine_http: httpx.AsyncClient, engine: ScriptedEngine, tokenizer: Tokenizer
) -> None:
    engine.script = says(tokenizer.encode("I need the clock"))
    reasoning_only = {"reasoning_effort": "high"}
    choice = await ask(engine_http, **reasoning_only)
    assert choice["message"]["content"] == "" and "tool_calls" not in choice["message"]
    assert added_up(await stream(engine_http, **reasoning_only)) == ("", [])
    engine.script = says([tokenizer.encode("a")[0]], finish="stop")
    assert added_up(await stream(engine_http, stop="a")) == ("", [])


async def test_calls_and_results_are_in_the_next_prompt(
    engine_http: httpx.AsyncClient, engine: ScriptedEngine, tokenizer: Tokenizer
) -> None:
    engine.script = says(tokenizer.encode(SAY))
    message = (await ask(engine_http))["message"]
    engine.script = says(tokenizer.encode("Said."))
    result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "heard"}
    choice = await ask(engine_http, messages=[*chat()["messages"], message, result])
    assert (choice["message"]["content"], choice["finish_reason"]) == ("Said.", "stop")
    prompt = tokenizer.decode(engine.requests[-1].prompt_token_ids, skip_special_tokens=False)
    assert SAY in prompt and "<|im_start|>tool\nheard<|im_end|>" in prompt


async def test_a_truncated_call_can_be_sent_back(
    engine_http: httpx.AsyncClient, engine: ScriptedEngine, tokenizer: Tokenizer
) -> None:
    ids = tokenizer.encode(SAY[: SAY.index("雨")])
    engine.script = says([*ids, 0])
    asked = {"tool_choice": "required", "max_tokens": len(ids)}
    message = (await ask(engine_http, **asked))["message"]
    (cut,) = [call["function"]["arguments"] for call in message["tool_calls"]]
    assert cut == ARGUMENTS[: ARGUMENTS.index("雨")]
    engine.script = says(tokenizer.encode("Said."))
    result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "no JSON"}
    await ask(engine_http, messages=[*chat()["messages"], message, result])
    prompt = tokenizer.decode(engine.requests[-1].prompt_token_ids, skip_special_tokens=False)
    assert json.dumps({"invalid_arguments": cut}) in prompt


async def test_choices_call_independently(
    engine_http: httpx.AsyncClient, engine: ScriptedEngine, tokenizer: Tokenizer
) -> None:
    def script(request: Request) -> AsyncIterator[StepOutput]:
        return says(tokenizer.encode(SAY if request.params.seed == 7 else "No."))(request)

    engine.script = script
    response = await engine_http.post(CHAT, json=chat(n=2, seed=7))
    first, second = response.json()["choices"]
    assert called(first) == [("say", ARGUMENTS)] and second["message"]["content"] == "No."
    assert (first["finish_reason"], second["finish_reason"]) == ("tool_calls", "stop")


async def test_what_the_model_cannot_do_is_refused_by_name(
    make_app: MakeApp, provider: EngineProvider, engine: ScriptedEngine, tmp_path: Path
) -> None:
    own = Tokenizer.from_checkpoint(save_byte_level(tmp_path, chat_template=CHATML))
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    asked = {"role": "user", "content": "x"}
    with_calls = [
        asked,
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "y"},
    ]
    async with http_client(
        make_app(EngineProvider(EngineService(Replicas([provider.client]), own), "ours"))
    ) as http:
        assert await refused(http) == (400, "tools")
        counted = await http.post("/tokenize", json=chat())
        assert (counted.status_code, counted.json()["error"]["param"]) == (400, "tools")
        assert await refused(http, tools=None, messages=with_calls) == (400, "messages[1].tool_calls")
    reads = CHATML + "{% if tools %}{{ tools | tojson }}{% endif %}"
    own = Tokenizer.from_checkpoint(save_byte_level(tmp_path / "reads", chat_template=reads))
    async with http_client(
        make_app(EngineProvider(EngineService(Replicas([provider.client]), own), "ours"))
    ) as http:
        response = await http.post(CHAT, json=chat())
        assert response.status_code == 400 and "tool_parser" in response.json()["error"]["message"]
    engine.script = says(own.encode("No."))
    named = EngineProvider(EngineService(Replicas([provider.client]), own, tool_parser="llama3_json"), "ours")
    async with http_client(make_app(named)) as http:
        assert (await http.post(CHAT, json=chat())).status_code == 200


async def test_tokens_are_counted_with_tools(
    engine_http: httpx.AsyncClient, engine: ScriptedEngine, tokenizer: Tokenizer
) -> None:
    engine.script = says(tokenizer.encode("No."))
    await ask(engine_http)
    counted = await engine_http.post("/tokenize", json=chat())
    assert counted.json()["count"] == len(engine.requests[-1].prompt_token_ids)
    wrong = await engine_http.post("/tokenize", json={"model": "ours", "prompt": "x", "tools": TOOLS})
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "tools")


async def test_required_calls_and_strict_arguments_get_a_grammar(
    engine_http: httpx.AsyncClient, engine: ScriptedEngine, tokenizer: Tokenizer
) -> None:
    engine.script = says(tokenizer.encode(SAY))
    for asked, param in (
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "say"}}}, "tool_choice"),
        ({"tools": [{**TOOLS[0], "function": {"name": "say", "strict": True}}]}, "tools"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
    ):
        assert called(await ask(engine_http, **asked)) == [("say", ARGUMENTS)]
        grammar = engine.requests[-1].grammar
        assert grammar is not None and (grammar.kind, grammar.param) == ("lark", param)
        assert '\\"name\\": \\"say\\"' in grammar.text
        assert ("clock" in grammar.text) == (
            asked.get("tool_choice") == "required" or param == "response_format"
        )
    await ask(engine_http)
    assert engine.requests[-1].grammar is None
    assert await refused(engine_http, guided_json='{"type"') == (400, "guided_json")
    assert await refused(engine_http, guided_regex="a+") == (400, "guided_regex")


async def test_arguments_under_a_grammar_are_streamed_at_once(
    engine_http: httpx.AsyncClient, engine: ScriptedEngine, tokenizer: Tokenizer
) -> None:
    engine.script = says(tokenizer.encode(SAY))
    choices = await stream(engine_http, tool_choice="required")
    assert added_up(choices) == (None, [("say", ARGUMENTS)])
    assert sum(bool(choice["delta"].get("tool_calls")) for choice in choices) > 5


async def test_older_fields_are_refused_with_their_successors(engine_http: httpx.AsyncClient) -> None:
    for field, value in (("functions", [{"name": "f"}]), ("function_call", "auto")):
        response = await engine_http.post(CHAT, json=chat(**{field: value}))
        error = response.json()["error"]
        assert (response.status_code, error["param"]) == (400, field)
        assert "tool" in error["message"]


async def test_mistrals_short_ids(
    make_app: MakeApp, provider: EngineProvider, engine: ScriptedEngine, tmp_path: Path
) -> None:
    template = (
        "{{ tools | tojson }}{% for m in messages %}{% for c in m.tool_calls or [] %}"
        "{% if c.id | length != 9 %}{{ raise_exception('nine') }}{% endif %}"
        "[TOOL_CALLS][{{ c.function | tojson }}]{{ c.id }}{% endfor %}"
        "{{ m.content }}{{ m.tool_call_id }}{% endfor %}"
    )
    own = Tokenizer.from_checkpoint(save_byte_level(tmp_path, chat_template=template))
    engine.script = says(own.encode('[TOOL_CALLS][{"name": "clock", "arguments": {}}]'))
    async with http_client(
        make_app(EngineProvider(EngineService(Replicas([provider.client]), own), "ours"))
    ) as http:
        message = (await ask(http))["message"]
        identifier = message["tool_calls"][0]["id"]
        assert identifier.startswith("call_")
        result = {"role": "tool", "tool_call_id": identifier, "content": "noon"}
        assert (await ask(http, messages=[*chat()["messages"], message, result]))[
            "finish_reason"
        ] == "tool_calls"
    prompt = own.decode(engine.requests[-1].prompt_token_ids)
    short = prompt[-9:]
    assert prompt.count(short) == 2 and json.dumps(identifier) not in prompt


async def test_kimis_ids_round_trip(
    make_app: MakeApp, provider: EngineProvider, engine: ScriptedEngine, tmp_path: Path
) -> None:
    """A prompt's id is all that tells the function's name: it has name and number, whatever clients saw."""
    template = (
        "{{ tools | tojson }}{% for m in messages %}{% for c in m.tool_calls or [] %}"
        "<|tool_call_begin|>{{ c.id }}<|tool_call_argument_begin|>{{ c.function.arguments | tojson }}"
        "<|tool_call_end|>{% endfor %}{{ m.content }}{{ m.tool_call_id }}{% endfor %}"
    )
    own = Tokenizer.from_checkpoint(save_byte_level(tmp_path, chat_template=template))
    said = (
        '<|tool_call_begin|>functions.say:0<|tool_call_argument_begin|>{"text": "5"}<|tool_call_end|>'
        "<|tool_call_begin|>functions.clock:1<|tool_call_argument_begin|>{}<|tool_call_end|>"
    )
    engine.script = says(own.encode(said))
    messages = chat()["messages"]
    async with http_client(
        make_app(EngineProvider(EngineService(Replicas([provider.client]), own), "ours"))
    ) as http:
        for _ in range(2):
            message = (await ask(http, messages=messages))["message"]
            results = [
                {"role": "tool", "tool_call_id": call["id"], "content": "done"}
                for call in message["tool_calls"]
            ]
            messages = [*messages, message, *results]
        await ask(http, messages=messages)
    prompt = own.decode(engine.requests[-1].prompt_token_ids)
    assert said in prompt and "call_" not in prompt.replace("<|tool_call_", "")
    for identifier in ("functions.say:0", "functions.clock:1", "functions.say:2", "functions.clock:3"):
        assert prompt.count(identifier) == 2


async def test_arguments_are_text_where_the_template_reads_text(
    make_app: MakeApp, provider: EngineProvider, engine: ScriptedEngine, tmp_path: Path
) -> None:
    template = (
        "{{ tools | tojson }}{% for m in messages %}{% for c in m.tool_calls or [] %}"
        "{{ '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>' + c.function.name "
        "+ '<｜tool▁sep｜>' + c.function.arguments + '<｜tool▁call▁end｜><｜tool▁calls▁end｜>' }}"
        "{% endfor %}{{ m.content }}{% endfor %}"
    )
    own = Tokenizer.from_checkpoint(save_byte_level(tmp_path, chat_template=template))
    said = (
        '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>say<｜tool▁sep｜>{"text": "雨"}'
        "<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
    )
    engine.script = says(own.encode(said))
    async with http_client(
        make_app(EngineProvider(EngineService(Replicas([provider.client]), own), "ours"))
    ) as http:
        message = (await ask(http))["message"]
        result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "heard"}
        await ask(http, messages=[*chat()["messages"], message, result])
    assert said in own.decode(engine.requests[-1].prompt_token_ids)


HARMONY_TEMPLATE = (
    "{% for t in tools or [] %}{{ t | tojson }}\n{% endfor %}{% for m in messages %}"
    "{% if m.tool_calls %}{% if m.thinking and m.content %}{{ raise_exception('both') }}{% endif %}"
    "{% if m.thinking %}<|start|>assistant<|channel|>analysis<|message|>{{ m.thinking }}<|end|>{% endif %}"
    "<|start|>assistant to=functions.{{ m.tool_calls[0].function.name }}<|channel|>commentary json<|message|>"
    "{{ m.tool_calls[0].function.arguments | tojson }}<|call|>"
    "{% else %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)
QWEN_TEMPLATE = (
    "{% for t in tools or [] %}{{ t | tojson }}\n{% endfor %}{% for m in messages %}<|im_start|>"
    "{{ m.role }}\n{{ m.content }}{% for c in m.tool_calls or [] %}<tool_call>\n"
    "<function={{ c.function.name }}>\n{% for k, v in c.function.arguments.items() %}"
    "<parameter={{ k }}>\n{{ v }}\n</parameter>\n{% endfor %}"
    "</function>\n</tool_call>{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}"
)
GEMMA_TEMPLATE = (
    "{% for t in tools or [] %}{{ t | tojson }}\n{% endfor %}{% for m in messages %}<|turn>{{ m.role }}\n"
    "{% for c in m.tool_calls or [] %}<|tool_call>call:{{ c.function.name + '{' }}"
    '{% for k, v in c.function.arguments.items() %}{{ k }}:<|"|>{{ v }}<|"|>{% endfor %}}<tool_call|>'
    "{% endfor %}{{ m.content }}<turn|>\n{% endfor %}{% if add_generation_prompt %}<|turn>model\n"
    "{% if not enable_thinking %}<|channel>thought\n<channel|>{% endif %}{% endif %}"
)
SPOKEN = {
    "harmony": (
        HARMONY_TEMPLATE,
        ("<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>"),
        "<|channel|>analysis<|message|>I say it.<|end|><|start|>assistant<|channel|>commentary<|message|>"
        "Well,<|end|><|start|>assistant<|channel|>commentary to=functions.say <|constrain|>json<|message|>"
        '{"text": "5"}',
    ),
    "qwen3_coder": (
        QWEN_TEMPLATE,
        ("<tool_call>", "</tool_call>", "<think>", "</think>"),
        "I say it.\n</think>\n\nWell,\n<tool_call>\n<function=say>\n<parameter=text>\n5\n</parameter>\n"
        "</function>\n</tool_call>",
    ),
    "gemma4": (
        GEMMA_TEMPLATE,
        ("<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", '<|"|>', "<|turn>"),
        '<|channel>thought\nI say it.\n<channel|>Well,<|tool_call>call:say{text:<|"|>5<|"|>}<tool_call|>',
    ),
}


@pytest.mark.parametrize("is_special", [True, False])
@pytest.mark.parametrize("name", SPOKEN)
async def test_a_turn_in_other_syntaxes_through_the_server(
    make_app: MakeApp,
    provider: EngineProvider,
    engine: ScriptedEngine,
    tmp_path: Path,
    name: str,
    is_special: bool,
) -> None:
    template, tokens, said = SPOKEN[name]
    added = [AddedToken(token, special=is_special) for token in tokens]
    own = Tokenizer.from_checkpoint(save_byte_level(tmp_path, added=added, chat_template=template))
    effort = {"reasoning_effort": "high"}
    async with http_client(
        make_app(EngineProvider(EngineService(Replicas([provider.client]), own), "ours"))
    ) as http:
        engine.script = says(own.encode(said))
        choice = await ask(http, **effort)
        assert called(choice) == [("say", '{"text": "5"}')] and choice["finish_reason"] == "tool_calls"
        message = choice["message"]
        assert (message["reasoning_content"], message["content"]) == ("I say it.", "Well,")
        streamed = await stream(http, **effort)
        assert added_up(streamed) == ("Well,", called(choice))
        shown = [c["delta"].get("reasoning_content") or "" for c in streamed]
        assert "".join(shown) == "I say it."
        result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "heard"}
        earlier = {key: message[key] for key in ("role", "content", "tool_calls", "reasoning_content")}
        assert (await ask(http, messages=[*chat()["messages"], earlier, result], **effort))["message"]
        prompt = own.decode(engine.requests[-1].prompt_token_ids, skip_special_tokens=False)
        assert "heard" in prompt and "say" in prompt
        engine.script = says(own.encode(said.replace("say", "rm")))
        choice = await ask(http, **effort)
        assert "tool_calls" not in choice["message"] and "rm" in choice["message"]["content"]


@pytest.mark.parametrize("syntax", ["llama3_json", "harmony", "hermes"])
def test_each_call_is_before_its_result_where_a_template_renders_one(syntax: str) -> None:
    function = {"name": "say", "arguments": {}}
    calls = [{"id": f"c{i}", "type": "function", "function": dict(function)} for i in range(3)]
    results = [{"role": "tool", "tool_call_id": f"c{i}", "content": str(i)} for i in (1, 0)]  # one is missing
    user = {"role": "user", "content": "x"}
    messages = [{"role": "assistant", "content": "I look.", "tool_calls": calls}, *results, user]
    adapt_calls(messages, SYNTAXES[syntax], ToolUse())
    shown = [(m["role"], m["content"], [call["id"] for call in m.get("tool_calls", ())]) for m in messages]
    if syntax == "hermes":
        assert [role for role, _, _ in shown] == ["assistant", "tool", "tool", "user"]
        return
    assert shown == [
        ("assistant", "I look.", ["c0"]),
        ("tool", "0", []),
        ("assistant", "", ["c1"]),
        ("tool", "1", []),
        ("assistant", "", ["c2"]),
        ("user", "x", []),
    ]
