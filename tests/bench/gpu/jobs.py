"""What is served end to end: models, work and targets, and what a card's memory holds of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from backend.config import KVDtypeName, ModelConfig
from tests.bench.gpu.cards import CARDS, Card
from tests.bench.gpu.sections import step_bytes, step_flops
from tests.bench.gpu.shapes import SERVED, config_of
from tests.bench.gpu.trace import Work

Row = dict[str, Any]
MEMORY_SHARE, STEP_BYTES = 0.9, 3e9
"""What weights, KV memory and a step may take of a card, and what of that is the step's."""

START_S = 12.0
"""Import of torch, random weights and first launches of a model."""

_BYTES = {"bf16": 2.0, "fp8": 1.0, "int4": 0.5 + 2 / 128}
_LARGER_CARD_BYTES = 100e9
_H200 = CARDS["h200"].copy_bytes_per_s


@dataclass(frozen=True)
class Job:
    """One model with one load, and what is asked of it."""

    name: str
    section: str
    model: str
    stored: str  # bf16, fp8 or int4
    streams: int
    prompt: int
    answer: int
    at_least: float  # a share of the roofline's rate; or tokens per second of an H200, by bandwidth on others
    aim: float
    kv_dtype: KVDtypeName = "bfloat16"
    times_held: float = 1.0  # bytes of a layer on the device, as a multiple of those of the format
    is_decode: bool = False  # only the time between the first token and the last counts

    @property
    def config(self) -> ModelConfig:
        """The model's shape."""
        return _config(self.model)

    @property
    def work(self) -> str:
        """How the load is shown."""
        return f"{self.streams} x {self.prompt}/{self.answer}"

    @property
    def weight_bytes(self) -> float:
        """All weights as they are held; embedding and head have 16 bits."""
        config = self.config
        tables = 2 * config.vocab_size * config.hidden_size
        return self.times_held * self.layer_bytes * config.num_layers + 2 * tables

    @property
    def layer_bytes(self) -> float:
        """The weights of one layer in their format."""
        return self._layers(1 << 20) * _BYTES[self.stored] / self.config.num_layers

    @property
    def token_bytes(self) -> float:
        """Keys and values of a token."""
        attention = self.config.attention
        head = attention.head_dim + 2 if self.kv_dtype in ("fp8", "int8") else 2 * attention.head_dim
        return 2.0 * self.config.num_layers * attention.num_kv_heads * head

    @property
    def needed_bytes(self) -> float:
        """Weights, KV memory and a step."""
        return (
            self.weight_bytes
            + self.streams * (self.prompt + self.answer + 16) * self.token_bytes
            + STEP_BYTES
        )

    def decode_bytes(self, context: float) -> float:
        """What a step reads that decodes all streams."""
        config = self.config
        weights = self._layers(self.streams) * _BYTES[self.stored]
        head = 2.0 * config.vocab_size * config.hidden_size + 4.0 * self.streams * config.vocab_size
        return weights + head + self.streams * context * self.token_bytes

    def floor_s(self, answer: float, copied: float, card: Card) -> float:
        """The least time of prompts and `answer` tokens for each stream, by bandwidth and FLOPs."""
        context = self.prompt + answer / 2
        flops = step_flops(self.config, Work(self.streams, context=int(context)))
        step_s = max(self.decode_bytes(context) / copied, flops / card.flops_per_s)
        prompts = step_flops(self.config, Work(self.streams, self.prompt, self.prompt)) / card.flops_per_s
        return answer * step_s + (0.0 if self.is_decode else prompts)

    def targets(self, answer: float, copied: float, card: Card) -> tuple[float, float]:
        """Tokens per second at least, and those aimed at."""
        if self.at_least > 1:
            return self.at_least * copied / _H200, self.aim * copied / _H200
        roof = self.streams * answer / self.floor_s(answer, copied, card)
        return self.at_least * roof, self.aim * roof

    def seconds(self, copied: float, card: Card) -> float:
        """How long the row takes where it gives what is asked at least."""
        return START_S + self.streams * self.answer / self.targets(self.answer, copied, card)[0]

    def _layers(self, tokens: int) -> float:
        """Elements of all layers' weights that this number of tokens reaches."""
        config, none = self.config, Work(tokens, context=0)
        rest = 4.0 * tokens * config.vocab_size + 2.0 * config.vocab_size * config.hidden_size
        return (step_bytes(config, none) - rest) / 2


