"""The engine end to end on a device, with random weights: first right, then fast. Each function is a section.

A row is printed as soon as it is measured: `measured` beside what is asked at least and aimed at, both as
shares of the bandwidth of a copy in this run. A row that fails tells why, and the next one is tried.
"""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import msgspec
import torch

from backend.engine.engine import Engine
from backend.models.loaded import LoadedModel
from backend.types import Request, SamplingParams
from tests.bench.gpu.cards import Card
from tests.bench.gpu.jobs import START_S, Job, jobs, sized
from tests.bench.gpu.measures import check, copy_bytes_per_s
from tests.bench.gpu.models import open_engine, random_model, stored_model
from tests.bench.gpu.profiled import device_spans, idle_share
from tests.bench.gpu.shapes import SERVED, TINY_FAMILIES

Row = dict[str, Any]
Prompts = Sequence[Sequence[int]]

VARIANTS: dict[str, dict[str, bool]] = {
    "overlap on": {"is_ahead": True},
    "overlap off": {"is_ahead": False},
    "graphs off": {"has_graphs": False},
}
"""Options of ModelRunner, one a line, whose tokens must equal those of an engine as it is served."""

_IDLE_STEPS, _MOST_IDLE = 20, 0.03
_HELD = 1.3  # times the bytes of a format: then weights are held in another one


@dataclass
class Setting:
    """Where and how long a section runs."""

    device: str
    card: Card
    seconds: float  # what the section may take
    is_quick: bool = False
    begun_s: float = field(default_factory=time.monotonic)

    @property
    def left_s(self) -> float:
        """What is left of that."""
        return self.seconds - (time.monotonic() - self.begun_s)

    @property
    def is_tiny(self) -> bool:
        """Whether everything is so small that a CPU can do it."""
        return self.device == "cpu"

    @property
    def copied(self) -> float:
        """Bytes a copy reads and writes a second here."""
        return copy_bytes_per_s(self.device)

    @property
    def memory_bytes(self) -> float:
        """The device's; on a CPU that of the card that is asked for."""
        if self.is_tiny:
            return self.card.memory_bytes
        return float(torch.cuda.get_device_properties(self.device).total_memory)

    def jobs(self, section: str) -> list[Job]:
        """The rows of tokens per second of a section."""
        found = jobs(self.memory_bytes, is_quick=self.is_quick, is_tiny=self.is_tiny)
        return [job for job in found if job.section == section]


@dataclass
class Run:
    """What an engine did with some requests."""

    tokens: dict[str, list[int]]
    took_s: float  # from the first step to the last, or from the last first token where only decoding counts
    num_tokens: int  # in that time
    is_cut: bool = False


def requests(prompts: Prompts, answer: int) -> list[Request]:
    """Greedy requests for `answer` tokens each."""
    params = SamplingParams(max_tokens=answer, temperature=0.0, ignore_eos=True)
    return [
        Request(request_id=str(number), prompt_token_ids=list(prompt), params=params)
        for number, prompt in enumerate(prompts)
    ]


def predicted(asked: Sequence[Request], texts: dict[str, list[int]]) -> list[Request]:
    """The requests, each with its text as prediction."""
    return [
        msgspec.structs.replace(each, prediction_token_ids=list(texts[each.request_id])) for each in asked
    ]


def prompts_of(count: int, length: int, vocab: int, seed: int = 0) -> list[list[int]]:
    """Random prompts."""
    return [random.Random(1000 * seed + n).choices(range(vocab), k=length) for n in range(count)]


