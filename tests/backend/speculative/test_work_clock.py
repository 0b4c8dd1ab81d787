"""What drafts cost is told by the work of the engine's thread, not by how long others kept it waiting."""

from __future__ import annotations

import threading
import time

import pytest
import torch

from backend.config import EngineConfig
from backend.engine.engine import Engine
from backend.engine.runner_protocol import StepResult
from backend.speculative.work_clock import work_clock
from backend.types import Plan, Request, SamplingParams
from tests.backend.engine.fake_runner import FakeRunner
from tests.backend.speculative.test_following import Clock


def test_one_thread_of_the_processor_counts_its_work_alone() -> None:
    clock = work_clock(torch.device("cpu"))
    began_s = clock()
    threading.Event().wait(0.05)
    assert clock() - began_s < 0.05
    while clock() - began_s < 0.05:
        pass


def test_several_threads_and_other_devices_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert work_clock(torch.device("cuda")) is time.perf_counter
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert work_clock(torch.device("cpu")) is time.perf_counter


def test_the_engine_weighs_steps_by_that_clock() -> None:
    class Working(FakeRunner):
        def run(self, plan: Plan) -> StepResult:
            work.now_s += 0.25
            wall.now_s += 3.0
            return super().run(plan)

    work, wall, costs = Clock(), Clock(), list[tuple[float, int]]()

    def measure(num_sequences: int, num_drafts: int, time_s: float, *, num_prompt_tokens: int = 0) -> None:
        costs.append((time_s, num_prompt_tokens))

    engine = Engine(EngineConfig(model="fake", checkpoint="/none"), Working(), wall, work_clock=work)
    engine.speculator.measure = measure  # type: ignore[method-assign]
    params = SamplingParams(max_tokens=4, ignore_eos=True)
    engine.add(Request(request_id="a", prompt_token_ids=[5, 6, 7], params=params, prediction_token_ids=[1]))
    durations = []
    while engine.has_work:
        engine.step()
        assert engine.last_report is not None
        durations.append(engine.last_report.duration_s)
    assert set(durations) == {3.0}
    assert costs[0] == (0.25, 3) and len(costs) > 1 and set(costs[1:]) == {(0.25, 0)}
