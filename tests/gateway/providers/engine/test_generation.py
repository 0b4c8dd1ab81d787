"""Answers with accepted drafts are equal to plain ones, from HTTP to a real engine over its socket."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import httpx
import msgspec
import pytest
import torch

from backend.config import SpeculativeConfig
from backend.engine.engine import Engine
from backend.engine.runner import ModelRunner
from backend.server.engine_client import EngineClient
from backend.types import Request, StepOutput
from gateway.answer import Generated, close_answer
from gateway.providers.base import ModelCall
from gateway.providers.engine.provider import EngineProvider
from gateway.providers.engine.replicas import Replicas
from gateway.providers.engine.service import EngineService
from gateway.requests.types import ChatRequest
from tests.backend.speculative.drafters import GuessingDrafter, TreeDrafter
from tests.backend.structured.pico import Pico
from tests.gateway.conftest import MakeApp, http_client
from tests.gateway.connection import events
from tests.gateway.scripted_engine import ScriptedEngine

END_OF_TEXT = 2
ASKED: dict[str, Any] = {
    "model": "ours",
    "messages": [{"role": "user", "content": "Sort these words in alphabetical order: pear, stone, apple."}],
    "reasoning_effort": "none",
    "max_tokens": 60,
    "temperature": 0.8,
    "seed": 3,
    "logprobs": True,
}
ENDLESS: dict[str, Any] = {"logit_bias": {str(END_OF_TEXT): -100}}
SCHEMA = {
    "type": "object",
    "properties": {
        "words": {"type": "string", "maxLength": 32},
        "count": {"type": "integer", "minimum": 0, "maximum": 99},
    },
    "required": ["words", "count"],
    "additionalProperties": False,
}
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": SCHEMA, "strict": True}}
    for name in ("sort", "count")
]
CONSTRAINED: dict[str, dict[str, Any]] = {
    "required": {"tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False},
    "named": {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "count"}}},
    "strict schema": {
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "words", "schema": SCHEMA, "strict": True},
        }
    },
}
SKILL, LITTLE_SKILL = 0.75, 0.4
DRAFTERS = {"chains": GuessingDrafter, "trees": TreeDrafter}


@pytest.fixture(scope="module")
def pico() -> Iterator[Pico]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    found = Pico()
    yield found
    found.compiler.close()
    torch.set_num_threads(threads)


class Live:
    """Runs each request on a new engine, which a test can inspect afterwards."""

    def __init__(self, pico: Pico) -> None:
        self._pico = pico
        self.new_drafter: Callable[[], GuessingDrafter] | None = None
        self.drafter: GuessingDrafter | None = None
        self.engine = self._new_engine()
        self.prompt: list[int] = []
        self.steps: list[list[int]] = []  # tokens of each step

    async def __call__(self, request: Request) -> AsyncIterator[StepOutput]:
        engine = self.engine = self._new_engine()
        self.prompt, self.steps = request.prompt_token_ids, []
        engine.add(request)
        try:
            while engine.has_work:
                for output in engine.step():
                    self.steps.append(output.token_ids)
                    yield output
        finally:
            engine.abort(request.request_id)

    def _new_engine(self) -> Engine:
        self.drafter = self.new_drafter() if self.new_drafter is not None else None
        drafters = [self.drafter] if self.drafter is not None else []
        name = drafters[0].name if drafters else "none"
        speculative = SpeculativeConfig(drafter=name, max_tokens=5, adaptive=False)
        return self._pico.engine(
            dtype="float32", num_pages=32, max_running=2, drafters=drafters, speculative=speculative
        )


@pytest.fixture
def live(engine: ScriptedEngine, pico: Pico) -> Live:
    found = Live(pico)
    engine.script = found
    return found


@pytest.fixture
async def http(make_app: MakeApp, engine: ScriptedEngine, pico: Pico) -> AsyncIterator[httpx.AsyncClient]:
    client = EngineClient(engine.path)
    await client.start()
    await client.wait_ready(5)
    service = EngineService(Replicas([client]), pico.tokenizer)
    async with http_client(make_app(EngineProvider(service, "ours"))) as found:
        yield found
    await client.close()


async def answer(http: httpx.AsyncClient, *, is_streamed: bool = False, **more: Any) -> dict[str, Any]:  # noqa: ANN401
    """The whole answer, as a client collects it."""
    body = ASKED | more
    if is_streamed:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    response = await http.post("/v1/chat/completions", json=body)
    assert response.status_code == 200, response.text
    if is_streamed:
        *chunks, end = events(response.content)
        assert end == "[DONE]"
        usage = chunks[-1]["usage"]
        choices = [chunk["choices"][0] for chunk in chunks if chunk["choices"]]
        parts = [choice["delta"] for choice in choices]
    else:
        found = response.json()
        usage = found["usage"]
        choices = found["choices"]
        parts = [choices[0]["message"]]
    records = [r for choice in choices for r in (choice["logprobs"] or {}).get("content", ())]
    calls = [call["function"] for part in parts for call in part.get("tool_calls", ())]
    return {
        "text": "".join(part.get("content") or "" for part in parts),
        "names": [call["name"] for call in calls if "name" in call],
        "arguments": "".join(call["arguments"] for call in calls),
        "tokens": [record["token"] for record in records],
        "logprobs": [record["logprob"] for record in records],
        "reason": choices[-1]["finish_reason"],
        "usage": {name: count for name, count in usage.items() if isinstance(count, int)},
    }


async def idle(live: Live) -> Engine:
    """The engine, once it has no request any more."""
    async with asyncio.timeout(10):
        while live.engine.has_work:
            await asyncio.sleep(0)
    return live.engine


def stops_within_steps(pico: Pico, steps: list[list[int]]) -> list[str]:
    """Strings whose first occurrence ends within a step's tokens; some begin in the step before."""
    ids = [token for step in steps for token in step]
    texts = [pico.tokenizer.decode(ids[:n]) for n in range(len(ids) + 1)]
    whole, found = texts[-1], []
    first = 0
    for step in steps:
        for begin in (texts[first], texts[max(0, first - 2)]) if len(step) > 2 else ():
            stop = whole[len(begin) : len(texts[first + len(step) - 2])]
            end = whole.find(stop) + len(stop)
            if stop and "\ufffd" not in stop and len(texts[first]) < end < len(texts[first + len(step) - 1]):
                found.append(stop)
        first += len(step)
    return found