@cache
def _config(model: str) -> ModelConfig:
    return config_of(SERVED[model])


def sized(job: Job, memory_bytes: float, least: int = 1) -> tuple[Job | None, str]:
    """The job with as many streams as fit, and what was changed; None and the reason where none does."""
    room = MEMORY_SHARE * memory_bytes
    if job.needed_bytes <= room:
        return job, ""
    each = (job.prompt + job.answer + 16) * job.token_bytes
    fitting = int((room - job.weight_bytes - STEP_BYTES) // each)
    fitting -= fitting % 8 if fitting > 8 else 0
    if fitting < least:
        asked = f"{job.needed_bytes / 1e9:.0f} GB for {job.streams} streams"
        return None, f"needs {asked}; {MEMORY_SHARE:.0%} of this card's memory are {room / 1e9:.0f} GB"
    return replace(
        job, streams=fitting
    ), f"{fitting} of {job.streams} streams: the card's memory holds no more"


def jobs(memory_bytes: float, *, is_quick: bool = False, is_tiny: bool = False) -> list[Job]:
    """All rows of tokens per second for a card; `is_tiny` makes them small enough for a CPU."""
    is_large = memory_bytes >= _LARGER_CARD_BYTES
    count, length = (256 if is_large else 128), (256 if is_quick else 1024)
    alone: dict[str, Any] = {"streams": 1, "prompt": 128, "answer": 256, "is_decode": True}
    thousand: dict[str, Any] = {"streams": 256, "prompt": 1000, "answer": 1000, "stored": "fp8"}
    found = [
        Job("8B bf16, one stream", "alone", "Llama-3.1-8B", "bf16", at_least=0.78, aim=0.9, **alone),
        Job("8B FP8, one stream", "alone", "Llama-3.1-8B", "fp8", at_least=0.6, aim=0.75, **alone),
        Job("8B int4, one stream", "alone", "Llama-3.1-8B", "int4", at_least=0.45, aim=0.65, **alone),
        Job("8B bf16, many streams", "batch", "Qwen3-8B", "bf16", count, length, length, 0.6, 0.75),
        Job("Mixtral FP8", "mixtral", "Mixtral-8x7B", at_least=7000, aim=10_000, **thousand),
    ]
    if is_large:
        big = {"kv_dtype": "fp8", "at_least": 2100, "aim": 2900}
        found.append(Job("70B FP8, FP8 pages", "70b", "Llama-3.1-70B", **big, **thousand))
    if not is_tiny:
        return found
    small = {"prompt": 12, "answer": 6}
    return [
        replace(
            job,
            model="tiny-experts" if job.section == "mixtral" else "tiny-wide",
            streams=min(job.streams, 3),
            kv_dtype="auto" if job.kv_dtype == "bfloat16" else job.kv_dtype,
            **small,
        )
        for job in found
    ]


def plan_rows(card: Card) -> list[Row]:
    """What would be served on a card, with predicted figures."""
    rows = []
    for asked in jobs(card.memory_bytes):
        job, note = sized(asked, card.memory_bytes)
        row: Row = {"row": asked.name, "section": asked.section, "model": asked.model, "stored": asked.stored}
        if job is None:
            rows.append({**row, "work": asked.work, "note": note})
            continue
        least, aim = job.targets(job.answer, card.copy_bytes_per_s, card)
        rows.append(
            {
                **row,
                "work": job.work,
                "weights GB": job.weight_bytes / 1e9,
                "KV GB": (job.needed_bytes - job.weight_bytes - STEP_BYTES) / 1e9,
                "GB a step": job.decode_bytes(job.prompt + job.answer / 2) / 1e9,
                "at least tok/s": least,
                "aim tok/s": aim,
                "seconds": job.seconds(card.copy_bytes_per_s, card),
                "note": note or None,
            }
        )
    return rows
