"""Times of a step's kernels on a GPU, by name, as torch's profiler tells them."""

from __future__ import annotations

import importlib
import importlib.util
import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile
from triton.runtime.jit import JITFunction

from backend.engine.runner import ModelRunner
from tests.bench.gpu.trace import Work, plan_of, runner_for

_ROUNDS = 5
_PRODUCTS = r".*(?:gemm|gemv|nvjet|cutlass|xmma|splitK).*"


def kernel_names(ops: Sequence[str]) -> re.Pattern[str]:
    """What the names of these ops' kernels look like; products are torch's, by its libraries."""
    names = [_PRODUCTS] if "products" in ops else []
    for op in ops:
        if importlib.util.find_spec(f"backend.kernels.{op}") and importlib.util.find_spec(
            f"backend.kernels.{op}.kernel"
        ):
            module = importlib.import_module(f"backend.kernels.{op}.kernel")
            names += [
                name.lstrip("_") for name, value in vars(module).items() if isinstance(value, JITFunction)
            ]
    return re.compile("|".join(names) or "(?!)")


class Steps:
    """One step that can be run again and again."""

    def __init__(self, shape: dict[str, Any], work: Work, num_layers: int) -> None:
        self._runner: ModelRunner = runner_for({**shape, "num_hidden_layers": num_layers}, work, "cuda")
        self._plan = plan_of(work)

    def run(self, count: int = 1) -> None:
        """Compute it."""
        for _ in range(count):
            self._runner.run(self._plan)
        torch.cuda.synchronize()

    def kernel_us(self) -> dict[str, float]:
        """Microseconds of each kernel in one step, by its name without leading underscores."""
        self.run(2)
        with profile(activities=[ProfilerActivity.CUDA]) as found:
            self.run(_ROUNDS)
        times: dict[str, float] = defaultdict(float)
        for event in found.events() or ():
            if event.device_type == DeviceType.CUDA:
                times[event.name.lstrip("_")] += event.time_range.elapsed_us() / _ROUNDS
        return dict(times)


Span = tuple[float, float]
"""Begin and end of what a GPU did, in microseconds."""


def device_spans(step: Callable[[], None], count: int) -> list[Span]:
    """What the GPU did in `count` steps."""
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        for _ in range(count):
            step()
        torch.cuda.synchronize()
    return [
        (event.time_range.start, event.time_range.end)
        for event in found.events() or ()
        if event.device_type == DeviceType.CUDA
    ]


def idle_share(spans: Sequence[Span]) -> float:
    """The share of the time from the first begin to the last end in which nothing ran."""
    assert spans, "the profiler saw no kernel; run as a user who may profile"
    ordered = sorted(spans)
    first, until = ordered[0]
    idle = 0.0
    for begin, end in ordered:
        idle += max(begin - until, 0.0)
        until = max(until, end)
    return idle / (until - first)
