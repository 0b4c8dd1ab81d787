"""What features of the engine cost and gain on a device: drafts, adapters and prefix hits, as ratios."""

from __future__ import annotations

import json
import tempfile
import zlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors.torch import save_file

from backend.engine.engine import Engine
from backend.lora.store import AdapterLimits, AdapterStore
from backend.models.loaded import LoadedModel
from tests.bench.gpu.measures import check
from tests.bench.gpu.models import open_engine, stored_model
from tests.bench.gpu.served import (
    Run,
    Setting,
    attempted,
    drive,
    free,
    judged,
    predicted,
    prompts_of,
    requests,
    warm,
)
from tests.bench.gpu.shapes import SERVED

Row = dict[str, Any]

RANK, PROJECTIONS = 16, ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
DRAFTS = ((1, 7.0, 10.0), (32, 2.5, 3.5))
"""Streams with right predictions; times the tokens per second without, at least and aimed at."""

ADAPTERS = ((0, 0.995), (1, 0.97), (8, 0.9))
"""Adapters in a batch; share of the tokens per second without, at least."""

PREFIXES = ((0.0, 0.99), (0.75, 2.5))
"""Share of a prompt that is cached; times the requests per second without cache, at least."""


def _model(setting: Setting) -> LoadedModel:
    name = "tiny-wide" if setting.is_tiny else "Llama-3.1-8B"
    return stored_model(SERVED[name], "bf16", setting.device, "auto")


def drafts(setting: Setting) -> Iterator[Row]:
    """Right predictions at 1 and 32 streams, in tokens per second without drafts."""
    model = _model(setting)
    for streams, least, aim in DRAFTS:
        name = f"right predictions, {streams} streams"
        yield from attempted(name, partial(_drafts, setting, model, name, (streams, least, aim)))


def _drafts(
    setting: Setting, model: LoadedModel, name: str, asked: tuple[int, float, float]
) -> Iterator[Row]:
    streams, least, aim = asked
    prompt, answer = (12, 24) if setting.is_tiny else (128, 256)
    prompts = prompts_of(streams, prompt, model.config.vocab_size)
    engine = open_engine(model, streams, prompt + answer + 32)
    warm(engine, prompts)
    plain = drive(engine, requests(prompts, answer), most_s=setting.left_s / 3, is_decode=True)

    def drafted() -> Run:
        wanted = predicted(requests(prompts, answer), plain.tokens)
        return drive(engine, wanted, most_s=setting.left_s / 2, is_decode=True)

    drafted()  # lengths of drafts are learnt, widths of steps compiled
    found = drafted()
    if not plain.is_cut:
        is_equal = found.is_cut or found.tokens == plain.tokens
        yield {"row": f"{name}, tokens", "work": f"{streams} x {answer}", "check": check(is_equal)}
    speeds = [run.num_tokens / run.took_s for run in (found, plain)]
    note = f"{speeds[0]:.0f} and {speeds[1]:.0f} tok/s"
    yield judged(name, f"{streams} x {prompt}/{answer}", speeds[0] / speeds[1], least, aim, note) | {
        "unit": "x"
    }


def adapters(setting: Setting) -> Iterator[Row]:
    """Adapters of rank 16 in all projections of 32 streams: there but unused, one, and eight."""
    model = _model(setting)
    with tempfile.TemporaryDirectory() as folder:
        yield from attempted("adapters", partial(_adapters, setting, model, Path(folder)))