def drive(
    engine: Engine,
    asked: Sequence[Request],
    *,
    most_s: float = 1e9,
    is_decode: bool = False,
    probe: Callable[[Callable[[], None]], None] | None = None,
) -> Run:
    """Serve the requests together.

    `probe` is called once, half way, with what computes a step; its time and tokens do not count.
    """
    found: dict[str, list[int]] = {request.request_id: [] for request in asked}
    for request in asked:
        engine.add(request)
    half = sum(request.params.max_tokens for request in asked) // 2
    begin_s, begun, is_decoding, is_cut = time.perf_counter(), 0, not is_decode, False
    total, limit_s = 0, time.monotonic() + most_s

    def step() -> None:
        nonlocal total
        for output in engine.step():
            assert not output.error, output.error
            found[output.request_id] += output.token_ids
            total += len(output.token_ids)

    while engine.has_work:
        step()
        if not is_decoding and all(found.values()):
            begin_s, begun, is_decoding = time.perf_counter(), total, True
        if probe is not None and total >= half:
            before_s, before = time.perf_counter(), total
            probe(step)
            probe, begun = None, begun + total - before
            begin_s += time.perf_counter() - before_s
        if time.monotonic() > limit_s and engine.has_work:
            is_cut = True
            for request in asked:
                engine.abort(request.request_id)
    return Run(found, time.perf_counter() - begin_s, total - begun, is_cut)


def warm(engine: Engine, prompts: Prompts) -> None:
    """Compile what the load needs: all sequences at once, and the longest prompt."""
    drive(engine, requests([prompt[:16] for prompt in prompts], 4))
    drive(engine, requests(prompts[:1], 2))


