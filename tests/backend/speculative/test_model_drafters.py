"""All drafters with weights in one engine and one batch, beside adapters and grammars: no answer changes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from backend.config import EngineConfig, SpeculativeConfig
from backend.engine.capacity import runner_facts
from backend.engine.engine import Engine
from backend.engine.runner import ModelRunner
from backend.lora.store import AdapterLimits, AdapterStore
from backend.models.loaded import LoadedModel, load_model
from backend.pico.drafters.store import new_drafter, save_drafter
from backend.pico.drafters.target import load_target
from backend.speculative.draft_model import DraftModelDrafter
from backend.speculative.eagle import EagleDrafter
from backend.speculative.loading import load_drafters
from backend.speculative.weights_check import DRAFT_MODEL, HEADS, MODEL_DRAFTERS
from backend.structured.compiler import GrammarCompiler
from backend.tokenizer import Tokenizer
from backend.types import DraftOptions, GrammarSpec, Request, SamplingParams, StepOutput
from tests.backend.engine.driving import run
from tests.backend.speculative.head_cases import make_pair
from tests.backend.speculative.model_targets import load, new_engine, requests, write_model
from tests.backend.speculative.recording import RecordingDrafter

WEIGHTS = Path(__file__).parents[3] / "backend/pico/weights"
PICO = WEIGHTS / "pico-small"
QUESTIONS = (
    "Sort these numbers in ascending order: 41, 7, 93, 18, 66, 25, 80, 3.",
    "Give me the data as JSON: Anna Smith is 34 years old and lives in Rome.",
)
LETTERS = GrammarSpec(kind="regex", text="[a-z ]{12,60}")


@dataclass
class Stage:
    """pico-small, adapters, its own copy as draft model, and untrained heads."""

    model: LoadedModel
    tokenizer: Tokenizer
    compiler: GrammarCompiler
    store: AdapterStore
    adapters: list[str]
    folders: dict[str, str]

    def engine(self, drafter: str = "none", **changes: object) -> Engine:
        values = {"max_running": 12, "num_pages": 512, "max_batch_tokens": 64} | changes
        config = EngineConfig(
            model="t",
            checkpoint=str(PICO),
            device="cpu",
            dtype="float32",
            speculative=SpeculativeConfig(
                drafter=drafter, max_tokens=4, adaptive=False, folders=self.folders
            ),
            **values,  # type: ignore[arg-type]
        )
        facts = runner_facts(config, self.model)
        storage = self.model.new_kv_storage(facts.num_pages)
        runner = ModelRunner(self.model, storage, facts, config.max_running, self.store)
        opened = load_drafters(config, self.model).open(storage)
        runner.observers += opened.observers
        return Engine(config, runner, drafters=opened.drafters, adapters=self.store, grammars=self.compiler)

    def requests(self, drafters: tuple[str, ...], **params: object) -> list[Request]:
        """Each question for each drafter, one in three with an adapter, one in three with a grammar."""
        asked: list[Request] = []
        for number, (drafter, text) in enumerate((d, t) for d in drafters for t in QUESTIONS):
            values = {"max_tokens": 20, "temperature": 0.8, "seed": number} | params
            asked.append(
                Request(
                    request_id=f"{drafter} {number}",
                    prompt_token_ids=self.tokenizer.encode_chat([{"role": "user", "content": text}]),
                    params=SamplingParams(**values),  # type: ignore[arg-type]
                    adapter=self.adapters[number % 2] if number % 3 == 0 else "",
                    grammar=LETTERS if number % 3 == 1 else None,
                    draft=DraftOptions(drafter=drafter),
                )
            )
        return asked


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    target, folders = load_target(PICO), {DRAFT_MODEL: str(PICO)}
    for name in HEADS:
        folder = tmp_path_factory.mktemp(name)
        save_drafter(new_drafter(name, target, 1), PICO, folder)
        folders[name] = str(folder)
    model = load_model(EngineConfig(model="t", checkpoint=str(PICO), device="cpu", dtype="float32"))
    store = AdapterStore(model.sites, AdapterLimits(), model.dtype, model.device)
    infos = [store.load_now(name, WEIGHTS / "adapters" / name) for name in ("json", "codewords")]
    compiler = GrammarCompiler(PICO, model.config.vocab_size, frozenset({2}))
    yield Stage(model, Tokenizer.from_checkpoint(PICO), compiler, store, [i.digest for i in infos], folders)
    compiler.close()
    store.close()


def answers(found: dict[str, list[StepOutput]]) -> dict[str, tuple[object, ...]]:
    return {
        name: (
            [t for o in outputs for t in o.token_ids],
            [(r.token_id, r.rank) for o in outputs for r in o.logprobs or []],
            outputs[-1].finish_reason,
            outputs[-1].stop_token_id,
        )
        for name, outputs in found.items()
    }


def undrafted(asked: list[Request]) -> list[Request]:
    return [msgspec.structs.replace(request, draft=None) for request in asked]


CASES: dict[str, dict[str, object]] = {
    "greedy": {"temperature": 0.0, "logprobs": 2},
    "penalties": {"repetition_penalty": 1.3, "frequency_penalty": 0.5, "top_p": 0.9, "min_p": 0.01},
    "stops": {"stop_token_ids": tuple(range(5, 1500, 40)), "min_tokens": 3, "logprobs": 0},
}


@pytest.mark.parametrize("case", CASES)
def test_no_answer_changes(stage: Stage, case: str) -> None:
    asked = stage.requests(MODEL_DRAFTERS, **CASES[case])
    plain = answers(run(stage.engine(), undrafted(asked)))
    engine = stage.engine()
    cold = run(engine, asked)
    assert answers(cold) == plain
    warm = run(engine, asked)
    assert answers(warm) == plain, "with prefix hits"
    for name in MODEL_DRAFTERS:
        drafted = [o for key, found in warm.items() if key.startswith(name) for o in found if o.num_drafted]
        assert drafted, f"{name} drafted nothing"
    own = [o.num_accepted for key, found in warm.items() if key.startswith(DRAFT_MODEL) for o in found]
    assert sum(own) > 0


def test_ended_requests_leave_nothing(tmp_path: Path) -> None:
    folders = {name: str(make_pair(tmp_path, name).folder) for name in HEADS}
    folders[DRAFT_MODEL] = str(tmp_path / "draft")
    write_model(tmp_path / "draft", "qwen3", seed=2, num_hidden_layers=1)
    model = load(tmp_path)
    asked = [
        msgspec.structs.replace(request, draft=DraftOptions(drafter=name))
        for request, name in zip(requests(max_tokens=40), MODEL_DRAFTERS, strict=True)
    ]
    plain = answers(run(new_engine(model)[0], undrafted(asked)))
    speculative = SpeculativeConfig(max_tokens=4, adaptive=False, folders=folders)
    engine, _ = new_engine(model, num_pages=11, max_batch_tokens=24, max_running=4, speculative=speculative)
    for request in asked:
        engine.add(request)
    found: dict[str, list[StepOutput]] = {request.request_id: [] for request in asked}
    for number in itertools.count():
        if number == 6:
            assert engine.abort(asked[0].request_id)
        for output in engine.step():
            found[output.request_id].append(output)
        if not engine.has_work:
            break
    assert engine.scheduler.preemptions_total > 0
    del found[asked[0].request_id]
    assert answers(found) == {name: plain[name] for name in found}
    drafters = engine.speculator._drafters.items()
    inner = {name: each.inner for name, each in drafters if isinstance(each, RecordingDrafter)}
    draft_model, eagle = inner[DRAFT_MODEL], inner["eagle"]
    assert isinstance(draft_model, DraftModelDrafter) and isinstance(eagle, EagleDrafter)
    assert not draft_model._mirrors and not eagle._num_stored and not engine.speculator.has_work
    assert draft_model.kv.free_pages == 11 and engine.kv.free_pages == 11
    draft_model.kv.check_invariants([])