def _adapters(setting: Setting, model: LoadedModel, folder: Path) -> Iterator[Row]:
    streams, prompt, answer, rounds = (8, 8, 6, 1) if setting.is_tiny else (32, 64, 128, 3)
    base = open_engine(model, streams, prompt + answer + 1)
    limits = AdapterLimits(num_slots=8, host_bytes=4 << 30)
    store = AdapterStore(model.sites, limits, model.dtype, model.device)
    digests = [
        store.load_now(f"a{i}", _write_adapter(folder / f"a{i}", model, seed=i)).digest for i in range(8)
    ]
    cases: dict[int, tuple[Engine, list[str]]] = {-1: (base, [""])}
    for count, _ in ADAPTERS:
        cases[count] = open_engine(model, streams, prompt + answer + 1, store), digests[:count] or [""]
    prompts = prompts_of(streams, prompt, model.config.vocab_size)
    speeds: dict[int, list[float]] = {count: [] for count in cases}
    for round_ in range(rounds + 1):
        for count, (engine, used) in cases.items():
            asked = [
                msgspec.structs.replace(request, adapter=used[number % len(used)])
                for number, request in enumerate(requests(prompts, answer))
            ]
            run = drive(engine, asked, most_s=setting.left_s, is_decode=True)
            if round_:  # the first one compiles
                speeds[count].append(run.num_tokens / run.took_s)
    store.close()
    for count, least in ADAPTERS:
        share = max(speeds[count]) / max(speeds[-1])
        name = f"{count} adapters of rank {RANK}" if count else f"adapters of rank {RANK}, unused"
        note = f"{max(speeds[count]):.0f} and {max(speeds[-1]):.0f} tok/s"
        yield judged(name, f"{streams} x {prompt}/{answer}", share, least, None, note) | {"unit": "share"}


def _write_adapter(folder: Path, model: LoadedModel, seed: int) -> Path:
    """An adapter in PEFT's format, with random weights in bfloat16."""
    folder.mkdir()
    tensors = {}
    sites = {name: site for name, site in model.sites.items() if name.endswith(PROJECTIONS)}
    for name, site in sites.items():
        generator = torch.Generator(model.device).manual_seed(seed + zlib.crc32(name.encode()))
        for part, shape in (("lora_A", (RANK, site.in_features)), ("lora_B", (site.columns, RANK))):
            made = torch.empty(shape, dtype=torch.bfloat16, device=model.device)
            made.normal_(0.0, 0.01, generator=generator)
            tensors[f"base_model.model.{name}.{part}.weight"] = made.cpu()
    save_file(tensors, folder / "adapter_model.safetensors")
    values = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": "m",
        "r": RANK,
        "lora_alpha": RANK,
        "bias": "none",
        "target_modules": list(PROJECTIONS),
    }
    (folder / "adapter_config.json").write_text(json.dumps(values))
    return folder


def prefix(setting: Setting) -> Iterator[Row]:
    """Prompts of which nothing is cached, and three quarters: requests per second, in those without cache."""
    model = _model(setting)
    yield from attempted("prefix hits", partial(_prefix, setting, model))


def _prefix(setting: Setting, model: LoadedModel) -> Iterator[Row]:
    streams, prompt, answer, rounds = (2, 128, 2, 1) if setting.is_tiny else (32, 2048, 8, 2)
    vocab = model.config.vocab_size
    pages = {"num_pages": 4 * streams * (-(-(prompt + answer) // 16) + 1)}
    for share, least in PREFIXES:
        seconds: dict[bool, list[float]] = {True: [], False: []}
        num_hit = 0
        for is_cached, took_s in seconds.items():
            values = {"prefix_cache": is_cached, **pages}
            engine = open_engine(model, streams, prompt + answer + 1, settings=values)
            for round_ in range(rounds + 1):
                (shared,) = prompts_of(1, int(share * prompt), vocab, seed=900 + round_)
                own = prompts_of(streams, prompt - len(shared), vocab, seed=100 + round_)
                if shared:
                    drive(engine, requests([[*shared, 1]], 1))
                num_hit = -engine.kv.prefix_hit_tokens_total
                asked = requests([[*shared, *each] for each in own], answer)
                run = drive(engine, asked, most_s=setting.left_s)
                num_hit += engine.kv.prefix_hit_tokens_total
                if round_:  # the first one compiles
                    took_s.append(run.took_s)
            if is_cached:
                is_right = num_hit == streams * len(shared)
                row = {"row": f"prefix hits of {share:.0%}, tokens", "work": f"{num_hit} hit"}
                yield {**row, "check": check(is_right)}
            engine.close()
            free()
        name = f"prefix hits of {share:.0%}"
        note = f"{1e3 * min(seconds[True]):.0f} and {1e3 * min(seconds[False]):.0f} ms"
        ratio = min(seconds[False]) / min(seconds[True])
        yield judged(name, f"{streams} x {prompt}/{answer}", ratio, least, None, note) | {"unit": "x"}
