"""The embedded model with its adapters, the plain path, and engines that write down what they do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from llguidance import LLMatcher

from backend.config import EngineConfig, SpeculativeConfig
from backend.engine.base import StepResult
from backend.engine.capacity import runner_facts
from backend.engine.engine import Engine
from backend.engine.runner import ModelRunner
from backend.lora.store import AdapterLimits, AdapterStore
from backend.models import load_model
from backend.speculative.prediction import PredictionDrafter
from backend.structured.compiler import GrammarCompiler
from backend.tokenizer import Tokenizer
from backend.types import GrammarSpec, Plan, Request, ScheduledChunk, StepOutput
from backend.types import Sequence as EngineSequence

WEIGHTS = Path(__file__).parents[4] / "backend/pico/weights"
PICO = WEIGHTS / "pico-small"
ADAPTERS = ("json", "german", "codewords")
_STEP_S = 0.001


@dataclass(slots=True)
class Record:
    """What an engine did."""

    outputs: dict[str, list[StepOutput]] = field(default_factory=dict)
    sequences: dict[str, EngineSequence] = field(default_factory=dict)
    steps: list[list[ScheduledChunk]] = field(default_factory=list)
    verified: dict[str, list[tuple[int, int]]] = field(
        default_factory=dict
    )  # (drafted, accepted) of a drafter

    def tokens(self, name: str) -> list[int]:
        return [token for output in self.outputs[name] for token in output.token_ids]

    def chunks(self, name: str) -> list[ScheduledChunk]:
        return [c for step in self.steps for c in step if c.sequence.request.request_id == name]


class RecordingRunner(ModelRunner):
    """Notes every plan."""

    record: Record

    def run(self, plan: Plan) -> StepResult:
        self.record.steps.append(plan.chunks)
        return super().run(plan)


class RecordingDrafter(PredictionDrafter):
    """Notes what became of its drafts; those that a grammar forces are not its own."""

    record: Record

    def observe(self, sequence: EngineSequence, num_drafted: int, num_accepted: int) -> None:
        found = self.record.verified.setdefault(sequence.request.request_id, [])
        found.append((num_drafted, num_accepted))
        super().observe(sequence, num_drafted, num_accepted)


class ReadyCompiler(GrammarCompiler):
    """Grammars are there at once: what a step does must not depend on how fast they are compiled."""

    def submit(self, spec: GrammarSpec) -> Future[LLMatcher]:
        found = super().submit(spec)
        wait([found])
        return found


class Clock:
    """Steps take what they always take, so that plans are the same on any machine."""

    def __init__(self) -> None:
        self._now_s = 0.0

    def __call__(self) -> float:
        self._now_s += _STEP_S
        return self._now_s


class Stage:
    """One set of weights and adapters; engines of any shape; plain answers, computed once each."""

    def __init__(self) -> None:
        self.tokenizer = Tokenizer.from_checkpoint(PICO)
        self._config = self._configure()
        self._model = load_model(self._config)
        facts = runner_facts(self._config, self._model)
        self.compiler = ReadyCompiler(PICO, facts.vocab_size, facts.eos_token_ids)
        self._store = AdapterStore(self._model.sites, AdapterLimits(), self._model.dtype, self._model.device)
        infos = [self._store.load_now(name, WEIGHTS / "adapters" / name) for name in ADAPTERS]
        self.adapters = [info.digest for info in infos]
        self._plain: dict[bytes, Record] = {}

    def close(self) -> None:
        self.compiler.close()
        self._store.close()

    def engine(self, record: Record, **changes: object) -> Engine:
        """An engine that writes into `record`."""
        config = self._configure(**changes)
        facts = runner_facts(config, self._model)
        storage = self._model.new_kv_storage(facts.num_pages)
        runner = RecordingRunner(self._model, storage, facts, config.max_running, self._store)
        drafter = RecordingDrafter()
        runner.record = drafter.record = record
        return Engine(
            config, runner, Clock(), drafters=[drafter], adapters=self._store, grammars=self.compiler
        )

    def plain(self, request: Request) -> Record:
        """The request by itself, with everything off that it did not ask for."""
        bare = msgspec.structs.replace(request, request_id="plain", prediction_token_ids=[])
        key = msgspec.msgpack.encode(bare)
        if key not in self._plain:
            record = Record()
            engine = self.engine(record, prefix_cache=False)
            engine.speculator.constraint = None
            play(engine, record, [bare])
            lengths = [chunk.num_tokens for chunk in record.chunks("plain")]
            assert lengths == [len(request.prompt_token_ids)] + [1] * (len(lengths) - 1), "that is not plain"
            self._plain[key] = record
        return self._plain[key]

    @staticmethod
    def _configure(**changes: object) -> EngineConfig:
        values: dict[str, object] = {"max_running": 8, "num_pages": 256, "max_batch_tokens": 512} | changes
        return EngineConfig(
            model="pico",
            checkpoint=str(PICO),
            device="cpu",
            dtype="float32",
            speculative=SpeculativeConfig(adaptive=False),
            **values,  # type: ignore[arg-type]
        )


def play(
    engine: Engine,
    record: Record,
    requests: Sequence[Request],
    is_cancelled: Callable[[Record, str], bool] = lambda record, name: False,
) -> None:
    """Run until nothing is left; after each step those are aborted of whom `is_cancelled` says so."""
    for request in requests:
        engine.add(request)
        record.outputs[request.request_id] = []
        record.sequences[request.request_id] = engine._active[request.request_id].sequence
    while engine.has_work:
        for output in engine.step():
            record.outputs[output.request_id].append(output)
        for name in [name for name in record.sequences if is_cancelled(record, name)]:
            assert engine.abort(name)
        engine.scheduler.check_invariants()
