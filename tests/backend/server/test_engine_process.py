"""The real worker process on a tiny checkpoint: progress, serving, exit codes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
import torch

from backend.config import AttentionSpec, EngineConfig, LayerSpec, ParallelConfig, SpeculativeConfig
from backend.engine import capacity
from backend.engine.engine import Engine
from backend.errors import CheckpointError
from backend.lora.store import AdapterStore
from backend.models.loaded import LoadedModel, load_model
from backend.server import engine_process
from backend.server.engine_client import EngineClient
from backend.server.engine_process import build_engine, open_adapters, warm_up
from tests.backend.engine.fake_runner import FakeRunner, next_token
from tests.backend.models.checkpoints import VARIANTS, write_checkpoint
from tests.backend.server.asking import ask, text
from tests.backend.server.listening import start_process
from tests.backend.speculative.drafters import GuessingDrafter, RandomDrafter

LIMIT_S = 100


def start(folder: Path, config: bytes, *options: str) -> subprocess.Popen[str]:
    return start_process("engine", folder / "e.sock", config, *options)


def test_an_engine_sees_its_card_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = list[str]()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    monkeypatch.setattr(
        engine_process,
        "build_engine",
        lambda config: (seen.append(os.environ["CUDA_VISIBLE_DEVICES"]), config.model),
    )
    for card in ("", "GPU-1"):
        engine_process.load(EngineConfig(model="m", checkpoint="/m", card=card))
    assert seen == ["0,1", "GPU-1"]


def config_for(checkpoint: Path, **changes: Any) -> bytes:  # noqa: ANN401
    return msgspec.json.encode(
        EngineConfig(model="tiny", checkpoint=str(checkpoint), num_pages=64, **changes)
    )


async def test_load_serve_drain(tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint"
    write_checkpoint(next(v for v in VARIANTS if v.name == "qwen3"), checkpoint)
    process = start(tmp_path, config_for(checkpoint), "--parent-pid", str(os.getpid()))
    assert process.stdout is not None
    phases: list[str] = []
    while "ready" not in phases:
        line = await asyncio.to_thread(process.stdout.readline)
        assert line, "the worker ended before it was ready"
        phases.append(json.loads(line)["phase"])
    assert sorted(set(phases), key=phases.index) == ["loading", "warming_up", "ready"]
    client = EngineClient(tmp_path / "e.sock")
    await client.start()
    await client.wait_ready(LIMIT_S)
    assert client.hello is not None and client.hello.num_pages == 64 and len(client.hello.revision) == 64
    assert client.stats.steps_total == 0 and client.stats.free_pages == 64, "the warm-up left traces"
    one, other = client.submit([ask("a", [1, 2, 3], 6), ask("b", [1, 2, 3], 6)])
    assert len(await text(one)) == len(await text(other)) == 6
    process.send_signal(signal.SIGTERM)
    assert await asyncio.to_thread(process.wait, LIMIT_S) == 0
    await client.close()
    process.communicate()


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (config_for(Path("/nowhere/at/all")), "/nowhere/at/all"),
        (b'{"model": "m", "checkpoint": "/c", "nonsense": 1}', "nonsense"),
        (b"not json", "no engine configuration"),
    ],
)
def test_what_cannot_be_served_is_one_sentence(tmp_path: Path, config: bytes, words: str) -> None:
    process = start(tmp_path, config)
    progress, errors = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 2
    last = json.loads(progress.splitlines()[-1])
    assert last["phase"] == "failed" and errors.endswith(f" ERROR backend.server.serve: {last['error']}\n")
    assert words in errors and "Traceback" not in errors and errors.count("\n") == 1


def test_a_setting_that_cannot_work_is_no_crash(tmp_path: Path) -> None:
    """With another exit code the supervisor would restart the process again and again."""
    checkpoint = tmp_path / "checkpoint"
    write_checkpoint(next(v for v in VARIANTS if v.name == "llama"), checkpoint)
    process = start(tmp_path, config_for(checkpoint, max_running=4, max_batch_tokens=8))
    _, errors = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 2
    assert ": max_batch_tokens is 8, less than max_running 4 or min_chunk_tokens 16" in errors
    assert "Traceback" not in errors


async def test_an_orphan_ends_by_itself(tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint"
    write_checkpoint(next(v for v in VARIANTS if v.name == "llama"), checkpoint)
    process = start(tmp_path, config_for(checkpoint), "--parent-pid", "1")
    await asyncio.to_thread(process.communicate, None, LIMIT_S)
    assert process.returncode == 0


FULL = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.11 GiB of which "
    "1.25 GiB is free. Of the allocated memory 70.00 GiB is allocated by PyTorch. If reserved but "
)


@pytest.mark.parametrize(
    ("error", "numbers"),
    [
        (torch.OutOfMemoryError(FULL), "of which 1.25 GiB is free. Lower max_running and"),
        (MemoryError("Unable to allocate 954. GiB"), "Unable to allocate 954. GiB Lower max_running and"),
    ],
)
def test_a_model_without_memory_is_refused_with_the_numbers(
    error: Exception, numbers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object) -> None:
        raise error

    monkeypatch.setattr(engine_process, "open_model", fail)
    with pytest.raises(
        CheckpointError, match="^model 'tiny' does not start, as memory has ended: "
    ) as caught:
        engine_process.load(EngineConfig(model="tiny", checkpoint="nowhere"))
    assert numbers in str(caught.value) and "PyTorch" not in str(caught.value)


def test_warming_up_lets_each_drafter_draft_and_leaves_nothing_behind() -> None:
    guessing = GuessingDrafter(next_token, vocab_size=50, skill=0.5)
    drafters = [guessing, RandomDrafter(vocab_size=50)]
    always = SpeculativeConfig(adaptive=False)
    engine = Engine(
        EngineConfig(model="fake", checkpoint="/none", speculative=always), FakeRunner(), drafters=drafters
    )
    warm_up(engine, [drafter.name for drafter in drafters], 64)
    for drafter in drafters:
        assert sum(num_drafted > 0 for num_drafted, _ in drafter.observed) > 1
        assert not drafter.sequences
    assert not engine.has_work


@pytest.mark.parametrize("max_model_tokens", [1, 2, 9])
def test_a_context_shorter_than_the_warm_up_is_served_all_the_same(max_model_tokens: int) -> None:
    runner = FakeRunner(max_model_tokens=max_model_tokens)
    engine = Engine(EngineConfig(model="fake", checkpoint="/none"), runner)
    warm_up(engine, [], max_model_tokens)
    assert bool(runner.plans) == (max_model_tokens > 1)


def test_slots_are_allocated_before_kv_memory_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_checkpoint(next(v for v in VARIANTS if v.name == "qwen3"), tmp_path)
    config = EngineConfig(model="tiny", checkpoint=str(tmp_path), device="cpu", dtype="float32")
    page_bytes = load_model(config).kv_layout.page_bytes
    free_bytes = [100 * page_bytes]

    def opened(config: EngineConfig, model: LoadedModel) -> AdapterStore:
        free_bytes.append(60 * page_bytes)
        return open_adapters(config, model)

    monkeypatch.setattr(engine_process, "open_adapters", opened)
    monkeypatch.setattr(engine_process, "open_compiler", lambda *_: None)
    monkeypatch.setattr(capacity, "_default_bytes", lambda *_: free_bytes[-1])
    _, hello = build_engine(config)
    assert hello.num_pages == 60


PLAIN = AttentionSpec(num_heads=2, num_kv_heads=1, head_dim=128, rope=None)


@pytest.mark.parametrize(
    ("attention", "device", "size", "is_ahead"),
    [
        (PLAIN, "cuda", 1, True),
        (replace(PLAIN, window=64, has_sinks=True), "cuda", 1, True),
        (replace(PLAIN, softcap=50.0), "cuda", 1, False),
        (replace(PLAIN, head_dim=512), "cuda", 1, False),
        (PLAIN, "cuda", 2, False),
        (PLAIN, "cpu", 1, False),
    ],
)
def test_what_gathers_whole_pages_is_not_launched_ahead(
    attention: AttentionSpec, device: str, size: int, is_ahead: bool
) -> None:
    layers = [LayerSpec(mixer=own, feed_forward=None) for own in (PLAIN, attention)]
    model = SimpleNamespace(device=torch.device(device), config=SimpleNamespace(layers=layers))
    config = EngineConfig(model="t", checkpoint="/none", parallel=ParallelConfig(tensor=size))
    assert engine_process._is_ahead(config, cast("Any", model)) is is_ahead
