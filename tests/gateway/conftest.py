from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import httpx
import pytest
from starlette.routing import Router

from backend.server.engine_client import EngineClient
from backend.tokenizer import Tokenizer
from gateway.exchange.model_table import ModelTable, ServedModel
from gateway.providers.base import Provider
from gateway.providers.engine.provider import EngineProvider
from gateway.providers.engine.replicas import Replicas
from gateway.providers.engine.service import EngineService
from gateway.providers.fake import FakeProvider
from gateway.settings import Settings
from gateway.web.deadlines import TimeLimits
from gateway.wiring.app import build_app
from policies.document import EngineModel, ModelEntry, Policies, Route
from policies.upstream import UpstreamModel
from tests.backend.tokenizer.checkpoints import save_byte_level
from tests.gateway.scripted_engine import ScriptedEngine, says

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
REPLY = "The water turns the wheel."
MakeApp = Callable[..., Router]


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    return Tokenizer.from_checkpoint(save_byte_level(folder, chat_template=CHATML))


@pytest.fixture
def fake() -> FakeProvider:
    return FakeProvider()


@pytest.fixture
def make_app(fake: FakeProvider) -> MakeApp:
    """Builds an app whose models `ours` and `theirs` use the given provider, or `fake`."""

    def make(provider: Provider | None = None, **settings: object) -> Router:
        entries = {
            "ours": ModelEntry(engine=EngineModel(checkpoint="/none")),
            "theirs": ModelEntry(upstream=UpstreamModel(base_url="http://127.0.0.1:1/v1")),
        }
        policies = Policies(models=entries, routes={"auto": Route(model="ours")}, version="v1")
        given = dict.fromkeys(entries, provider or fake)
        return build_app(Settings(**settings), policies, given)  # type: ignore[arg-type]

    return make


def http_client(app: Router, **headers: str) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app, raise_app_exceptions=True)
    return httpx.AsyncClient(transport=transport, base_url="http://gateway", headers=headers)


@pytest.fixture
async def http(make_app: MakeApp) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the fake models."""
    async with http_client(make_app()) as client:
        yield client


@pytest.fixture
async def engine(tmp_path: Path, tokenizer: Tokenizer) -> AsyncIterator[ScriptedEngine]:
    """An engine that always answers REPLY, until a test gives it another script."""
    script = says(tokenizer.encode(REPLY))
    engine = ScriptedEngine(tmp_path / "engine.sock", script, vocab_size=tokenizer.vocab_size)
    await engine.start()
    yield engine
    await engine.die()


@pytest.fixture
async def provider(engine: ScriptedEngine, tokenizer: Tokenizer) -> AsyncIterator[EngineProvider]:
    """The engine provider, connected to `engine`."""
    client = EngineClient(engine.path)
    await client.start()
    await client.wait_ready(5)
    yield EngineProvider(EngineService(Replicas([client]), tokenizer), "ours")
    await client.close()


@pytest.fixture
def engine_models(provider: EngineProvider) -> ModelTable:
    """One model of our own engine."""
    model = ServedModel("ours", "engine", provider, TimeLimits(10, 10, 20), engine=provider)
    return ModelTable([model], {})


@pytest.fixture
async def engine_http(make_app: MakeApp, provider: EngineProvider) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the scripted engine's model."""
    async with http_client(make_app(provider)) as client:
        yield client
