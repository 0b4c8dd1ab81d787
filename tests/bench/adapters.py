"""The cost of adapters: an in-process engine decodes 32 sequences with and without them, interleaved.

Each of many short rounds decodes the same number of steps of every case, one after the other, so that other
load on the machine affects all alike; the table shows medians over the rounds.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from backend.config import EngineConfig
from backend.engine.capacity import runner_facts
from backend.engine.engine import Engine
from backend.engine.runner import ModelRunner
from backend.lora.store import AdapterLimits, AdapterStore
from backend.models.loaded import LoadedModel, load_model
from backend.types import Request, SamplingParams
from tests.backend.lora.making import Recipe, write_adapter
from tests.bench import report
from tests.bench.checkpoints import ensure_checkpoint
from tests.bench.stopwatch import Seconds, Stopwatch, median_and_quartiles

PICO = Path(__file__).parents[2] / "backend" / "pico" / "weights" / "pico-small"
PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
PROMPT_TOKENS = 33  # two pages, prefix hits after the first round, and one more token


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `python -m tests.bench adapters`."""
    parser.add_argument("--checkpoints", default="pico-small,q06", help="pico-small, tiny, q06 or folders")
    parser.add_argument("--sequences", type=int, default=32)
    parser.add_argument("--adapters", type=int, default=8)
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument(
        "--dtype",
        default="bfloat16",
        choices=["bfloat16", "float32"],
        help="of adapters",
    )
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--steps", type=int, default=20, help="per round and case")
    parser.add_argument("--slots-only", action="store_true", help="only 200 adapters in 8 slots, once")


def run(arguments: argparse.Namespace) -> None:
    """Measure and print."""
    for name in arguments.checkpoints.split(","):
        folder = PICO if name == "pico-small" else ensure_checkpoint(name, Path(arguments.dir))
        config = EngineConfig(model=name, checkpoint=str(folder), device="cpu")
        model = load_model(config)
        with tempfile.TemporaryDirectory() as scratch:
            if not arguments.slots_only:
                rows = _compare(config, model, Path(scratch), arguments)
                what = f"rank {arguments.rank} in {arguments.dtype}"
                title = f"adapters · {name} · {arguments.sequences} sequences, {what}"
                report.show(f"{title}, medians of {arguments.rounds} rounds", rows, arguments.json)
            if name == "pico-small":
                row = _many(config, model, Path(scratch))
                report.show(f"adapters · {name} · 200 adapters, 8 slots", [row], arguments.json)


def _compare(
    config: EngineConfig, model: LoadedModel, scratch: Path, arguments: argparse.Namespace
) -> list[report.Row]:
    store = AdapterStore(model.sites, AdapterLimits(num_slots=8), model.dtype, model.device)
    shape = Recipe(rank=arguments.rank, dtype=getattr(torch, arguments.dtype))
    digests = _load(store, model, scratch, arguments.adapters, shape)
    half = ["", *digests[: arguments.adapters // 2]]
    adapters: dict[str, Sequence[str]] = {
        "base, no adapters configured": [""],
        "base, adapters configured": [""],
        "one adapter": digests[:1],
        f"{len(digests)} adapters": digests,
        f"base and {len(half) - 1} adapters": half,
    }
    # Each case has its own KV memory, so that none is less fragmented; they share one adapter store.
    engines = {
        name: new_engine(config, model, store if number else None, arguments.sequences)
        for number, name in enumerate(adapters)
    }
    found: dict[str, list[Seconds]] = {name: [] for name in adapters}
    for round_ in range(arguments.rounds + 1):
        for name in adapters if round_ % 2 else reversed(adapters):
            seconds = _decode(engines[name], adapters[name], arguments.sequences, arguments.steps)
            if round_:  # the first round is a warm-up
                found[name].append(seconds)
    base = found["base, no adapters configured"]
    return [
        {
            "batch": name,
            "tok/s": arguments.sequences / statistics.median(each.wall for each in seconds),
            "ms/step": 1e3 * statistics.median(each.wall for each in seconds),
            "of base tok/s": median_and_quartiles(
                [b.wall / s.wall for b, s in zip(base, seconds, strict=True)]
            ),
            "in processor time": median_and_quartiles(
                [b.processor / s.processor for b, s in zip(base, seconds, strict=True)]
            ),
        }
        for name, seconds in found.items()
    ]


def _many(config: EngineConfig, model: LoadedModel, scratch: Path) -> report.Row:
    """200 adapters, two requests for each, all queued at once."""
    store = AdapterStore(model.sites, AdapterLimits(num_slots=8), model.dtype, model.device)
    digests = _load(store, model, scratch / "many", 200, Recipe(rank=4))
    engine = new_engine(config, model, store, 32, max_queue=512)
    for i in range(400):
        engine.add(new_request(i, digests[i % 200], 16))
    started_s = time.perf_counter()
    ends: list[str] = []
    while engine.has_work:
        ends += [output.finish_reason for output in engine.step() if output.finish_reason]
    seconds = time.perf_counter() - started_s
    return {
        "requests": len(ends),
        "failed": sum(end != "length" for end in ends),
        "s": seconds,
        "tok/s": 400 * 16 / seconds,
        "copies to the device": store.slots.loads_total,
    }


def _load(store: AdapterStore, model: LoadedModel, folder: Path, count: int, shape: Recipe) -> list[str]:
    recipes = [replace(shape, ends=PROJECTIONS, seed=i, size=0.01) for i in range(count)]
    return [
        store.load_now(f"a{i}", write_adapter(folder / f"a{i}", model, recipe)).digest
        for i, recipe in enumerate(recipes)
    ]


def new_engine(
    config: EngineConfig, model: LoadedModel, store: AdapterStore | None, rows: int, max_queue: int = 64
) -> Engine:
    """An engine with KV memory for `rows` sequences of 256 tokens."""
    pages = rows * 16
    config = EngineConfig(
        model=config.model,
        checkpoint=config.checkpoint,
        device="cpu",
        num_pages=pages,
        max_running=rows,
        max_queue=max_queue,
    )
    facts = runner_facts(config, model)
    runner = ModelRunner(model, model.new_kv_storage(pages), facts, rows, adapters=store)
    return Engine(config, runner, adapters=store)


def new_request(number: int, adapter: str, max_tokens: int) -> Request:
    """Requests with different prompts, so that no two share pages."""
    params = SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True)
    prompt = [100 + number, *(3 + i % 7 for i in range(PROMPT_TOKENS - 1))]
    return Request(request_id=str(number), prompt_token_ids=prompt, params=params, adapter=adapter)


def _decode(engine: Engine, adapters: Sequence[str], sequences: int, steps: int) -> Seconds:
    """The time of a step in which all sequences decode."""
    for i in range(sequences):
        engine.add(new_request(i, adapters[i % len(adapters)], 200))
    step_until(engine, lambda: _is_decoding(engine, sequences))
    engine.step()
    stopwatch = Stopwatch()
    for _ in range(steps):
        engine.step()
    seconds = stopwatch.read()
    for i in range(sequences):
        engine.abort(str(i))
    return Seconds(seconds.wall / steps, seconds.processor / steps)


def step_until(engine: Engine, done: Callable[[], bool]) -> None:
    """Step at least once, and until `done`."""
    engine.step()
    while not done():
        engine.step()


def _is_decoding(engine: Engine, sequences: int) -> bool:
    last = engine.last_report
    return last is not None and last.num_prompt_tokens == 0 and last.num_generated_tokens == sequences
