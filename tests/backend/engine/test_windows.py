"""Layers with a window that have pages of their own: every answer is, bit by bit, that of one pool."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from backend.config import EngineConfig, SpeculativeConfig
from backend.engine.capacity import runner_facts
from backend.engine.engine import Engine
from backend.engine.runner import ModelRunner
from backend.kv.windows import WindowPages
from backend.lora.store import AdapterLimits, AdapterStore
from backend.models.loaded import LoadedModel, load_model
from backend.types import DraftOptions, DraftTree, Plan, Request, SamplingParams, Sequence
from tests.backend.engine.driving import run
from tests.backend.lora.making import Recipe, write_adapter
from tests.backend.models.checkpoints import VARIANTS, write_checkpoint

NEW_TOKENS = 24
MODELS = {"gemma3-pattern": 13, "gpt-oss": 21, "mistral-window": 37}
"""Variants, with their windows: every second layer has one, or all have."""

Answer = list[tuple[int, float]]


class PoisoningRunner(ModelRunner):
    """Before each step it overwrites all pages of windows that no sequence holds and no prefix needs."""

    windows: WindowPages | None = None

    def __init__(self, *arguments: Any) -> None:  # noqa: ANN401
        super().__init__(*arguments)
        self.plans: list[Plan] = []

    def run(self, plan: Plan) -> Any:  # noqa: ANN401
        self.plans.append(plan)
        if self.windows is not None:
            pool = self.windows._pool
            free = [page for page in range(pool.num_pages) if pool.is_free(page)]
            for layer, shape in zip(self._storage.layers, self._storage.layout.layers, strict=True):
                if shape.is_windowed:
                    layer[free] = 1e4
        return super().run(plan)


@dataclass
class Subject:
    config: EngineConfig
    model: LoadedModel
    window: int
    prompts: list[list[int]]
    alone: list[Answer] = field(default_factory=list)  # the answers to them of one pool

    def engine(
        self,
        num_window_pages: int | None = 24,
        adapters: AdapterStore | None = None,
        **changes: Any,  # noqa: ANN401
    ) -> tuple[Engine, PoisoningRunner]:
        """With this number of pages for windows, or None."""
        values = {"max_running": 4, "max_batch_tokens": 256, "num_pages": 128} | changes
        config = msgspec.structs.replace(self.config, **values)
        facts = replace(
            runner_facts(config, self.model), window=self.window, num_window_pages=num_window_pages
        )
        storage = self.model.new_kv_storage(facts.num_pages, num_window_pages=num_window_pages)
        runner = PoisoningRunner(self.model, storage, facts, facts.max_running, adapters)
        engine = Engine(config, runner, adapters=adapters)
        runner.windows = engine.kv._windows
        assert (runner.windows is None) == (num_window_pages is None)
        return engine, runner

    @property
    def least_pages(self) -> int:
        """The fewest pages for windows that an engine has."""
        return 2 * (-(-self.window // 16) + 2)

    def requests(self) -> list[Request]:
        return [ask(str(number), prompt) for number, prompt in enumerate(self.prompts)]

    def plain(self, requests: list[Request], **changes: Any) -> list[Answer]:  # noqa: ANN401
        """Their answers where all layers have the same pages."""
        return scored(self.engine(None, **changes)[0], requests)


@pytest.fixture(scope="module", params=MODELS)
def subject(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Subject:
    folder: Path = tmp_path_factory.mktemp("windows")
    variant, window = next(v for v in VARIANTS if v.name == request.param), MODELS[request.param]
    write_checkpoint(replace(variant, changes=variant.changes | {"sliding_window": window}), folder)
    config = EngineConfig(model="t", checkpoint=str(folder), device="cpu", dtype="float32")
    draw = random.Random(5)
    shared = [draw.randrange(199) for _ in range(120)]
    prompts = [shared, shared[:90] + [7] * 9, [5], [draw.randrange(199) for _ in range(150)]]
    model = load_model(config)
    assert {own for own in model.config.windows if own is not None} == {window}
    found = Subject(config, model, window, prompts)
    found.alone += found.plain(found.requests())
    assert all(len(answer) == NEW_TOKENS for answer in found.alone)
    return found


def ask(name: str, prompt: list[int], **changes: Any) -> Request:  # noqa: ANN401
    params = SamplingParams(max_tokens=NEW_TOKENS, temperature=0.0, ignore_eos=True, logprobs=0)
    params = msgspec.structs.replace(params, **changes.pop("params", {}))
    return Request(request_id=name, prompt_token_ids=prompt, params=params, **changes)


def scored(engine: Engine, requests: list[Request]) -> list[Answer]:
    """Tokens with their log-probabilities, which a wrong key changes before it changes the tokens."""
    outputs = run(engine, requests)
    return [
        [(record.token_id, record.logprob) for output in outputs[name] for record in output.logprobs or []]
        for name in (request.request_id for request in requests)
    ]


def test_together_and_again_with_prefix_hits(subject: Subject) -> None:
    engine, _ = subject.engine(48)
    requests = subject.requests()
    for _ in range(2):
        assert scored(engine, requests) == subject.alone
    assert engine.kv.prefix_hit_tokens_total >= 112 + 80 + 144


def test_few_pages_hold_long_contexts(subject: Subject) -> None:
    """400 tokens with the pages of two windows, in small chunks."""
    (request,) = [ask("a", subject.prompts[3] * 2 + subject.prompts[0][:70])]
    engine, _ = subject.engine(subject.least_pages, max_batch_tokens=20)
    assert scored(engine, [request]) == subject.plain([request], max_batch_tokens=20)
    assert engine.scheduler.preemptions_total == 0 and subject.least_pages * 16 < 300


def test_prompts_in_chunks(subject: Subject) -> None:
    engine, runner = subject.engine(max_batch_tokens=20)
    assert scored(engine, subject.requests()) == subject.alone
    assert max(chunk.num_tokens for plan in runner.plans for chunk in plan.chunks) <= 20


def test_preempted_sequences_come_back(subject: Subject) -> None:
    engine, _ = subject.engine(num_pages=13)
    assert scored(engine, subject.requests()) == subject.alone
    assert engine.scheduler.preemptions_total


def test_with_too_few_pages_of_windows_requests_wait(subject: Subject) -> None:
    engine, runner = subject.engine(subject.least_pages)
    assert scored(engine, subject.requests()) == subject.alone
    assert engine.scheduler.preemptions_total == 0
    assert max(len(plan.chunks) for plan in runner.plans) < len(subject.prompts)


def test_cancelled_pages_are_used_by_others(subject: Subject) -> None:
    engine, _ = subject.engine(12, max_running=1)
    for steps in (1, 5):
        engine.add(ask("gone", subject.prompts[3]))
        for _ in range(steps):
            engine.step()
        assert engine.abort("gone")
        engine.scheduler.check_invariants()
    assert scored(engine, subject.requests()) == subject.alone


def test_several_choices_of_one_prompt(subject: Subject) -> None:
    requests = [
        ask(str(seed), subject.prompts[0], params={"temperature": 1.0, "seed": seed}) for seed in range(3)
    ]
    answers = scored(subject.engine()[0], requests)
    assert answers == subject.plain(requests) and answers[0] != answers[1]


def test_a_second_turn_goes_on_from_the_answer(subject: Subject) -> None:
    engine, runner = subject.engine()
    scored(engine, [ask("a", subject.prompts[3])])
    second = [ask("a", [*subject.prompts[3], *(token for token, _ in subject.alone[3]), 5, 6, 7])]
    runner.plans.clear()
    assert scored(engine, second) == subject.plain(second)
    assert runner.plans[0].chunks[0].start == 160


def test_without_its_window_a_prefix_is_computed_again_and_known_then(subject: Subject) -> None:
    engine, runner = subject.engine(12, max_running=1)
    first, others = [ask("a", subject.prompts[0])], [ask("b", subject.prompts[3])]
    want = [subject.alone[0]]
    assert scored(engine, first) == want
    scored(engine, others)
    assert engine.kv.cached_pages * 16 >= 112 + 144
    for is_known in (False, True):
        runner.plans.clear()
        assert scored(engine, first) == want
        assert (runner.plans[0].chunks[0].start == 112) is is_known


@pytest.mark.parametrize("every", [2, 5, 1000])
def test_drafts_that_are_right_for_some_tokens(subject: Subject, every: int) -> None:
    """Predictions in which some tokens are wrong: up to 20 are rejected in one step."""
    want = subject.alone
    guesses = [[(t + (i % every == 1)) % 199 for i, (t, _) in enumerate(text)] for text in want]
    speculative = SpeculativeConfig(drafter="prediction", adaptive=False, max_tokens=20)
    engine, runner = subject.engine(speculative=speculative)
    asked = [
        msgspec.structs.replace(request, prediction_token_ids=guess, draft=DraftOptions(max_tokens=20))
        for request, guess in zip(subject.requests(), guesses, strict=True)
    ]
    assert scored(engine, asked) == want
    assert max(len(chunk.draft) for plan in runner.plans for chunk in plan.chunks) >= 16


def test_draft_trees_move_what_was_accepted(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    speculative = SpeculativeConfig(drafter="ngram", adaptive=False, max_tokens=4, tree_nodes=8)
    engine, runner = subject.engine(speculative=speculative)
    want = subject.alone
    known = {str(number): [token for token, _ in text] for number, text in enumerate(want)}

    def propose(self: object, sequences: list[Sequence], ks: list[int]) -> list[DraftTree]:
        nexts = [known[s.request.request_id][s.num_output_tokens :][:2] for s in sequences]
        return [
            DraftTree((5, n[0], 6, n[1]), (-1, -1, 0, 1)) if len(n) == 2 else DraftTree((), ()) for n in nexts
        ]

    monkeypatch.setattr("backend.speculative.ngram.NgramDrafter.propose", propose)
    found = scored(engine, subject.requests())
    assert [[token for token, _ in text] for text in found] == list(known.values())
    assert found == want
    assert any(chunk.parents for plan in runner.plans for chunk in plan.chunks)
    steps = Counter(
        chunk.sequence.request.request_id
        for plan in runner.plans
        for chunk in plan.chunks
        if chunk.start >= chunk.sequence.num_prompt_tokens
    )
    assert max(steps.values()) < NEW_TOKENS // 2 + 2  # prompts may take any number of steps


def test_an_unsound_step_leaves_no_trace(subject: Subject) -> None:
    """What is not finite is zeroed in the pages of windows, too, before others get them."""
    engine, runner = subject.engine(16, max_running=1, prefix_cache=False)
    embedding = runner._model.decoder.embedding
    weight, kept = embedding.weight, embedding.weight[198].clone()
    with torch.inference_mode():
        weight[198] = float("nan")
    (outputs,) = run(engine, [ask("a", [198] * 200)]).values()
    with torch.inference_mode():
        weight[198] = kept
    assert outputs[-1].finish_reason == "error"
    assert all(layer.isfinite().all() for layer in runner._storage.layers)
    assert scored(engine, subject.requests()) == subject.alone


@pytest.fixture
def adapters(subject: Subject, tmp_path: Path) -> Iterator[tuple[Subject, AdapterStore, str]]:
    model = load_model(subject.config)  # adapters' slots stay in its layers
    store = AdapterStore(model.sites, AdapterLimits(), model.dtype, model.device)
    folder = write_adapter(tmp_path / "a", model, Recipe(ends=("k_proj", "v_proj"), size=3.0))
    yield replace(subject, model=model), store, store.load_now("a", folder).digest
    store.close()


def test_an_adapter_has_prefixes_of_its_own(adapters: tuple[Subject, AdapterStore, str]) -> None:
    subject, store, digest = adapters
    requests = subject.requests()
    requests += [
        msgspec.structs.replace(request, request_id=f"adapted {request.request_id}", adapter=digest)
        for request in requests
    ]
    want = scored(subject.engine(None, adapters=store)[0], requests)
    engine, _ = subject.engine(48, adapters=store)
    for _ in range(2):
        assert scored(engine, requests) == want
    assert engine.kv.prefix_hit_tokens_total and want[:4] != want[4:]
