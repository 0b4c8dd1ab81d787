"""Adapters through the real process: loaded and unloaded by one gateway, known to all, also under load."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from backend.errors import AdapterError, AdapterExists, AdapterGone, CheckpointError
from backend.models import load_model
from backend.server.client import EngineClient
from backend.server.connections import listen
from backend.server.process import EngineServer
from backend.server.worker import build_engine
from tests.backend.lora.making import Recipe, ask, checkpoint, write_adapter
from tests.backend.models.driver import random_tokens

PROMPT = random_tokens(20, seed=1)


async def text(client: EngineClient, adapter: str, max_tokens: int = 24) -> list[int]:
    (stream,) = client.submit([ask("r", PROMPT, adapter, max_tokens)])
    return [token async for output in stream for token in output.token_ids]


async def connect(path: Path) -> EngineClient:
    client = EngineClient(path)
    await client.start()
    await client.wait_ready(20)
    return client


async def test_load_reload_and_unload_under_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("backend.server.worker.open_compiler", lambda *_: None)
    (tmp_path / "base").mkdir()
    config = checkpoint("qwen3", tmp_path / "base")
    model = load_model(config)
    for number in (1, 2):
        write_adapter(tmp_path / f"a{number}", model, Recipe(seed=number))
    config = type(config)(
        model="t", checkpoint=config.checkpoint, num_pages=128, adapters={"first": str(tmp_path / "a1")}
    )
    engine, hello = build_engine(config)
    server = EngineServer(engine, hello, listen(tmp_path / "s.sock"))
    thread = asyncio.create_task(asyncio.to_thread(server.run))
    one, two = await connect(tmp_path / "s.sock"), await connect(tmp_path / "s.sock")
    try:
        assert list(one.adapters) == ["first"]
        first = one.adapters["first"].digest
        loaded = await one.load_adapter("second", str(tmp_path / "a2"))
        assert loaded.digest != first and loaded.rank == 4
        texts = await asyncio.gather(*(text(one, digest) for digest in ("", first, loaded.digest)))
        assert len({tuple(tokens) for tokens in texts}) == 3
        assert await text(two, loaded.digest) == texts[2]
        assert set(two.adapters) == {"first", "second"}, "every gateway learns of it"
        running = asyncio.create_task(text(one, first, 200))
        again = await two.load_adapter("first", str(tmp_path / "a2"))
        assert again.digest == loaded.digest
        assert len(await running) == 200, "what runs keeps its weights"
        with pytest.raises(AdapterGone):
            await text(one, first)
        with pytest.raises(AdapterExists, match="'second'"):
            await one.load_adapter("second", str(tmp_path / "a1"), replaces=False)
        await two.unload_adapter("second")
        with pytest.raises(AdapterError, match="no adapter is called 'second'"):
            await one.unload_adapter("second")
        with pytest.raises(AdapterError, match="does not exist"):
            await one.load_adapter("third", str(tmp_path / "nowhere"))
        assert set(one.adapters) == {"first"}
    finally:
        await one.close()
        await two.close()
        server.stop()
        await thread
        engine.close()


def test_a_broken_adapter_in_the_configuration_is_named(tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    config = checkpoint("qwen3", tmp_path / "base")
    config = type(config)(model="t", checkpoint=config.checkpoint, adapters={"x": str(tmp_path / "nowhere")})
    with pytest.raises(CheckpointError, match="adapter 'x' of model 't': .*does not exist"):
        build_engine(config)
