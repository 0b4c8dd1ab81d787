"""Python time per step of the scheduler alone: schedule, commit and append_token, without a forward pass.

Measured in thread CPU time beside wall time, so that other load on the machine does not count.
"""

from __future__ import annotations

import statistics
import time

from backend.kv.manager import KVManager
from backend.scheduler import Scheduler, SchedulerConfig
from backend.types import Request, SamplingParams, Sequence

NUM_STEPS = 400
PROMPT_TOKENS = 128
STEP_S = 0.01
"""Simulated time of a forward pass, for the step-time controller."""


def run(num_sequences: int = 128) -> dict[str, float]:
    """Milliseconds per step: decoding only, and decoding while long prompts arrive and prefill."""
    decode = _measure(num_sequences, num_long_prompts=0)
    mixed = _measure(num_sequences - 8, num_long_prompts=8)
    return {
        "num_sequences": num_sequences,
        **{f"decode_{name}": value for name, value in decode.items()},
        **{f"mixed_{name}": value for name, value in mixed.items()},
    }


def _measure(num_decoding: int, num_long_prompts: int) -> dict[str, float]:
    config = SchedulerConfig(max_model_tokens=65_536, max_running=num_decoding + num_long_prompts)
    kv = KVManager(num_pages=65_536, revision="bench", kv_dtype="bfloat16")
    scheduler = Scheduler(config, kv)
    for index in range(num_decoding):
        scheduler.add(_sequence(f"decode {index}", index, PROMPT_TOKENS))
    for _ in range(20):  # until all of them decode and the controller has measured a step
        _step(scheduler)
    for index in range(num_long_prompts):
        scheduler.add(_sequence(f"long {index}", 1000 + index, 20_000))
    cpu_ms: list[float] = []
    wall_ms: list[float] = []
    for _ in range(NUM_STEPS):
        wall, cpu = time.perf_counter(), time.thread_time()
        _step(scheduler)
        cpu_ms.append(1e3 * (time.thread_time() - cpu))
        wall_ms.append(1e3 * (time.perf_counter() - wall))
    return {
        "cpu_mean_ms": statistics.fmean(cpu_ms),
        "cpu_p99_ms": statistics.quantiles(cpu_ms, n=100)[98],
        "wall_p50_ms": statistics.median(wall_ms),
        "wall_p99_ms": statistics.quantiles(wall_ms, n=100)[98],
    }


def _sequence(request_id: str, first_token: int, num_tokens: int) -> Sequence:
    tokens = [first_token, *range(1, num_tokens)]
    params = SamplingParams(max_tokens=4096)
    request = Request(request_id=request_id, prompt_token_ids=tokens, params=params)
    return Sequence(request, list(tokens), num_tokens)


def _step(scheduler: Scheduler) -> None:
    plan = scheduler.schedule()
    sampling = [chunk.sequence for chunk in plan.chunks if chunk.samples]
    num_prompt_tokens = plan.num_tokens - len(sampling)
    scheduler.commit(plan, STEP_S * (1.0 + num_prompt_tokens / 128))
    for sequence in sampling:
        scheduler.append_token(sequence, 7)
