"""One step of the model by operation: CPU time with one thread and with two, of all threads together.

Other load on the machine hardly touches CPU time. Scheduler and sampler are left out.
"""

from __future__ import annotations

import argparse
import functools
import os
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from backend.config import EngineConfig
from backend.kv.storage import KVStorage
from backend.layers import attention, mlp
from backend.layers.linear import Linear
from backend.layers.norm import RMSNorm
from backend.layers.step_input import StepInput, step_of_tables
from backend.models import decoder
from backend.models.loaded import LoadedModel, load_model
from backend.types import PAGE_TOKENS
from tests.bench import report
from tests.bench.checkpoints import ensure_checkpoint

CONTEXT, SPREAD = 190, 60
THREADS = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "1000"}
SHAPES = {"1 stream": (1, 1), "8 streams": (8, 1), "32 streams": (32, 1), "prefill of 160": (1, 160)}
OPERATIONS = {
    "products": (Linear, "__call__"),
    "attention": (attention, "paged_attention"),
    "plan of attention": (decoder, "plan_attention"),
    "norms": (RMSNorm, "__call__"),
    "rotation, keys and values": (attention, "kv_write"),
    "swiglu": (mlp, "swiglu"),
}
spent: Counter[str] = Counter()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `python -m tests.bench step`."""
    parser.add_argument("--checkpoint", default="q06", help="tiny, q06 or a folder")
    parser.add_argument("--rounds", type=int, default=12, help="the cheapest counts")


def run(arguments: argparse.Namespace) -> None:
    """Measure and print."""
    if "OMP_WAIT_POLICY" not in os.environ:  # as the engine's process has it: read when torch was loaded
        os.execve(sys.executable, sys.orig_argv, {**os.environ, **THREADS})
    checkpoint = ensure_checkpoint(arguments.checkpoint, Path(arguments.dir))
    model = load_model(EngineConfig(model="m", checkpoint=str(checkpoint)))
    kv = model.new_kv_storage(32 * (CONTEXT + SPREAD + PAGE_TOKENS) // PAGE_TOKENS)
    for name, (owner, attribute) in OPERATIONS.items():
        setattr(owner, attribute, _timed(name, getattr(owner, attribute)))
    for title, (streams, num_tokens) in SHAPES.items():
        step = _step(streams, num_tokens)
        rows: list[report.Row] = [{"operation": name} for name in [*OPERATIONS, "everything else", "whole"]]
        for threads in (1, 2):
            torch.set_num_threads(threads)
            costs = [_cost(model, step, kv) for _ in range(arguments.rounds)]
            cost = min(costs, key=lambda each: each["whole"])
            for row in rows:
                row[f"ms, threads {threads}"] = cost[row["operation"]] * 1e3
                row[f"%, threads {threads}"] = 100 * cost[row["operation"]] / cost["whole"]
        report.show(f"step · {checkpoint.name} · {title}", rows, arguments.json)


def _timed(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def timed(*args: object, **kwargs: object) -> object:
        started = time.process_time()
        result = function(*args, **kwargs)
        spent[name] += time.process_time() - started
        return result

    return timed


def _step(streams: int, num_tokens: int) -> StepInput:
    """One token each, in ragged contexts and scattered pages; or prompts without a context."""
    torch.manual_seed(1)
    lengths = (CONTEXT + torch.randint(-SPREAD, SPREAD + 1, (streams,))).tolist()
    lengths = [num_tokens] if num_tokens > 1 else [CONTEXT] if streams == 1 else lengths
    pages = -(-max(lengths) // PAGE_TOKENS)
    table = torch.randperm(streams * pages).view(streams, pages).numpy()
    token_ids = torch.arange(streams).repeat_interleave(num_tokens) + 1
    return step_of_tables(token_ids, [num_tokens] * streams, lengths, table, torch.device("cpu"))


def _cost(model: LoadedModel, step: StepInput, kv: KVStorage) -> Counter[str]:
    spent.clear()
    started = time.process_time()
    hidden = model.forward(step.token_ids, model.open(step, kv))
    model.logits(hidden[torch.tensor(step.query_lens).cumsum(0) - 1])
    whole = time.process_time() - started
    return spent | Counter({"whole": whole, "everything else": whole - sum(spent.values())})
