"""An embedded model with its adapters, the plain path, and engines that write down what they do."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest

from backend.config import EngineConfig, SpeculativeConfig
from backend.engine.capacity import runner_facts
from backend.engine.engine import Engine
from backend.engine.runner import ModelRunner
from backend.kv.storage import KVStorage
from backend.lora.store import AdapterLimits, AdapterStore
from backend.models import precision
from backend.parallel.mirror import MirroredModel, open_model
from backend.speculative.draft_model import DraftModelDrafter
from backend.speculative.drafter import Capture, Drafter
from backend.speculative.late import LateDrafts
from backend.speculative.loading import LoadedDrafters, OpenDrafters, load_drafters
from backend.speculative.ngram import NgramDrafter
from backend.speculative.prediction import PredictionDrafter
from backend.speculative.suffix import SuffixDrafter
from backend.structured.compiled_grammar import CompiledGrammar
from backend.structured.compiler import GrammarCompiler
from backend.tokenizer import Tokenizer
from backend.types import Draft, GrammarSpec, Plan, Request, ScheduledChunk, StepOutput
from backend.types import Sequence as EngineSequence

WEIGHTS = Path(__file__).parents[4] / "backend/pico/weights"
PICO_SMALL, PICO_LARGE, HYBRID, LATENT = "pico-small", "pico-large", "hybrid", "latent"
ADAPTERS = {
    PICO_SMALL: ("json", "german", "codewords"),
    PICO_LARGE: ("json-large",),
    HYBRID: ("inputs", "gates", "all"),
    LATENT: ("down", "up", "all"),
}
FLOAT32: Mapping[str, object] = {"dtype": "float32"}
BFLOAT16: Mapping[str, object] = {"dtype": "auto", "kv_dtype": "bfloat16"}
"""Weights, keys and values in 16 bits, and products that round their inputs to 16 where processors do."""
INT8_PAGES: Mapping[str, object] = {"dtype": "float32", "kv_dtype": "int8"}

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

    def begin(self) -> None:
        """What was computed until now was only to prepare."""
        self.steps.clear()
        self.verified.clear()


class RecordingRunner(ModelRunner):
    """Notes every plan."""

    record: Record

    def launch(self, plan: Plan) -> Any:  # noqa: ANN401
        self.record.steps.append(plan.chunks)
        return super().launch(plan)


@dataclass(slots=True)
class RecordingDrafter:
    """Notes what became of another's drafts; those that a grammar forces are not its own."""

    inner: Drafter
    record: Record

    @property
    def name(self) -> str:
        return self.inner.name

    @property
    def is_cheap(self) -> bool:
        return self.inner.is_cheap

    @property
    def capture(self) -> Capture:
        """Its own, if it has any: else this is no CapturingDrafter either."""
        found: Capture = self.inner.capture  # type: ignore[attr-defined]
        return found

    def propose(self, sequences: list[EngineSequence], ks: list[int]) -> Iterable[Draft]:
        return self.inner.propose(sequences, ks)

    def observe(self, sequence: EngineSequence, num_drafted: int, num_accepted: int) -> None:
        found = self.record.verified.setdefault(sequence.request.request_id, [])
        found.append((num_drafted, num_accepted))
        self.inner.observe(sequence, num_drafted, num_accepted)

    def forget(self, sequence: EngineSequence) -> None:
        self.inner.forget(sequence)

    def drop_cached(self) -> None:
        self.inner.drop_cached()


class Silent(NgramDrafter):
    """Never has a guess."""

    def _propose(self, sequence: EngineSequence, k: int) -> list[int]:
        return []


class OthersDrafter(SuffixDrafter):
    """Looks at other requests' outputs alone, never at the sequence's own text."""

    def __init__(self) -> None:
        super().__init__()
        self._own = Silent()


WITHOUT_WEIGHTS: Mapping[str, Callable[[], Drafter]] = {
    "prediction": PredictionDrafter,
    "ngram": NgramDrafter,
    "suffix": OthersDrafter,
}


