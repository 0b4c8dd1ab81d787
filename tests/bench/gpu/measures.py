"""What is measured on a device: each function is one section, and gives lines with a column `check`."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from backend.kernels.paged_attention import kernel as attention
from backend.kernels.paged_attention.plan import DeviceStep
from backend.sampling.sampler import Sampler, SamplingBatch
from backend.types import PAGE_TOKENS
from tests.backend.kernels.cases import DTYPES, TOLERANCES, ops
from tests.bench.gpu.cards import Card
from tests.bench.gpu.models import greedy, open_engine, random_model
from tests.bench.gpu.plan import DENSE, SPARSE
from tests.bench.gpu.profiled import Steps, kernel_names
from tests.bench.gpu.sections import SECTIONS as PLANNED
from tests.bench.gpu.shapes import MODELS, TINY_FAMILIES, config_of
from tests.bench.gpu.trace import Work

Row = dict[str, Any]
DECODE_SHARE, PREFILL_TFLOPS = 0.85, 400.0
_FUSION = {"TRITON_DEFAULT_FP_FUSION": "1"}


def check(is_right: bool) -> str:
    """What the column `check` says."""
    return "ok" if is_right else "FAILED"


def compile_all(device: str, card: Card) -> Iterator[Row]:
    """All launches of all kernels, compiled for the card in parallel processes: this fills Triton's cache."""
    code = (
        "import sys; from tests.backend.kernels.ahead import codes\n"
        "for case, found in codes(sys.argv[1], int(sys.argv[2])): print(found, flush=True); found.check(case)"
    )
    for op, done in _in_processes({op: [op, str(card.arch)] for op in ops()}, code, {}):
        row = {
            "kernels": op,
            "launches": done.stdout.count("MachineCode("),
            "check": check(not done.returncode),
        }
        yield row | _reason(done)


def values(device: str, card: Card) -> Iterator[Row]:
    """All values of all kernels in all dtypes against float64."""
    code = (
        "import sys, torch; from tests.backend.kernels import interpreted as module\n"
        "if sys.argv[2] == 'cpu': module.widen_products()\n"
        "module.check(sys.argv[1], sys.argv[2], [getattr(torch, sys.argv[3])])"
    )
    names = [str(dtype).removeprefix("torch.") for dtype in DTYPES]
    environment = {"TRITON_INTERPRET": "1"} if device == "cpu" else {}
    calls = {f"{op} {name}": [op, device, name] for op in ops() for name in names}
    for call, done in _in_processes(calls, code, environment):
        errors = [float(line.split()[-1]) for line in done.stdout.splitlines()]
        most = TOLERANCES[getattr(torch, call.split()[-1])]
        row = {"kernels": call, "values": len(errors), "error": max(errors, default=None), "at most": most}
        yield row | {"check": check(not done.returncode)} | _reason(done)


def _in_processes(
    calls: dict[str, list[str]], code: str, environment: dict[str, str]
) -> Iterator[tuple[str, subprocess.CompletedProcess[str]]]:
    def call(arguments: list[str]) -> subprocess.CompletedProcess[str]:
        command, variables = (
            [sys.executable, "-c", code, *arguments],
            {**os.environ, **_FUSION, **environment},
        )
        return subprocess.run(command, env=variables, capture_output=True, text=True, check=False)

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        yield from zip(calls, pool.map(call, calls.values()), strict=True)


def _reason(done: subprocess.CompletedProcess[str]) -> Row:
    return {"reason": done.stderr.strip().splitlines()[-1:]} if done.returncode else {}


def tokens(device: str, card: Card) -> Iterator[Row]:
    """Greedy tokens of every family on the device and on the CPU, in float32."""
    prompts = [[(7 * i + 3) % 199 for i in range(length)] for length in (5, 40, 3)]
    for name, shape in TINY_FAMILIES.items():
        found = {}
        for own in ("cpu", device):
            model = random_model(shape, own, torch.float32, weights_on="cpu", scale=0.2)
            found[own] = greedy(open_engine(model, len(prompts), 64), prompts, 12)
        yield {
            "family": name,
            "tokens": sum(map(len, found[device])),
            "check": check(found["cpu"] == found[device]),
        }


def draws(device: str, card: Card) -> Iterator[Row]:
    """Tokens that are drawn from equal logits, on the device and on the CPU."""
    rows, vocab = (64, 151_936) if device != "cpu" else (8, 1000)
    logits = torch.randn(rows, vocab, generator=torch.Generator().manual_seed(1)) * 3
    for name, (temperature, top_k, top_p, min_p) in {
        "greedy": (0.0, 0, 1.0, 0.0),
        "temperature": (1.0, 0, 1.0, 0.0),
        "top_k": (0.8, 50, 1.0, 0.0),
        "top_p": (0.8, 0, 0.9, 0.0),
        "min_p": (1.2, 0, 1.0, 0.05),
        "all": (0.8, 50, 0.9, 0.02),
    }.items():
        batch = SamplingBatch(
            seeds=np.arange(rows, dtype=np.uint64),
            positions=np.arange(rows, dtype=np.int64) + 100,
            temperature=np.full(rows, temperature, np.float32),
            top_k=np.full(rows, top_k, np.int64),
            top_p=np.full(rows, top_p, np.float32),
            min_p=np.full(rows, min_p, np.float32),
        )
        found = [
            Sampler(vocab, torch.device(own)).sample(logits.to(own), batch)[0].tolist()
            for own in ("cpu", device)
        ]
        equal = sum(map(int.__eq__, *found))
        yield {"draws": name, "rows": rows, "equal": equal, "check": check(equal == rows)}


