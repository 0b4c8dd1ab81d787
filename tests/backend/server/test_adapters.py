"""Adapters through the real process: loaded and unloaded by one gateway, known to all, also under load."""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from backend.engine.engine import Engine
from backend.errors import AdapterError, AdapterExists, AdapterGone, CheckpointError
from backend.lora.adapter_weights import Adapter, read_adapter
from backend.lora.store import AdapterStore
from backend.models.loaded import load_model
from backend.server.engine_client import EngineClient
from backend.server.engine_messages import Hello
from backend.server.engine_process import build_engine
from backend.server.engine_server import EngineServer
from tests.backend.lora.making import Recipe, ask, checkpoint, write_adapter
from tests.backend.models.driver import random_tokens
from tests.backend.server.listening import listen

PROMPT = random_tokens(20, seed=1)


async def text(client: EngineClient, adapter: str, max_tokens: int = 24) -> list[int]:
    (stream,) = client.submit([ask("r", PROMPT, adapter, max_tokens)])
    return [token async for output in stream for token in output.token_ids]


async def connect(path: Path) -> EngineClient:
    client = EngineClient(path)
    await client.start()
    await client.wait_ready(20)
    return client


@asynccontextmanager
async def serving(
    engine: Engine, hello: Hello, path: Path
) -> AsyncIterator[tuple[EngineClient, EngineClient]]:
    """Two gateways' clients of an engine in a thread."""
    server = EngineServer(engine, hello, listen(path))
    thread = asyncio.create_task(asyncio.to_thread(server.run))
    one, two = await connect(path), await connect(path)
    try:
        yield one, two
    finally:
        await one.close()
        await two.close()
        server.stop()
        await thread
        engine.close()


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("backend.server.engine_process.open_compiler", lambda *_: None)