def knowing(live: Live, pico: Pico, kind: str, skill: float) -> Callable[[], GuessingDrafter]:
    """A factory of drafters that know the last answer."""
    known = [*live.prompt, *(token for step in live.steps for token in step)]
    return lambda: DRAFTERS[kind](next_of(known, pico.vocab_size), pico.vocab_size, skill)


def next_of(known: list[int], vocab_size: int) -> Callable[[list[int]], int]:
    """The continuation according to `known`; arbitrary after any other text."""
    rng = random.Random(0)

    def next_token(tokens: list[int]) -> int:
        is_known = len(tokens) < len(known) and known[: len(tokens)] == tokens
        return known[len(tokens)] if is_known else rng.randrange(vocab_size)

    return next_token


def assert_only_known(engine: Engine, plain: Engine) -> None:
    """Pages are free, and the prefix tree has only what the plain engine computed."""
    assert engine.kv.free_pages == engine.kv.num_pages and not engine.speculator.has_work
    engine.kv.check_invariants([])
    runners = (engine._runner, plain._runner)
    nodes, wanted = engine.kv._tree._nodes, plain.kv._tree._nodes
    assert nodes and nodes.keys() <= wanted.keys()
    for digest, node in nodes.items():
        mine, theirs = (
            [layer[page] for layer in runner._storage.layers]
            for runner, page in zip(runners, (node.page, wanted[digest].page), strict=True)
            if isinstance(runner, ModelRunner)
        )
        for layer, other in zip(mine, theirs, strict=True):
            assert torch.allclose(layer, other, atol=1e-4)


@pytest.mark.parametrize("kind", DRAFTERS)
async def test_the_text_ends_where_the_plain_one_ends(
    http: httpx.AsyncClient, live: Live, pico: Pico, kind: str
) -> None:
    whole = await answer(http, **ENDLESS)
    plain_engine = live.engine
    live.new_drafter = drafted = knowing(live, pico, kind, SKILL)
    assert (await answer(http, **ENDLESS))["text"] == whole["text"]
    stops = stops_within_steps(pico, live.steps)
    assert len(stops) >= 4
    for number, stop in enumerate(stops[:6]):
        live.new_drafter = None
        plain = await answer(http, stop=stop, **ENDLESS)
        assert plain["reason"] == "stop" and plain["text"] == whole["text"].partition(stop)[0]
        live.new_drafter = drafted
        found = await answer(http, stop=stop, is_streamed=number % 2 == 0, **ENDLESS)
        assert found.pop("logprobs") == pytest.approx(plain.pop("logprobs"), abs=1e-4)
        assert found == plain
        ends = [sum(map(len, live.steps[:n])) for n in range(1, len(live.steps) + 1)]
        assert found["usage"]["completion_tokens"] not in ends, "the stop string must end within a step"
        assert_only_known(await idle(live), plain_engine)


@pytest.mark.parametrize("kind", DRAFTERS)
@pytest.mark.parametrize("case", CONSTRAINED)
async def test_calls_and_strict_schemas_are_the_same(
    http: httpx.AsyncClient, live: Live, pico: Pico, case: str, kind: str
) -> None:
    plain = await answer(http, max_tokens=150, **CONSTRAINED[case])
    assert SCHEMA["required"] == list(json.loads(plain["arguments"] or plain["text"]))
    assert (plain["reason"], len(plain["names"])) == (
        ("stop", 0) if case == "strict schema" else ("tool_calls", 1)
    )
    live.new_drafter = knowing(live, pico, kind, LITTLE_SKILL)
    logprobs = plain.pop("logprobs")
    for is_streamed in (False, True):
        found = await answer(http, is_streamed=is_streamed, max_tokens=150, **CONSTRAINED[case])
        assert found.pop("logprobs") == pytest.approx(logprobs, abs=1e-4)
        assert found == plain
        assert live.drafter is not None
        drafted, accepted = map(sum, zip(*live.drafter.observed, strict=True))
        assert 0 < accepted < drafted
        await idle(live)


