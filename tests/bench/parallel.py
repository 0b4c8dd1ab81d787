"""One engine over two ranks against one process with as many threads: tokens per second, and weights."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import torch

from backend.config import EngineConfig, ParallelConfig
from backend.engine.engine import Engine
from backend.models.loaded import LoadedModel
from backend.parallel.children import Children
from backend.server import engine_process
from backend.types import Request, SamplingParams
from tests.bench import report
from tests.bench.checkpoints import ensure_checkpoint

PROMPT_TOKENS, OUTPUT_TOKENS = 32, 16
THREADS = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "1000"}
MIB = 2**20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `python -m tests.bench parallel`."""
    parser.add_argument("--checkpoint", default="q06", help="tiny, q06 or a folder")
    parser.add_argument("--split", default="tensor", help="what two ranks split: tensor or pipeline")
    parser.add_argument("--streams", default="1,8")
    parser.add_argument("--rounds", type=int, default=5)


def run(arguments: argparse.Namespace) -> None:
    """Measure and print."""
    checkpoint = ensure_checkpoint(arguments.checkpoint, Path(arguments.dir))
    threads = "2 threads in turn" if arguments.split == "pipeline" else "1 thread each"
    cases = {"one process, 2 threads": {}, f"{arguments.split} 2, {threads}": {arguments.split: 2}}
    engines = {case: _Engine(checkpoint, parallel) for case, parallel in cases.items()}
    streams = [int(count) for count in arguments.streams.split(",")]
    speeds: dict[tuple[str, int], list[float]] = {}
    for _ in range(arguments.rounds):
        for count in streams:
            for case, engine in engines.items():
                speeds.setdefault((case, count), []).append(engine.ask(count))
    one, split = list(cases)
    rows: list[report.Row] = []
    for case, engine in engines.items():
        row: report.Row = {"case": case, "weights MiB": max(engine.weights) / MIB}
        row["of one process"] = max(engine.weights) / max(engines[one].weights)
        for count in streams:
            own, other = speeds[case, count], speeds[one, count]
            row[f"{count} streams tok/s"] = statistics.median(own)
            ratios = [mine / theirs for mine, theirs in zip(own, other, strict=True)]
            row[f"{count} streams, ratio"] = statistics.median(ratios)
            row[f"{count} streams, CPU ms/tok"] = 1e3 * statistics.median(engine.cpu_s[count])
        rows.append(row)
        engine.process.communicate("\n")
    report.show(
        f"{split} · {arguments.checkpoint}, {PROMPT_TOKENS} + {OUTPUT_TOKENS} tokens", rows, arguments.json
    )


class _Engine:
    """An engine in a process of its own."""

    def __init__(self, checkpoint: Path, parallel: dict[str, int]) -> None:
        config = EngineConfig(
            model="m",
            checkpoint=str(checkpoint),
            device="cpu",
            num_threads=2,
            num_pages=128,
            parallel=ParallelConfig(**parallel),
        )
        command = [sys.executable, "-m", "tests.bench.parallel", msgspec.json.encode(config).decode()]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=os.environ | THREADS)
        self.weights: list[int] = self._answer()
        self.cpu_s: dict[int, list[float]] = {}  # of all ranks for a token, by the number of streams

    def ask(self, num_streams: int) -> float:
        """Tokens per second; the CPU time of each is kept."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{num_streams}\n")
        self.process.stdin.flush()
        speed, cpu_s = self._answer()
        self.cpu_s.setdefault(num_streams, []).append(cpu_s)
        return float(speed)

    def _answer(self) -> Any:  # noqa: ANN401
        assert self.process.stdout is not None
        for line in self.process.stdout:
            found = json.loads(line)
            if not isinstance(found, dict):  # else a line of progress
                return found
        raise RuntimeError("the engine died")


def _serve(line: str) -> None:
    """In that process: answers each number of streams with tokens per second."""
    config, pids = msgspec.json.decode(line, type=EngineConfig), ["self"]
    weights: list[int] = []
    children: list[Children] = []
    open_model, start = engine_process.open_model, Children.__init__

    def open_(*args: Any) -> LoadedModel:  # noqa: ANN401
        before = _own_bytes("self")
        model = open_model(*args)
        pids.extend(str(pid) for each in children for pid in each.pids)
        weights.extend(_own_bytes(pid) - before for pid in pids)
        return model

    def keep(self: Children, size: int, port: int) -> None:
        start(self, size, port)
        children.append(self)

    engine_process.open_model, Children.__init__ = open_, keep  # type: ignore[method-assign,assignment]
    engine, hello = engine_process.build_engine(config)
    print(json.dumps(weights), flush=True)
    draw = torch.Generator().manual_seed(0)
    while asked := sys.stdin.readline().strip():
        before_s = sum(map(_cpu_s, pids))
        speed = _tokens_per_second(engine, hello.vocab_size, int(asked), draw)
        spent_s = (sum(map(_cpu_s, pids)) - before_s) / (int(asked) * OUTPUT_TOKENS)
        print(json.dumps([speed, spent_s]), flush=True)


def _tokens_per_second(engine: Engine, vocab_size: int, num_streams: int, draw: torch.Generator) -> float:
    params = SamplingParams(max_tokens=OUTPUT_TOKENS, temperature=0.0, ignore_eos=True)
    for number in range(num_streams):
        prompt = torch.randint(10, vocab_size, (PROMPT_TOKENS,), generator=draw).tolist()
        engine.add(Request(request_id=str(number), prompt_token_ids=prompt, params=params))
    started_s = time.perf_counter()
    while engine.has_work:
        engine.step()
    return num_streams * OUTPUT_TOKENS / (time.perf_counter() - started_s)


def _cpu_s(pid: str) -> float:
    """The CPU time of a process, which other load on the machine hardly touches."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _own_bytes(pid: str) -> int:
    """Memory that is not mapped from files."""
    for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("Linux tells RssAnon")


if __name__ == "__main__":
    _serve(sys.argv[1])
