"""Drafts never change the output of the real model, in float32: greedy or drawn, with whatever options."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import torch

from backend.config import EngineConfig, SpeculativeConfig
from backend.engine.capacity import runner_facts
from backend.engine.engine import Engine
from backend.engine.runner import ModelRunner
from backend.engine.runner_protocol import StepResult
from backend.kv.manager import pages_for
from backend.layers.step_input import StepInput
from backend.models.loaded import LoadedModel, load_model
from backend.types import Plan, Request, SamplingParams, StepOutput
from tests.backend.engine.driving import run
from tests.backend.models.checkpoints import VARIANTS, write_checkpoint
from tests.backend.speculative.drafters import RandomDrafter, StubbornDrafter

DRAFTERS = ["ngram", "suffix", "prediction", "random"]
VOCAB = 199
NEW_TOKENS = 24
POISON = 198


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    folder: Path = tmp_path_factory.mktemp("mistral-window")
    write_checkpoint(next(v for v in VARIANTS if v.name == "mistral-window"), folder)
    return load_model(EngineConfig(model="t", checkpoint=str(folder), device="cpu", dtype="float32"))


def new_engine(model: LoadedModel, drafter: str = "none", k: int = 5, **changes: object) -> Engine:
    values = {"max_running": 8, "max_batch_tokens": 256, "num_pages": 128}
    config = EngineConfig(
        model="t",
        checkpoint=model.config.checkpoint,
        speculative=SpeculativeConfig(
            drafter="none" if drafter == "prediction" else drafter, max_tokens=k, adaptive=False
        ),
        **(values | changes),  # type: ignore[arg-type]
    )
    facts = runner_facts(config, model)
    storage = model.new_kv_storage(facts.num_pages)
    runner = ModelRunner(model, storage, facts, config.max_running)
    return Engine(config, runner, drafters=[RandomDrafter(VOCAB), StubbornDrafter(POISON)])


def prompts() -> list[list[int]]:
    rng = random.Random(5)
    shared = [rng.randrange(VOCAB) for _ in range(50)]
    loop = [rng.randrange(VOCAB) for _ in range(6)] * 8
    return [shared, shared[:48] + [7] * 5, [rng.randrange(VOCAB)], loop]


def requests(**params: object) -> list[Request]:
    values = {"temperature": 0.0, "max_tokens": NEW_TOKENS} | params
    return [
        Request(
            request_id=str(i),
            prompt_token_ids=prompt,
            params=SamplingParams(**(values | {"seed": i})),  # type: ignore[arg-type]
        )
        for i, prompt in enumerate(prompts())
    ]


def answers(found: dict[str, list[StepOutput]]) -> dict[str, tuple[object, ...]]:
    return {
        name: (
            [t for o in outputs for t in o.token_ids],
            [(r.token_id, [t for t, _ in r.top]) for o in outputs for r in o.logprobs or []],
            outputs[-1].finish_reason,
            outputs[-1].stop_token_id,
        )
        for name, outputs in found.items()
    }


def predicted(asked: list[Request], found: dict[str, list[StepOutput]]) -> list[Request]:
    """The requests with what they will answer, a little damaged, as their prediction."""
    damaged = []
    for request in asked:
        tokens = [t for o in found[request.request_id] for t in o.token_ids]
        guess = [*tokens[:5], 3, 4, *tokens[5:12], *tokens[14:]]
        damaged.append(msgspec.structs.replace(request, prediction_token_ids=guess))
    return damaged


CASES: dict[str, dict[str, object]] = {
    "greedy": {},
    "drawn": {"temperature": 0.8},
    "filtered": {"temperature": 0.8, "top_k": 20, "top_p": 0.9, "min_p": 0.01},
    "penalties": {
        "temperature": 0.8,
        "repetition_penalty": 1.3,
        "frequency_penalty": 0.5,
        "presence_penalty": 0.3,
    },
    "bias": {"logit_bias": {5: 3.0, 9: -100.0}, "presence_penalty": 1.0},
    "logprobs": {"temperature": 0.8, "logprobs": 3},
    "stops": {"temperature": 0.8, "stop_token_ids": tuple(range(0, VOCAB, 9)), "logprobs": 1},
    "min_tokens": {"temperature": 0.8, "stop_token_ids": tuple(range(0, VOCAB, 5)), "min_tokens": 9},
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_the_output_is_that_without_drafts(model: LoadedModel, drafter: str, case: str) -> None:
    asked = requests(**CASES[case])
    plain = run(new_engine(model), asked)
    if drafter == "prediction":
        asked = predicted(asked, plain)
    engine = new_engine(model, drafter)
    cold = run(engine, asked)
    assert answers(cold) == answers(plain)
    warm = run(engine, asked)  # prefix hits; suffix knows the answers by now
    assert answers(warm) == answers(plain)
    accepted = sum(o.num_accepted for outputs in warm.values() for o in outputs)
    if case != "stops" and drafter in ("suffix", "prediction"):
        assert accepted > 20
        assert sum(len(outputs) for outputs in warm.values()) < 4 * NEW_TOKENS - 20


def resumed(request: Request, cut: int, outputs: list[StepOutput]) -> Request:
    """What a gateway sends to the next engine when the one that gave `outputs` is gone after `cut` tokens."""
    tokens = [t for o in outputs for t in o.token_ids]
    name = f"{request.request_id}/{cut}"
    return msgspec.structs.replace(request, request_id=name, resume_token_ids=tokens[:cut])


# Drafters that look text up find resumed tokens where they find a prompt's: one of them does for all.
UNLIKE = ("none", "ngram", "random")


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(
    "drafter",
    [pytest.param(d, marks=() if d in UNLIKE else pytest.mark.slow) for d in ("none", *DRAFTERS)],
)
def test_resumed_at_any_cut_the_output_goes_on_as_if_nothing_had_been(
    model: LoadedModel, drafter: str, case: str
) -> None:
    asked = requests(**CASES[case])
    plain = run(new_engine(model), asked)
    if drafter == "prediction":
        asked = predicted(asked, plain)
    lengths = {name: sum(len(o.token_ids) for o in outputs) for name, outputs in plain.items()}
    cuts = [
        (request, cut)
        for request in asked
        for cut in range(lengths[request.request_id] + 1)
        if cut < request.params.max_tokens
    ]
    again = [resumed(request, cut, plain[request.request_id]) for request, cut in cuts]
    engine = new_engine(model, drafter, prefix_cache=drafter != "none", max_queue=512)
    found = answers(run(engine, again))
    whole = answers(plain)
    for request, cut in cuts:
        tokens, records, *end = whole[request.request_id]
        assert isinstance(tokens, list) and isinstance(records, list)
        assert found[f"{request.request_id}/{cut}"] == (tokens[cut:], records[cut:], *end)


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_also_when_preempted_in_small_chunks(model: LoadedModel, drafter: str, temperature: float) -> None:
    asked = requests(temperature=temperature, repetition_penalty=1.1, max_tokens=40)
    plain = run(new_engine(model), asked)
    if drafter == "prediction":
        asked = predicted(asked, plain)
    pages = 10 if drafter == "prediction" else 12  # the faster it is, the less overlaps
    engine = new_engine(model, drafter, num_pages=pages, max_batch_tokens=24, max_running=4)
    assert answers(run(engine, asked)) == answers(plain)
    assert engine.scheduler.preemptions_total > 0
    assert engine.kv.free_pages == pages


def test_logprobs_are_those_of_the_same_positions(model: LoadedModel) -> None:
    asked = requests(temperature=0.8, logprobs=2)
    plain = run(new_engine(model), asked)
    drafted = run(new_engine(model, "prediction"), predicted(asked, plain))
    for name, outputs in plain.items():
        want = [r for o in outputs for r in o.logprobs or []]
        got = [r for o in drafted[name] for r in o.logprobs or []]
        assert [r.logprob for r in got] == pytest.approx([r.logprob for r in want], abs=1e-4)
        assert [r.rank for r in got] == [r.rank for r in want]


def test_observers_see_every_token_of_a_step(model: LoadedModel) -> None:
    class Watcher:
        wants_layers = False

        def __init__(self) -> None:
            self.sizes: list[tuple[int, int]] = []

        def see(self, plan: Plan, step: StepInput, layers: list[torch.Tensor], hidden: torch.Tensor) -> None:
            assert not layers
            self.sizes.append((plan.num_tokens, hidden.shape[0]))

    engine, watcher = new_engine(model, "random"), Watcher()
    assert isinstance(engine._runner, ModelRunner)
    engine._runner.observers.append(watcher)
    run(engine, requests())
    assert all(planned == seen for planned, seen in watcher.sizes) and len(watcher.sizes) > 5


def test_an_observer_that_fails_changes_nothing(model: LoadedModel) -> None:
    class Blind:
        wants_layers = False
        num_asked = 0

        def see(self, plan: Plan, step: StepInput, layers: list[torch.Tensor], hidden: torch.Tensor) -> None:
            self.num_asked += 1
            raise MemoryError("nothing left")

    asked = requests(temperature=0.8, frequency_penalty=0.5)  # a step computed twice counts tokens twice
    engine, blind = new_engine(model), Blind()
    plain = answers(run(engine, asked))
    assert isinstance(engine._runner, ModelRunner)
    engine._runner.observers.append(blind)
    assert answers(run(engine, asked)) == plain
    assert blind.num_asked == 1


def test_not_a_number_in_a_rejected_draft_harms_nobody(
    model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = [r for r in requests(logit_bias={POISON: -1000.0}) if POISON not in r.prompt_token_ids]
    assert len(asked) >= 2
    plain = run(new_engine(model), asked)
    table = type(model.decoder.embedding)
    honest = table.__call__

    def poisoned(self: object, token_ids: torch.Tensor) -> torch.Tensor:
        hidden = honest(self, token_ids)  # type: ignore[arg-type]
        hidden[token_ids == POISON] = float("nan")
        return hidden

    monkeypatch.setattr(table, "__call__", poisoned)
    engine = new_engine(model, "stubborn")
    assert answers(run(engine, asked)) == answers(plain)


@pytest.mark.parametrize("is_raised", [True, False])
def test_pages_for_drafts_of_a_failed_step_are_not_taken_for_the_sequences_own(
    model: LoadedModel, monkeypatch: pytest.MonkeyPatch, is_raised: bool
) -> None:
    honest = ModelRunner.run

    def failing(self: ModelRunner, plan: Plan) -> StepResult:
        is_bad = [chunk.sequence.request.request_id.startswith("bad") for chunk in plan.chunks]
        if is_raised and any(is_bad):
            raise RuntimeError("this request cannot be computed")
        result = honest(self, plan)
        for chunk in plan.chunks:
            count = pages_for(chunk.end)
            table = self._table.page_table.on_device[chunk.sequence.row, :count]
            assert table.tolist() == chunk.sequence.pages[:count]
        if any(is_bad):
            result.is_sound = [not bad and not c.draft for bad, c in zip(is_bad, plan.chunks, strict=True)]
        return result

    asked = requests(temperature=0.8, max_tokens=50)
    plain = run(new_engine(model), asked)
    monkeypatch.setattr(ModelRunner, "run", failing)
    engine = new_engine(model, "random", k=20)
    outputs: list[StepOutput] = []
    waiting = list(asked)
    for step in range(400):
        if step % 7 == 0:  # others come and go: pages change hands
            params = SamplingParams(max_tokens=1)
            engine.add(Request(request_id=f"bad {step}", prompt_token_ids=[1, 2], params=params))
            if waiting:
                engine.add(waiting.pop())
        outputs += engine.step()
        engine.scheduler.check_invariants()
        if not (waiting or engine.has_work):
            break
    failed = [output for output in outputs if output.finish_reason == "error"]
    assert len(failed) > 5 and all(output.request_id.startswith("bad") for output in failed)
    got = {r.request_id: [o for o in outputs if o.request_id == r.request_id] for r in asked}
    assert answers(got) == answers(plain)