@pytest.mark.usefixtures("no_compiler")
async def test_load_reload_and_unload_under_load(tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    config = checkpoint("qwen3", tmp_path / "base")
    model = load_model(config)
    for number in (1, 2):
        write_adapter(tmp_path / f"a{number}", model, Recipe(seed=number))
    config = type(config)(
        model="t", checkpoint=config.checkpoint, num_pages=128, adapters={"first": str(tmp_path / "a1")}
    )
    engine, hello = build_engine(config)
    async with serving(engine, hello, tmp_path / "s.sock") as (one, two):
        assert list(one.adapters) == ["first"]
        first = one.adapters["first"].digest
        loaded = await one.load_adapter("second", str(tmp_path / "a2"))
        assert loaded.digest != first and loaded.rank == 4
        texts = await asyncio.gather(*(text(one, digest) for digest in ("", first, loaded.digest)))
        assert len({tuple(tokens) for tokens in texts}) == 3
        assert await text(two, loaded.digest) == texts[2]
        assert set(two.adapters) == {"first", "second"}, "every gateway learns of it"
        (running,) = one.submit([ask("r", PROMPT, first, 200)])
        begun = await anext(running)  # admitted: nothing orders what two gateways send
        again = await two.load_adapter("first", str(tmp_path / "a2"))
        assert again.digest == loaded.digest
        rest = [token async for output in running for token in output.token_ids]
        assert len(begun.token_ids) + len(rest) == 200, "what runs keeps its weights"
        with pytest.raises(AdapterGone):
            await text(one, first)
        with pytest.raises(AdapterExists, match="'second'"):
            await one.load_adapter("second", str(tmp_path / "a1"), replaces=False)
        await two.unload_adapter("second")
        with pytest.raises(AdapterError, match="no adapter is called 'second'"):
            await one.unload_adapter("second")
        with pytest.raises(AdapterError, match="does not exist"):
            await one.load_adapter("third", str(tmp_path / "nowhere"))
        third = await one.load_adapter("third", "/of/another/machine", digest=loaded.digest)
        assert (third.digest, third.path) == (loaded.digest, str(tmp_path / "a2"))
        with pytest.raises(AdapterError, match="a1 holds other weights"):
            await one.load_adapter("fourth", str(tmp_path / "a1"), digest="0" * 64)
        assert set(one.adapters) == {"first", "third"}


@asynccontextmanager
async def two_gateways(folder: Path) -> AsyncIterator[tuple[AdapterStore, EngineClient, EngineClient]]:
    """An engine without host memory for its one adapter "a", whose files are gone, and two clients."""
    (folder / "base").mkdir()
    config = checkpoint("qwen3", folder / "base")
    adapter = write_adapter(folder / "a", load_model(config), Recipe(seed=1))
    engine, hello = build_engine(
        msgspec.structs.replace(config, num_pages=128, adapters={"a": str(adapter)}, adapter_host_bytes=1)
    )
    assert engine.adapters is not None
    shutil.rmtree(adapter)
    async with serving(engine, hello, folder / "s.sock") as (one, two):
        yield engine.adapters, one, two


async def heard(client: EngineClient) -> None:
    """Return when the engine has handled all that the client sent."""
    with pytest.raises(AdapterError, match="no adapter is called 'nobody'"):
        await client.unload_adapter("nobody")


@pytest.mark.usefixtures("no_compiler")
async def test_everybody_learns_that_an_adapter_is_gone(tmp_path: Path) -> None:
    async with two_gateways(tmp_path) as (_, one, two):
        digest = one.adapters["a"].digest
        (stream,) = one.submit([ask("r", PROMPT, digest)])
        (output,) = [output async for output in stream]
        assert (output.finish_reason, output.error_param) == ("error", "model")
        assert "gone or changed" in output.error and "load it again" in output.error
        assert not one.adapters and one.adapter_names == {"a"}, "before those that asked for it learn"
        with pytest.raises(AdapterGone):
            await text(one, digest)
        await heard(two)
        assert not two.adapters and two.adapter_names == {"a"}
        with pytest.raises(AdapterError, match="no adapter is called 'a'"):
            await one.unload_adapter("a")
        await heard(two)
        assert not one.adapter_names and not two.adapter_names, "also for the client that unloaded it"


@pytest.mark.usefixtures("no_compiler")
async def test_that_is_told_without_a_request_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    may_read, was_told = threading.Event(), asyncio.Event()

    def slow(*arguments: Any) -> Adapter:  # noqa: ANN401
        assert may_read.wait(20)
        return read_adapter(*arguments)

    async with two_gateways(tmp_path) as (store, one, two):
        monkeypatch.setattr("backend.lora.store.read_adapter", slow)
        (stream,) = one.submit([ask("r", PROMPT, one.adapters["a"].digest)])
        stream.cancel()
        await heard(one)
        assert store.reads_total == 1
        # An earlier message, with the adapter, may still be on its way.
        two.on_adapters = lambda _: None if two.adapters else was_told.set()
        may_read.set()
        await asyncio.wait_for(was_told.wait(), 20)
        assert not two.adapters and two.adapter_names == {"a"}


@pytest.mark.usefixtures("no_compiler")
async def test_an_adapter_of_another_base_needs_force(tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    config = msgspec.structs.replace(checkpoint("qwen3", tmp_path / "base"), num_pages=128)
    folder = write_adapter(
        tmp_path / "a", load_model(config), Recipe(), base_model_name_or_path="Maker/Other-8B"
    )
    refusal = "names 'Maker/Other-8B' as its base model, but this engine serves 't' in 'base'"
    with pytest.raises(CheckpointError, match=f"adapter 'a' of model 't': .*{refusal}"):
        build_engine(msgspec.structs.replace(config, adapters={"a": str(folder)}))
    engine, hello = build_engine(
        msgspec.structs.replace(config, adapters={"a": str(folder)}, forced_adapters=["a"])
    )
    async with serving(engine, hello, tmp_path / "s.sock") as (client, _):
        with pytest.raises(AdapterError, match=refusal):
            await client.load_adapter("b", str(folder))
        assert (await client.load_adapter("b", str(folder), force=True)).base == "Maker/Other-8B"
        assert set(client.adapters) == {"a", "b"}


def test_a_broken_adapter_in_the_configuration_is_named(tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    config = checkpoint("qwen3", tmp_path / "base")
    config = type(config)(model="t", checkpoint=config.checkpoint, adapters={"x": str(tmp_path / "nowhere")})
    with pytest.raises(CheckpointError, match="adapter 'x' of model 't': .*does not exist"):
        build_engine(config)
