"""An idle engine whose memory goes to the host and comes back, on the CPU, whose tensors can do the same."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
import torch
from torch import Tensor

from backend.config import EngineConfig
from backend.engine.capacity import runner_facts
from backend.engine.engine import Engine
from backend.engine.runner import ModelRunner
from backend.engine.sleep import Memory, OffloadedMemory, Sleeper, device_memory
from backend.models.loaded import load_model
from backend.server.engine_client import EngineClient
from backend.server.engine_messages import Hello
from backend.server.engine_server import EngineServer
from backend.server.server import ServerLimits
from backend.types import Request, SamplingParams
from tests.backend.engine.driving import texts
from tests.backend.models.checkpoints import VARIANTS, write_checkpoint
from tests.backend.server.asking import TIMEOUT_S, text
from tests.backend.server.listening import listen

NUM_PAGES, AFTER_S = 24, 60.0


class AddressedGraphs:
    """Captures functions that must find memory where it was: a graph knows addresses."""

    def __init__(self) -> None:
        self.memory: list[Tensor] = []
        self.num_captures = 0

    def __call__(self, function: Callable[[], Tensor]) -> tuple[Tensor, Callable[[], None]]:
        result, places = function(), self._places()
        self.num_captures += 1

        def replay() -> None:
            assert self._places() == places
            result.copy_(function())

        return result, replay

    def _places(self) -> list[int]:
        return [tensor.data_ptr() for tensor in self.memory]


class House:
    """An engine, what lets it sleep, and a clock."""

    def __init__(self, folder: Path) -> None:
        write_checkpoint(next(v for v in VARIANTS if v.name == "qwen3"), folder)
        config = EngineConfig(
            model="t",
            checkpoint=str(folder),
            device="cpu",
            dtype="float32",
            num_pages=NUM_PAGES,
            max_running=4,
        )
        model = load_model(config)
        facts = runner_facts(config, model)
        self.storage = model.new_kv_storage(facts.num_pages + 1)
        self.graphs = AddressedGraphs()
        self.runner = ModelRunner(model, self.storage, facts, 4, capture=self.graphs)
        self.engine = Engine(config, self.runner)
        self.weight = model.decoder.embedding.weight
        self.graphs.memory = [self.weight, *self.storage.memory]
        self.now_s = 0.0
        self.sleeper = Sleeper(self.engine, self.runner, AFTER_S, self.memory, lambda: self.now_s)

    def memory(self) -> Memory:
        """A weight that is a tensor of its own, with a view of it; the KV memory, which is in both lists."""
        return [self.weight, self.weight[1:], *self.storage.memory], self.storage.memory

    def is_asleep(self) -> bool:
        return self.sleeper.is_asleep

    def rest(self, after_s: float) -> None:
        self.sleeper.rest()
        self.now_s += after_s
        self.sleeper.rest()


@pytest.fixture
def house(tmp_path: Path) -> House:
    return House(tmp_path)


def ask(name: str = "a", max_tokens: int = 20) -> Request:
    params = SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True)
    return Request(request_id=name, prompt_token_ids=[5, 6, 7] * 12, params=params)


def test_it_sleeps_when_it_was_idle_for_long_and_says_the_same_afterwards(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    before = texts(house.engine, [ask()])
    assert house.engine.kv.cached_pages > 0 and house.graphs.num_captures > 0
    house.rest(AFTER_S / 2)
    assert not house.is_asleep()
    house.now_s += AFTER_S
    house.sleeper.rest()
    assert house.is_asleep() and "asleep after 60 s" in caplog.text
    sizes = [tensor.untyped_storage().nbytes() for tensor in house.graphs.memory]
    assert sizes == [0] * len(sizes), "the device has all of it"
    assert house.engine.kv.cached_pages == 0 and house.engine.kv.free_pages == NUM_PAGES
    taken = [torch.ones(1 << 18) for _ in range(8)]  # elsewhere than before, and not zeros
    num_captures = house.graphs.num_captures
    house.sleeper.wake()
    assert house.graphs.num_captures > num_captures and "awake" in caplog.text and taken
    assert not any(memory[:, :NUM_PAGES].any() for memory in house.storage.memory), (
        "pages hold finite numbers"
    )
    assert texts(house.engine, [ask()]) == before
    house.engine.kv.check_invariants([])


def test_requests_keep_it_awake_and_it_sleeps_again_and_again(house: House) -> None:
    wanted = texts(house.engine, [ask()])
    for _ in range(3):
        house.rest(AFTER_S - 1)
        house.sleeper.wake()
        assert texts(house.engine, [ask()]) == wanted
        house.rest(AFTER_S - 1)
        assert not house.is_asleep()
        house.rest(AFTER_S)
        assert house.is_asleep()
        house.sleeper.rest()
        house.sleeper.wake()
        assert texts(house.engine, [ask()]) == wanted


def test_it_stays_awake_where_the_host_has_no_room(
    house: House, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    wanted = texts(house.engine, [ask()])
    free = psutil.virtual_memory()._replace(available=house.weight.nbytes - 1)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: free)
    for _ in range(2):
        house.rest(2 * AFTER_S)
    assert not house.is_asleep() and caplog.text.count("stays awake") == 1
    assert texts(house.engine, [ask()]) == wanted


def test_the_host_needs_no_room_for_what_is_dropped(
    house: House, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    free = psutil.virtual_memory()._replace(available=house.weight.nbytes)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: free)
    house.rest(2 * AFTER_S)
    assert house.is_asleep() and "stays awake" not in caplog.text
    house.sleeper.wake()


def test_what_shares_memory_is_kept_once_and_what_is_dropped_becomes_zeros() -> None:
    kept, dropped = torch.arange(10.0), torch.ones(4, 3)
    view = kept[2:4]
    memory = OffloadedMemory([kept, view, kept.new_empty(0)], [dropped, dropped[1]])
    assert memory.num_bytes == kept.nbytes + dropped.nbytes
    assert not kept.untyped_storage().nbytes() and not dropped.untyped_storage().nbytes()
    memory.restore()
    assert kept.tolist() == list(range(10)) and view.tolist() == [2, 3] and dropped.tolist() == [[0] * 3] * 4


def test_memory_of_the_host_is_not_that_of_a_device(house: House) -> None:
    assert device_memory() == ([], []) and house.storage.memory


async def test_a_request_wakes_a_server(house: House, tmp_path: Path) -> None:
    wanted = texts(house.engine, [ask()])
    path = tmp_path / "engine.sock"
    hello = Hello("t", "/none", "r", 160, 200, NUM_PAGES, "cpu", "float32")
    server = EngineServer(
        house.engine, hello, listen(path), ServerLimits(heartbeat_s=0.02), sleeper=house.sleeper
    )
    thread = threading.Thread(target=server.run)
    thread.start()
    client = EngineClient(path)
    try:
        await client.start()
        await client.wait_ready(TIMEOUT_S)
        for _ in range(2):
            async with asyncio.timeout(TIMEOUT_S):
                while not house.is_asleep():
                    house.now_s += AFTER_S
                    await client.wait_message()
            (stream,) = client.submit([ask()])
            assert [await text(stream)] == wanted
    finally:
        await client.close()
        server.stop()
        thread.join(TIMEOUT_S)