def free() -> None:
    """Give memory back that nothing holds any more."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def attempted(name: str, make: Callable[[], Iterator[Row]]) -> Iterator[Row]:
    """The rows of `make`; a last one with the reason if it fails."""
    try:
        yield from make()
    except Exception as error:  # noqa: BLE001 - the compiler and the driver raise their own types
        reason = (str(error).strip().splitlines() or [""])[0][:300]
        yield {"row": name, "check": check(False), "note": f"{type(error).__name__}: {reason}"}
    free()


def skipped(name: str, work: str, reason: str) -> Row:
    """The row of what was not measured."""
    return {"row": name, "work": work, "check": "skipped", "note": reason}


def judged(name: str, work: str, measured: float, least: float, aim: float | None, note: str) -> Row:
    """A row whose figure is the better the higher it is."""
    reached = "aim" if aim is not None and measured >= aim else "ok" if measured >= least else "below"
    row = {"row": name, "work": work, "measured": measured, "at least": least, "aim": aim}
    return {**row, "of at least": measured / least, "check": reached, "note": note or None}


def equal(setting: Setting) -> Iterator[Row]:
    """Tokens of tiny models in float32 with each variant of the runner and with drafts, as without."""
    prompts = [[(7 * i + 3 * n) % 199 for i in range(length)] for n, length in enumerate((5, 40, 3, 21))]
    for family in ("llama", "mistral", "qwen3", "mixtral"):
        model = random_model(TINY_FAMILIES[family], setting.device, torch.float32, "cpu", 0.2)
        yield from attempted(family, partial(_equal, family, model, prompts))


def _equal(family: str, model: LoadedModel, prompts: Prompts) -> Iterator[Row]:
    count, length = 24, 80
    plain = drive(open_engine(model, len(prompts), length), requests(prompts, count)).tokens
    for name, options in VARIANTS.items():
        found = drive(open_engine(model, len(prompts), length, **options), requests(prompts, count)).tokens
        yield {"row": f"{family}, {name}", "work": f"{len(prompts)} texts", "check": check(found == plain)}
    for kind, change in (("right", 0), ("wrong", 1)):
        texts = {name: [(token + change) % 199 for token in text] for name, text in plain.items()}
        asked = predicted(requests(prompts, count), texts)
        found = drive(open_engine(model, len(prompts), length), asked).tokens
        row = {"row": f"{family}, {kind} predictions", "work": f"{len(prompts)} texts"}
        yield {**row, "check": check(found == plain)}


def alone(setting: Setting) -> Iterator[Row]:
    """One stream of an 8B model in each format."""
    return _load(setting, "alone")


def batch(setting: Setting) -> Iterator[Row]:
    """An 8B model with many streams, and how long the GPU idles between their steps."""
    return _load(setting, "batch")


def mixtral(setting: Setting) -> Iterator[Row]:
    """Mixtral-8x7B in FP8."""
    return _load(setting, "mixtral")


def large(setting: Setting) -> Iterator[Row]:
    """A model of 70B in FP8 with FP8 pages, on the larger card only."""
    if not setting.jobs("70b"):
        yield skipped("70B FP8, FP8 pages", "", "for cards of 100 GB and more")
    yield from _load(setting, "70b")


def _load(setting: Setting, section: str) -> Iterator[Row]:
    """Rows of tokens per second, each with a part of the time that is left."""
    own = setting.jobs(section)
    for number, job in enumerate(own):
        most_s = setting.left_s / (len(own) - number)
        if most_s < START_S and not setting.is_tiny:
            yield skipped(job.name, job.work, f"{most_s:.0f} s are left for it")
            continue
        yield from attempted(job.name, partial(_served, setting, job, most_s))


def _served(setting: Setting, asked: Job, most_s: float) -> Iterator[Row]:
    limit_s, copied = time.monotonic() + most_s, setting.copied
    asked = replace(asked, times_held=_times_held(setting, asked))
    held = f"weights take {asked.times_held:.1f} times the bytes of {asked.stored} here"
    notes = [held] if asked.times_held >= _HELD else []
    job, note = sized(asked, setting.memory_bytes)
    if job is None:
        yield skipped(asked.name, asked.work, "; ".join([note, *notes]))
        return
    model = stored_model(SERVED[job.model], job.stored, setting.device, job.kv_dtype)
    prompts = prompts_of(job.streams, job.prompt, model.config.vocab_size)
    engine = open_engine(model, job.streams, job.prompt + job.answer + 1)
    warm(engine, prompts)
    spans: list[tuple[float, float]] = []

    def probe(step: Callable[[], None]) -> None:
        spans.extend(device_spans(step, _IDLE_STEPS))

    wants_idle = job.section == "batch" and not setting.is_tiny
    run = drive(
        engine,
        requests(prompts, job.answer),
        most_s=limit_s - time.monotonic(),
        is_decode=job.is_decode,
        probe=probe if wants_idle else None,
    )
    mean = run.num_tokens / job.streams
    least, aim = job.targets(mean, copied, setting.card)
    notes.insert(0, note)
    if run.is_cut:
        notes.append(f"cut after {mean:.0f} tokens each, which the targets allow for")
    measured = run.num_tokens / run.took_s
    floor_s = job.floor_s(mean, copied, setting.card)
    row = judged(job.name, job.work, measured, least, aim, "; ".join(filter(None, notes)))
    yield {**row, "unit": "tok/s", "share of roofline": floor_s / run.took_s}
    if wants_idle:
        idle = idle_share(spans)
        work = f"{_IDLE_STEPS} steps of {job.streams}"
        yield judged("GPU busy between steps", work, 1 - idle, 1 - _MOST_IDLE, None, "") | {"unit": "share"}
    if job.name.startswith("8B bf16, one"):
        engine.close()
        free()
        count = min(64, job.answer)
        off = drive(open_engine(model, 1, job.prompt + 65, is_ahead=False), requests(prompts, count)).tokens
        is_equal = off["0"] == run.tokens["0"][:count]
        yield {"row": "8B bf16, overlap off", "work": f"{count} tokens", "check": check(is_equal)}


def _bytes_of_a_layer(setting: Setting, job: Job) -> float:
    """What the device holds of a layer's weights: two layers less one."""
    used = []
    for count in (1, 2):
        free()
        before = torch.cuda.memory_allocated()
        shape = {**SERVED[job.model], "num_hidden_layers": count}
        model = stored_model(shape, job.stored, setting.device, job.kv_dtype)
        free()
        used.append(torch.cuda.memory_allocated() - before)
        del model
    free()
    return float(used[1] - used[0])


def _times_held(setting: Setting, job: Job) -> float:
    """Bytes that the device holds of a layer, as a multiple of those of the format."""
    if setting.is_tiny or job.stored == "bf16":
        return 1.0
    return _bytes_of_a_layer(setting, job) / job.layer_bytes