def seconds(call: Callable[[], object], device: str, rounds: int = 20) -> float:
    """The median time of a call on the device."""
    for _ in range(3):
        call()
    times = []
    for _ in range(rounds if device != "cpu" else 3):
        if device == "cpu":
            begin = time.perf_counter()
            call()
            times.append(time.perf_counter() - begin)
            continue
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        call()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / 1e3)
    return sorted(times)[len(times) // 2]


@cache
def copy_bytes_per_s(device: str) -> float:
    """Bytes read and written each second by a copy of memory."""
    source = torch.zeros(1 << (30 if device != "cpu" else 24), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * source.numel() / seconds(partial(target.copy_, source), device)


def kernels(device: str, card: Card) -> Iterator[Row]:
    """Attention: decode as a share of the bandwidth of a copy in this run, prefill in TFLOP/s."""
    copied = copy_bytes_per_s(device)
    yield {"kernel": "copy", "TB/s": copied / 1e12, "target": card.copy_bytes_per_s / 1e12}
    if device == "cpu":
        return  # attention in Triton's interpreter would take minutes
    for streams, context in ((1, 16_384), (8, 8192), (32, 4096), (64, 4096)):
        took_s = _attention_s(device, streams, 1, context)
        share = 2 * 2 * streams * context * 8 * 128 / took_s / copied
        row = {"kernel": "decode", "work": f"{streams} of {context}", "µs": took_s * 1e6, "share": share}
        yield (
            row | {"target": DECODE_SHARE} | ({"check": check(share >= DECODE_SHARE)} if streams > 8 else {})
        )
    for length in (2048, 16_384):
        took_s = _attention_s(device, 1, length, length)
        tflops = 4 * 128 * 32 * length * (length + 1) / 2 / took_s / 1e12
        row = {"kernel": "prefill", "work": f"1 of {length}", "µs": took_s * 1e6, "TFLOP/s": tflops}
        yield (
            row
            | {"target": PREFILL_TFLOPS}
            | ({"check": check(tflops >= PREFILL_TFLOPS)} if length > 2048 else {})
        )


def parts(device: str, card: Card) -> Iterator[Row]:
    """Every section of the plan in a step of two layers, as the profiler tells the times of kernels."""
    if device == "cpu":
        return  # no kernels
    copied, layers = copy_bytes_per_s(device), 2
    here = replace(card, copy_bytes_per_s=copied)
    times: dict[tuple[str, Work], dict[str, float]] = {}
    for section in PLANNED:
        model = SPARSE if section.needs_experts else DENSE
        config, names = config_of(MODELS[model]), kernel_names(section.ops)
        if (model, section.work) not in times:
            times[model, section.work] = Steps(MODELS[model], section.work, layers).kernel_us()
        own = {name: each for name, each in times[model, section.work].items() if names.fullmatch(name)}
        took_us = sum(own.values()) / (layers if section.is_layer else 1)
        floor_us = here.floor_us(
            section.num_bytes(config, section.work), section.num_flops(config, section.work)
        )
        row = {"section": section.name, "µs": took_us, "at most µs": floor_us / section.share}
        yield row | {"share": floor_us / took_us if took_us else None, "target": section.share}


def _attention_s(device: str, streams: int, queries: int, context: int) -> float:
    """One layer of Qwen3-8B, over scattered pages."""
    pages = -(-context // PAGE_TOKENS)
    table = torch.randperm(streams * pages, device=device).int().view(streams, pages)
    q = torch.randn(streams * queries, 32, 128, dtype=torch.bfloat16, device=device)
    kv = torch.randn(streams * pages, PAGE_TOKENS, 2, 8, 128, dtype=torch.bfloat16, device=device)

    def ints(values: Any) -> Tensor:  # noqa: ANN401 - whatever makes an array
        return torch.as_tensor(np.asarray(values), dtype=torch.int32).to(device)

    starts, rows = ints(np.arange(streams + 1) * queries), ints(range(streams))
    positions = ints(np.tile(np.arange(context - queries, context), streams))
    step = DeviceStep(
        *(starts, ints([context] * streams), rows, table, positions, None),
        *(ints(range(streams)), [queries] * streams, [], context),
    )
    return seconds(partial(attention.paged_attention, q, kv, step, None), device)


SECTIONS: dict[str, Callable[[str, Card], Iterator[Row]]] = {
    "compile": compile_all,
    "values": values,
    "tokens": tokens,
    "draws": draws,
    "kernels": kernels,
    "parts": parts,
}