async def test_machine_seconds_of_all_choices_are_counted(engine: ScriptedEngine, pico: Pico) -> None:
    """Also of one that a stop string ends, and of what its client leaves."""

    async def script(request: Request) -> AsyncIterator[StepOutput]:
        yield StepOutput(request_id="", machine_s=0.5)
        for second in (1.0, 2.0, 4.0):
            yield StepOutput(request_id="", token_ids=[300], machine_s=second)
            await asyncio.sleep(0)
        if request.params.max_tokens == 3:
            yield StepOutput(request_id="", token_ids=[301], machine_s=8.0, finish_reason="length")
        await asyncio.Event().wait()

    engine.script = script
    client = EngineClient(engine.path)
    await client.start()
    await client.wait_ready(5)
    provider = EngineProvider(EngineService(Replicas([client]), pico.tokenizer), "ours")

    async def ask(max_tokens: int, num_deltas: int, **more: Any) -> float:  # noqa: ANN401
        body = {"model": "ours", "messages": ASKED["messages"], "max_tokens": max_tokens, **more}
        request = msgspec.convert(body, ChatRequest)
        answer = await provider.chat(ModelCall(request, body, "id"))
        assert isinstance(answer, Generated)
        for _ in range(num_deltas):
            await anext(answer.deltas, None)
        await close_answer(answer)
        return answer.usage.machine_seconds

    assert await ask(3, 99) == 8.0
    assert await ask(3, 99, n=3) == 24.0
    assert await ask(3, 1) >= 1.0
    assert 1.0 <= await ask(9, 99, stop=pico.tokenizer.decode([300])) <= 4.0
    await client.close()


async def test_machine_seconds_of_an_engine_that_died_stay(engine: ScriptedEngine, pico: Pico) -> None:
    has_begun = asyncio.Event()

    async def script(request: Request) -> AsyncIterator[StepOutput]:
        if request.resume_token_ids:
            yield StepOutput(request_id="", token_ids=[301], machine_s=3.0, finish_reason="stop")
        else:
            yield StepOutput(request_id="", token_ids=[300], machine_s=2.0)
            has_begun.set()
            await asyncio.Event().wait()

    engine.script = script
    client = EngineClient(engine.path)
    await client.start()
    await client.wait_ready(5)
    provider = EngineProvider(EngineService(Replicas([client]), pico.tokenizer), "ours")
    body = {"model": "ours", "messages": ASKED["messages"], "max_tokens": 9}
    answer = await provider.chat(ModelCall(msgspec.convert(body, ChatRequest), body, "id"))
    assert isinstance(answer, Generated)
    await anext(answer.deltas)
    await has_begun.wait()
    await engine.die()
    await engine.start()
    assert [delta async for delta in answer.deltas]
    assert answer.usage.machine_seconds == 5.0
    await client.close()


class Dying:
    """Lets an engine say `num_outputs` times something, and waits to be killed; what is resumed ends well."""

    def __init__(self, live: Live, num_outputs: int) -> None:
        self._live = live
        self._num_left = num_outputs
        self.may_die = asyncio.Event()

    async def __call__(self, request: Request) -> AsyncIterator[StepOutput]:
        async for output in self._live(request):
            if not self.may_die.is_set() and not self._num_left:
                self.may_die.set()
                await asyncio.get_running_loop().create_future()
            self._num_left -= 1
            yield output


@pytest.mark.parametrize("is_streamed", [True, False])
@pytest.mark.parametrize("kind", ["free", "stop", "plain tools", *CONSTRAINED])
async def test_killed_after_any_output_the_answer_is_the_same(
    http: httpx.AsyncClient, live: Live, engine: ScriptedEngine, pico: Pico, kind: str, is_streamed: bool
) -> None:
    free = ENDLESS | {"max_tokens": 30}
    bodies = {"free": free, "stop": {"stop": [" ap"]}, "plain tools": {"tools": TOOLS}} | CONSTRAINED
    body = bodies[kind]
    whole = await answer(http, is_streamed=is_streamed, **body)
    records = whole.pop("logprobs")
    for cut in range(0, len(live.steps), 1 if is_streamed else 7):
        dying = engine.script = Dying(live, cut)
        asking = asyncio.create_task(answer(http, is_streamed=is_streamed, **body))
        async with asyncio.timeout(20):
            await dying.may_die.wait()
            await engine.die()
            await engine.start()
            again = await asking
        assert again.pop("logprobs") == pytest.approx(records, abs=1e-4)
        assert again == whole, f"cut after {cut} outputs"
        engine.script = live
