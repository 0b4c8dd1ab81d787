"""Shadow requests are measured and rate-limited, and the client's request never notices them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from gateway.answer import Delta, Generated, Usage
from gateway.auth import KeyRing
from gateway.errors import Unavailable
from gateway.exchange.exchange import Endpoint, Exchange
from gateway.exchange.model_table import ModelTable, ServedModel
from gateway.exchange.prompt_embedding import Embed, no_meaning
from gateway.pipeline.pipeline import Pipeline, PipelineParts
from gateway.pipeline.stages.choose_model import ChooseModel
from gateway.pipeline.stages.mirror import SHORT_CHARS, Mirror
from gateway.pipeline.stages.read_request import ReadRequest
from gateway.providers.fake import FakeProvider, TextCall
from gateway.routing.decision_log import DecisionLog, LogFile
from gateway.routing.shadows import MAX_CONCURRENT
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.request import Telemetry
from gateway.telemetry.setup import OFF, Tracing
from gateway.web.deadlines import TimeLimits
from policies.document import EngineModel, ModelEntry, Policies
from policies.routes import Route, RoutingSection, Rule, Shadow
from router.log import Label
from tests.gateway.pipeline.exchanges import exchange_of, exchange_with, response_cache
from tests.gateway.processes.test_managed_process import until


class Setup:
    """Two models; requests to `m` are mirrored to `other`."""

    def __init__(self, shadow: Shadow, provider: FakeProvider | None = None) -> None:
        self.main, self.other = FakeProvider(), provider or FakeProvider()
        limits = TimeLimits(None, None, 0.2)
        models = [
            ServedModel("m", "engine", self.main, limits),
            ServedModel("other", "engine", self.other, limits),
        ]
        table = ModelTable(models, {})
        self.metrics = Metrics(["m", "other"])
        self.mirror = Mirror(table, Telemetry(OFF, self.metrics))
        rules = RoutingSection(rules=[Rule(shadow=shadow)])
        self.choose = ChooseModel(table, Policies(routing=rules))

    async def ask(self, endpoint: Endpoint = "completions") -> Exchange:
        exchange = exchange_of(endpoint)
        await ReadRequest().enter(exchange)
        await self.choose.enter(exchange)
        await self.mirror.enter(exchange)
        return exchange

    def counted(self, status: str) -> bool:
        text = f'penstock_requests_total{{endpoint="shadow",model="other",status="{status}"}} 1.0'
        return text in self.metrics.render().decode()


@pytest.mark.parametrize("endpoint", ["completions", "embeddings"])
async def test_a_copy_is_answered_and_measured(endpoint: Endpoint) -> None:
    setup = Setup(Shadow(model="other", share=1.0))
    exchange = await setup.ask(endpoint)
    await until(lambda: setup.counted("2xx"))
    (asked,) = setup.other.asked
    assert asked.body is exchange.body and setup.main.asked == []
    assert exchange.answer is None and exchange.model is not None and exchange.model.name == "m"
    tokens = 'penstock_tokens_total{endpoint="shadow",kind="input",model="other"} 7.0'
    assert tokens in setup.metrics.render().decode()


async def test_its_span_has_a_link_to_the_request() -> None:
    exporter, setup = InMemorySpanExporter(), Setup(Shadow(model="other", share=1.0))
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    telemetry = Telemetry(Tracing(provider.get_tracer("test"), provider), setup.metrics)
    setup.mirror._telemetry = telemetry
    exchange = exchange_of("completions")
    asked = telemetry.begin("completions", "POST", "/v1/completions", [])
    exchange.asked = msgspec.structs.replace(exchange.asked, telemetry=asked)
    await ReadRequest().enter(exchange)
    await setup.choose.enter(exchange)
    await setup.mirror.enter(exchange)
    await until(lambda: setup.counted("2xx"))
    [shadow] = [span for span in exporter.get_finished_spans() if span.name == "POST"]
    assert format(shadow.links[0].context.span_id, "016x") == asked.traceparent.split("-")[2]


async def test_its_failure_is_only_counted() -> None:
    async def fails(call: TextCall) -> AsyncIterator[Delta]:
        raise Unavailable("away")
        yield

    setup = Setup(Shadow(model="other", share=1.0), FakeProvider(fails))
    exchange = await setup.ask()
    await until(lambda: setup.counted("5xx"))
    assert exchange.error is None


async def test_a_slow_one_is_given_up_and_closed() -> None:
    async def waits(call: TextCall) -> AsyncIterator[Delta]:
        yield Delta(0, "a")
        await asyncio.Event().wait()

    setup = Setup(Shadow(model="other", share=1.0), FakeProvider(waits))
    await setup.ask()
    await until(lambda: setup.counted("5xx"))
    assert setup.other.num_ended == 1


async def test_the_rate_is_bounded() -> None:
    setup = Setup(Shadow(model="other", share=1.0, max_per_minute=3))
    for _ in range(9):
        await setup.ask()
    await until(lambda: setup.other.num_ended == 3)
    assert len(setup.other.asked) == 3


async def test_so_is_their_number_at_a_time() -> None:
    async def waits(call: TextCall) -> AsyncIterator[Delta]:
        await asyncio.Event().wait()
        yield Delta(0)

    setup = Setup(Shadow(model="other", share=1.0, max_per_minute=1000), FakeProvider(waits))
    for _ in range(MAX_CONCURRENT + 9):
        await setup.ask()
    await until(lambda: len(setup.other.asked) == MAX_CONCURRENT)


async def test_a_share_of_the_requests_is_mirrored() -> None:
    setup = Setup(Shadow(model="other", share=1e-9))
    for _ in range(20):
        await setup.ask()
    assert setup.other.asked == []


async def test_an_answer_from_the_cache_is_not_mirrored() -> None:
    setup = Setup(Shadow(model="other", share=1.0))
    exchange = exchange_of("completions")
    await ReadRequest().enter(exchange)
    await setup.choose.enter(exchange)

    async def stored() -> AsyncIterator[Delta]:
        yield Delta(0)

    exchange.answer = Generated(stored(), Usage())
    await setup.mirror.enter(exchange)
    assert setup.other.asked == []


class Labelled:
    """A pipeline whose requests to `small` are mirrored to `large`, whose answers are right."""

    def __init__(self, path: Path, said: str, right: str, embed: Embed = no_meaning) -> None:
        async def small(call: TextCall) -> AsyncIterator[Delta]:
            for piece in said.split(" "):
                yield Delta(0, piece + " ")
            yield Delta(0, finish_reason="stop")

        async def large(call: TextCall) -> AsyncIterator[Delta]:
            yield Delta(0, right, finish_reason="stop")

        limits = TimeLimits(None, None, 5)
        scripts = {"small": small, "large": large}
        table = ModelTable(
            [ServedModel(name, "engine", FakeProvider(script), limits) for name, script in scripts.items()],
            {},
        )
        rules = RoutingSection(rules=[Rule(shadow=Shadow(model="large", share=1.0, is_right=True))])
        models = {name: ModelEntry(engine=EngineModel(checkpoint="/m")) for name in scripts}
        policies = Policies(models=models, routing=rules, routes={"auto": Route(model="small")})
        self.file, self.path = LogFile(str(path)), path
        log = DecisionLog(self.file, table, policies)
        self.metrics = Metrics(["small", "large"])
        parts = PipelineParts(Telemetry(OFF, self.metrics), log, embed)
        self.pipeline = Pipeline(KeyRing([]), table, response_cache(), policies, parts)

    async def ask(self, model: str = "auto", *, reads_all: bool = True) -> list[Label]:
        exchange = exchange_with({"model": model, "messages": [{"role": "user", "content": "hi"}]})
        await self.pipeline.run(exchange)
        assert isinstance(exchange.answer, Generated)
        async for _ in exchange.answer.deltas:
            if not reads_all:
                break
        self.pipeline.settle(exchange)
        await until(lambda: 'penstock_requests_total{endpoint="shadow",model="large"' in self.text())
        self.file.close()
        lines = self.path.read_bytes().splitlines()
        return [msgspec.json.decode(line, type=Label) for line in lines if line.startswith(b'{"label_of"')]

    def text(self) -> str:
        return self.metrics.render().decode()


@pytest.mark.parametrize(("said", "score"), [("It is Paris.", 1.0), ("It is Rome.", 0.0)])
async def test_answers_are_labelled_by_a_shadow_that_is_right(
    tmp_path: Path, said: str, score: float
) -> None:
    found = await Labelled(tmp_path / "log", said, "Paris").ask()
    assert found == [Label(label_of="id", scores={"small": score, "large": 1.0}, kind="shadow")]


@pytest.mark.parametrize(("num_chars", "score"), [(SHORT_CHARS, 0.0), (SHORT_CHARS + 1, 0.5714)])
async def test_long_answers_are_compared_by_meaning(tmp_path: Path, num_chars: int, score: float) -> None:
    """The right answer's length decides; the words have nothing in common, the vectors a cosine of 0.8."""
    right = "one two three four five six seven eight ".ljust(num_chars, "x")
    vectors = {"Erste zweite dritte vierte ": (1.0, 0.0), right: (0.8, 0.6)}
    embedded: list[str] = []

    async def embed(text: str) -> NDArray[np.float32]:
        embedded.append(text)
        return np.array(vectors[text], np.float32)

    (label,) = await Labelled(tmp_path / "log", "Erste zweite dritte vierte", right, embed).ask()
    assert label.scores == {"small": score, "large": 1.0}
    assert embedded == ([] if num_chars == SHORT_CHARS else [*vectors])


async def test_an_answer_that_was_not_read_to_the_end_has_no_label(tmp_path: Path) -> None:
    assert await Labelled(tmp_path / "log", "It is Paris.", "Paris").ask(reads_all=False) == []


async def test_a_model_is_not_compared_with_itself(tmp_path: Path) -> None:
    assert await Labelled(tmp_path / "log", "It is Paris.", "Paris").ask("large") == []
