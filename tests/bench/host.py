"""Host time of an engine's step: plan, inputs, upload, commit, with a device that computes nothing.

All that the host does while a GPU works, but for launching kernels. In thread CPU time: other load on the
machine hardly counts. A step launched ahead is compared with one that is read at once.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from backend.config import EngineConfig
from backend.engine.engine import Engine
from backend.engine.runner import ModelRunner
from backend.engine.runner_protocol import RunnerFacts
from backend.kernels.upload import pack
from backend.types import Request, SamplingParams
from tests.bench import report

PROMPT_TOKENS, WARM_STEPS = 128, 40
MAX_ROWS = 512
CASES: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "filters": {"temperature": 0.8, "top_p": 0.9, "top_k": 40},
    "penalties": {"temperature": 0.8, "presence_penalty": 0.5, "min_tokens": 4},
}


class NoDevice:
    """A model and sampler whose results are there at once."""

    def __init__(self, rows: int, vocab_size: int) -> None:
        self.device = torch.device("cpu")
        self.decoder = SimpleNamespace(head=SimpleNamespace(adapters=None))
        self._hidden = torch.zeros(64 * rows, 1)
        self._logits = torch.zeros(rows, vocab_size)
        self._draws = torch.full((rows,), 7), torch.ones(rows, dtype=torch.bool)

    def open(self, step: object, kv: object) -> None:
        """Nothing to open."""

    def forward(self, token_ids: Tensor, context: object, layers: object) -> Tensor:
        """The hidden states of as many tokens."""
        return self._hidden[: len(token_ids)]

    def logits(self, hidden: Tensor, rows: object = None) -> Tensor:
        """A row for each draw."""
        return self._logits[: len(hidden)]

    def sample(self, logits: Tensor, batch: Any, words: object) -> tuple[Tensor, Tensor]:  # noqa: ANN401
        """The same token for all rows; sampling parameters are packed as for a GPU."""
        pack([batch.words(), np.zeros((8, len(logits)), dtype=np.int32)])
        return self._draws[0][: len(logits)], self._draws[1][: len(logits)]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `python -m tests.bench host`."""
    parser.add_argument("--rows", type=int, default=256, help="sequences that decode (default %(default)s)")
    parser.add_argument("--steps", type=int, default=300, help="measured of each case (default %(default)s)")


def run(arguments: argparse.Namespace) -> None:
    """Measure and print."""
    if not 1 <= arguments.rows <= MAX_ROWS or arguments.steps < 2:
        sys.exit(f"host: ask for --rows from 1 to {MAX_ROWS} and --steps from 2")
    torch.set_num_threads(1)
    rows = [
        {"case": case, "launched": "ahead" if is_ahead else "when read"}
        | measure(arguments, params, is_ahead)
        for case, params in CASES.items()
        for is_ahead in (True, False)
    ]
    report.show(f"host time of a step, {arguments.rows} sequences", rows, arguments.json)


def measure(arguments: argparse.Namespace, params: dict[str, Any], is_ahead: bool) -> dict[str, float]:
    """Milliseconds of CPU time a step."""
    count, tokens = arguments.rows, WARM_STEPS + arguments.steps + 8
    model = NoDevice(count, vocab_size=1024)
    facts = RunnerFacts(1024, 64 * count, 8192, frozenset({2}), "bench", "bfloat16")
    storage = cast("Any", SimpleNamespace(states=None))
    runner = ModelRunner(cast("Any", model), storage, facts, count, is_ahead=is_ahead)
    runner._sampler = cast("Any", model)
    engine = Engine(
        EngineConfig(model="bench", checkpoint="/none", max_running=count, max_batch_tokens=2048), runner
    )
    for number in range(count):
        sampling = SamplingParams(max_tokens=tokens, ignore_eos=True, **params)
        prompt = [number % 1000, *range(1, PROMPT_TOKENS)]
        engine.add(Request(request_id=str(number), prompt_token_ids=prompt, params=sampling))
    while engine.scheduler.has_prompts:
        engine.step()
    for _ in range(WARM_STEPS):
        engine.step()
    times_ms = []
    for _ in range(arguments.steps):
        started = time.thread_time()
        engine.step()
        times_ms.append(1e3 * (time.thread_time() - started))
    return {
        "least ms": round(statistics.quantiles(times_ms, n=20)[0], 3),  # of a quiet core
        "median ms": round(statistics.median(times_ms), 3),
        "p99 ms": round(statistics.quantiles(times_ms, n=100)[98], 3),
    }