class ReadyCompiler(GrammarCompiler):
    """Grammars are there at once: what a step does must not depend on how fast they are compiled."""

    def submit(self, spec: GrammarSpec, tenant: str = "") -> Future[CompiledGrammar]:
        found = super().submit(spec, tenant)
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

    def __init__(
        self,
        model: str,
        dtypes: Mapping[str, object] = FLOAT32,
        folder: Path = WEIGHTS,
        alone: Stage | None = None,
    ) -> None:
        """`alone`: who gives the plain answers, for an engine of several ranks; None: this one."""
        checkpoint = folder / model
        self.tokenizer = Tokenizer.from_checkpoint(checkpoint)
        self._checkpoint, self._dtypes = checkpoint, dtypes
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(precision, "is_small", lambda model: False)  # products are those of larger models
            self._model = open_model(self._configure())
        facts = runner_facts(self._configure(), self._model)
        self.compiler = ReadyCompiler(checkpoint, facts.vocab_size, facts.eos_token_ids)
        limits, own = AdapterLimits(), self._model
        placement = own.placement(limits.num_slots) if isinstance(own, MirroredModel) else None
        self._store = AdapterStore(own.sites, limits, own.dtype, own.device, placement=placement)
        self._alone = alone
        infos = [self._store.load_now(name, folder / "adapters" / name) for name in ADAPTERS[model]]
        self.adapters = [info.digest for info in infos]
        self._drafters: dict[str, LoadedDrafters] = {}
        self._plain: dict[bytes, Record] = {}

    def close(self) -> None:
        self.compiler.close()
        self._store.close()
        if isinstance(self._model, MirroredModel):
            self._model.close()

    def engine(
        self, record: Record, drafter: str = "prediction", *, is_ahead: bool = False, **changes: object
    ) -> Engine:
        """An engine with this drafter that writes into `record`."""
        config = self._configure(**changes)
        facts = runner_facts(config, self._model)
        storage = self._model.new_kv_storage(facts.num_pages, facts.num_states)
        runner = RecordingRunner(self._model, storage, facts, config.max_running, self._store, is_ahead)
        opened = self._open(drafter, config, storage, runner.late if is_ahead else None)
        runner.observers += opened.observers
        drafters = [RecordingDrafter(each, record) for each in opened.drafters]
        runner.record = record
        return Engine(
            config, runner, Clock(), drafters=drafters, adapters=self._store, grammars=self.compiler
        )

    def _open(
        self, drafter: str, config: EngineConfig, storage: KVStorage, late: LateDrafts | None
    ) -> OpenDrafters:
        if drafter in WITHOUT_WEIGHTS:
            return OpenDrafters([WITHOUT_WEIGHTS[drafter]()], [])
        if drafter not in self._drafters:
            self._drafters[drafter] = load_drafters(config, self._model)
        return self._drafters[drafter].open(storage, late=late, is_ahead=late is not None)

    def plain(self, request: Request) -> Record:
        """The request by itself, with everything off that it did not ask for."""
        if self._alone is not None:
            return self._alone.plain(request)
        bare = msgspec.structs.replace(request, request_id="plain", prediction_token_ids=[], draft=None)
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

    def _configure(self, **changes: object) -> EngineConfig:
        values: dict[str, object] = {
            "max_running": 8,
            "num_pages": 256,
            "max_batch_tokens": 512,
            "speculative": SpeculativeConfig(adaptive=False),
        }
        return EngineConfig(
            model="pico",
            checkpoint=str(self._checkpoint),
            device="cpu",
            **(values | self._dtypes | changes),  # type: ignore[arg-type]
        )


def check_nothing_is_left(engine: Engine) -> None:
    """All pages are free, a draft model's too."""
    assert engine.kv.free_pages == engine.kv.num_pages
    for drafter in engine.speculator._drafters.values():
        if isinstance(drafter, RecordingDrafter) and isinstance(drafter.inner, DraftModelDrafter):
            assert drafter.inner.kv.free_pages == drafter.inner.kv.num_pages


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
