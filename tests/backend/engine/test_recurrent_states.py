"""A model with recurrent states in an engine: whatever happens, the text of a request by itself."""

from __future__ import annotations

import logging
import random
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from backend.config import EngineConfig, SpeculativeConfig
from backend.engine.capacity import runner_facts
from backend.engine.engine import Engine
from backend.engine.runner import ModelRunner
from backend.errors import CheckpointError
from backend.kv.checkpoints import CHECKPOINT_TOKENS, INTERVAL_TOKENS
from backend.kv.states import MAX_LOGGED
from backend.lora.store import AdapterLimits, AdapterStore
from backend.models.loaded import LoadedModel, load_model
from backend.speculative.draft_model import load_draft_model
from backend.types import DraftOptions, DraftTree, Plan, Request, SamplingParams, Sequence
from tests.backend.engine.driving import run, texts
from tests.backend.lora.making import Recipe, write_adapter
from tests.backend.models.checkpoints import VARIANTS, write_checkpoint

NEW_TOKENS = 40
ADAPTED = {
    "qwen3.5": ("in_proj_qkv", "in_proj_z", "in_proj_a", "in_proj_b", "linear_attn.out_proj"),
    "lfm2": ("conv.in_proj", "conv.out_proj"),
    "granite-hybrid-dense": ("mamba.in_proj", "mamba.out_proj"),
}
"""One model for each kind of state, with the modules of its mixer that adapters can change."""


class NotingRunner(ModelRunner):
    """Notes plans, and fails where a test says it, after the forward pass of several sequences."""

    def __init__(self, *arguments: Any) -> None:  # noqa: ANN401
        super().__init__(*arguments)
        self.plans: list[Plan] = []
        self.failures: set[int] = set()

    def run(self, plan: Plan) -> Any:  # noqa: ANN401
        self.plans.append(plan)
        return super().run(plan)

    def _draw(self, *arguments: Any) -> Any:  # noqa: ANN401
        due = {number for number in self.failures if number <= len(self.plans)}
        if due and len(self.plans[-1].chunks) > 1:
            self.failures -= due
            raise RuntimeError("a step fails")
        return super()._draw(*arguments)


@dataclass
class Subject:
    config: EngineConfig
    model: LoadedModel
    reference: Any
    prompts: list[list[int]]
    alone: list[list[int]]
    modules: tuple[str, ...]

    def engine(self, adapters: AdapterStore | None = None, **changes: Any) -> tuple[Engine, NotingRunner]:  # noqa: ANN401
        values = {"max_running": 4, "max_batch_tokens": 512, "num_pages": 256} | changes
        config = msgspec.structs.replace(self.config, **values)
        facts = runner_facts(config, self.model)
        storage = self.model.new_kv_storage(facts.num_pages, facts.num_states)
        runner = NotingRunner(self.model, storage, facts, facts.max_running, adapters)
        return Engine(config, runner, adapters=adapters), runner

    def requests(self) -> list[Request]:
        return [ask(str(i), prompt) for i, prompt in enumerate(self.prompts)]


@pytest.fixture(scope="module", params=ADAPTED)
def subject(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Subject:
    folder: Path = tmp_path_factory.mktemp("hybrid")
    variant = next(v for v in VARIANTS if v.name == request.param)
    reference = write_checkpoint(
        replace(variant, changes=variant.changes | {"max_position_embeddings": 4096}), folder
    )
    config = EngineConfig(model="t", checkpoint=str(folder), device="cpu", dtype="float32")
    rng = random.Random(5)
    shared = [rng.randrange(199) for _ in range(100)]
    prompts = [shared, shared[:80] + [7] * 9, [rng.randrange(199)], [rng.randrange(199) for _ in range(150)]]
    found = Subject(config, load_model(config), reference, prompts, [], ADAPTED[request.param])
    for prompt in prompts:
        (tokens,) = texts(found.engine()[0], [ask("a", prompt)])
        with torch.no_grad():
            logits = reference(torch.tensor([prompt + tokens])).logits[0]
        assert tokens == logits[len(prompt) - 1 : -1].argmax(-1).tolist()
        found.alone.append(tokens)
    return found


def ask(name: str, prompt: list[int], **changes: Any) -> Request:  # noqa: ANN401
    params = SamplingParams(max_tokens=NEW_TOKENS, temperature=0.0)
    return Request(request_id=name, prompt_token_ids=prompt, params=params, **changes)


def scored(engine: Engine, prompt: list[int]) -> list[tuple[int, float]]:
    """The answer with log-probabilities, which a wrong state changes before it changes the tokens."""
    request = ask("a", prompt)
    request = msgspec.structs.replace(request, params=msgspec.structs.replace(request.params, logprobs=0))
    records = [record for output in run(engine, [request])["a"] for record in output.logprobs or []]
    return [(record.token_id, record.logprob) for record in records]


def test_together_and_again(subject: Subject) -> None:
    engine, _ = subject.engine()
    for _ in range(2):
        assert texts(engine, subject.requests()) == subject.alone


def test_prompts_in_chunks(subject: Subject) -> None:
    engine, runner = subject.engine(max_batch_tokens=20)
    assert texts(engine, subject.requests()) == subject.alone
    assert max(chunk.num_tokens for plan in runner.plans for chunk in plan.chunks) <= 20


def test_preempted_sequences_go_on_from_a_checkpoint(subject: Subject) -> None:
    engine, runner = subject.engine(num_pages=22)
    assert texts(engine, subject.requests()) == subject.alone
    assert engine.scheduler.preemptions_total
    last, starts = {}, []
    for chunk in (chunk for plan in runner.plans for chunk in plan.chunks):
        if chunk.start < last.get(chunk.sequence, 0):
            starts.append(chunk.start)
        last[chunk.sequence] = chunk.end
    assert starts and max(starts) >= CHECKPOINT_TOKENS


def test_without_a_prefix_cache_preempted_sequences_begin_again(subject: Subject) -> None:
    engine, runner = subject.engine(num_pages=14, prefix_cache=False)
    assert texts(engine, subject.requests()) == subject.alone
    assert engine.scheduler.preemptions_total and engine.kv.num_checkpoints == 0
    assert runner.facts.num_states == runner.facts.max_running


def test_cancelled_rows_are_used_by_others(subject: Subject) -> None:
    engine, _ = subject.engine(max_running=1)
    for steps in (1, 5):
        engine.add(ask("gone", subject.prompts[3]))
        for _ in range(steps):
            engine.step()
        assert engine.abort("gone")
    assert texts(engine, subject.requests()) == subject.alone


def test_several_choices_of_one_prompt(subject: Subject) -> None:
    params = SamplingParams(max_tokens=20, temperature=1.0)
    seeded = [
        Request(
            request_id=str(seed),
            prompt_token_ids=subject.prompts[0],
            params=msgspec.structs.replace(params, seed=seed),
        )
        for seed in range(3)
    ]
    alone = [texts(subject.engine()[0], [request])[0] for request in seeded]
    assert texts(subject.engine()[0], seeded) == alone and len(set(map(tuple, alone))) == 3


@pytest.mark.parametrize("failures", [{1}, {2}, {9}, {1, 6, 7, 20}])
def test_a_failed_step_is_computed_again(subject: Subject, failures: set[int]) -> None:
    engine, runner = subject.engine(max_batch_tokens=64)
    runner.failures = set(failures)
    assert texts(engine, subject.requests()) == subject.alone
    assert not runner.failures


def test_a_second_turn_goes_on_from_the_answer(subject: Subject) -> None:
    engine, runner = subject.engine()
    first = [*subject.prompts[3], *[3] * 10]
    second = [*first, *(token for token, _ in scored(engine, first)), 5, 6, 7]
    assert len(first) < 192 < len(second)
    runner.plans.clear()
    assert scored(engine, second) == scored(subject.engine()[0], second)
    assert runner.plans[0].chunks[0].start == 192


@pytest.mark.parametrize("prefix_cache", [True, False])
def test_a_lost_state_is_computed_from_its_newest_checkpoint(
    subject: Subject, prefix_cache: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, runner = subject.engine(prefix_cache=prefix_cache)
    engine.add(ask("a", subject.prompts[3] * 2))
    while not engine._active["a"].sequence.num_output_tokens:
        engine.step()
    sequence = engine._active["a"].sequence
    states = runner._storage.states
    assert states is not None
    states._positions[sequence.row] = -1
    counts: list[int] = []
    forward = LoadedModel.forward
    monkeypatch.setattr(
        LoadedModel,
        "forward",
        lambda self, token_ids, *others: (counts.append(len(token_ids)), forward(self, token_ids, *others))[
            1
        ],
    )
    engine.step()
    assert counts == ([300 - 256, 1] if prefix_cache else [300, 1])


@pytest.mark.parametrize("every", [2, 5, 1000])
def test_drafts_that_are_right_for_some_tokens(subject: Subject, every: int) -> None:
    """Predictions of which each so-manieth token is wrong."""
    guesses = [[(t + (i % every == 1)) % 199 for i, t in enumerate(text)] for text in subject.alone]
    speculative = SpeculativeConfig(drafter="prediction", adaptive=False)
    engine, runner = subject.engine(speculative=speculative)
    asked = [
        msgspec.structs.replace(request, prediction_token_ids=guess, draft=DraftOptions(max_tokens=20))
        for request, guess in zip(subject.requests(), guesses, strict=True)
    ]
    assert texts(engine, asked) == subject.alone
    lengths = [len(chunk.draft) for plan in runner.plans for chunk in plan.chunks]
    assert max(lengths) == MAX_LOGGED - 1
    if every == 1000:
        assert len(runner.plans) < NEW_TOKENS


def test_a_draft_tree_is_cut_to_its_first_path(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    speculative = SpeculativeConfig(drafter="ngram", adaptive=False)
    engine, runner = subject.engine(speculative=speculative)
    (text,) = subject.alone[:1]

    def propose(self: object, sequences: list[Sequence], ks: list[int]) -> list[DraftTree]:
        nexts = [text[s.num_output_tokens :][:2] for s in sequences]
        return [DraftTree((n[0], 5, n[1]), (-1, -1, 0)) if len(n) == 2 else DraftTree((), ()) for n in nexts]

    monkeypatch.setattr("backend.speculative.ngram.NgramDrafter.propose", propose)
    assert texts(engine, subject.requests()[:1]) == [text]
    chunks = [chunk for plan in runner.plans for chunk in plan.chunks if chunk.draft]
    assert chunks and all(not chunk.parents and 5 not in chunk.draft[1:] for chunk in chunks)
    assert len(runner.plans) < NEW_TOKENS / 2


def test_an_adapter_of_a_mixer_changes_the_answer(subject: Subject, tmp_path: Path) -> None:
    model = load_model(subject.config)  # adapters' slots stay in its layers
    store = AdapterStore(model.sites, AdapterLimits(), model.dtype, model.device)
    own = replace(subject, model=model)
    answers = []
    for number, end in enumerate(subject.modules):
        folder = write_adapter(tmp_path / end, model, Recipe(ends=(end,), size=3.0, seed=number))
        digest = store.load_now(end, folder).digest
        request = msgspec.structs.replace(subject.requests()[0], adapter=digest)
        engine, _ = own.engine(store)
        (alone,) = texts(engine, [request])
        together = [msgspec.structs.replace(request, request_id="adapted"), *subject.requests()[1:]]
        assert texts(own.engine(store)[0], together) == [alone, *subject.alone[1:]]
        answers.append(alone)
    store.close()
    assert subject.alone[0] not in answers and len(set(map(tuple, answers))) == len(answers)


def test_a_second_request_computes_what_its_checkpoint_lacks(subject: Subject) -> None:
    """The bar: 2,000 shared tokens of a prompt cost the second request at most an interval and a block."""
    rng = random.Random(11)
    shared = [rng.randrange(199) for _ in range(2000)]
    prompts = [shared + [rng.randrange(199) for _ in range(n)] for n in (90, 70, 50)]
    alone = [scored(subject.engine()[0], prompt) for prompt in prompts]
    engine, runner = subject.engine(num_pages=512)
    computed = []
    for prompt, want in zip(prompts, alone, strict=True):
        runner.plans.clear()
        assert scored(engine, prompt) == want
        ends = [chunk.num_tokens for plan in runner.plans for chunk in plan.chunks]
        computed.append(sum(ends) - (NEW_TOKENS - 1) - len(prompt) + 2000)
    assert computed == [2000, 2000 - 1536, 2000 - 1984]
    assert computed[1] <= CHECKPOINT_TOKENS + INTERVAL_TOKENS


def test_the_log_tells_that_drafts_are_short_chains(
    subject: Subject, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        subject.engine()
        assert not caplog.text
        for speculative in (SpeculativeConfig(tree_nodes=4), SpeculativeConfig(max_tokens=9)):
            subject.engine(speculative=speculative)
            assert "drafts are chains of at most 8 tokens" in caplog.text
            caplog.clear()


def test_memory_of_states_comes_first(subject: Subject, caplog: pytest.LogCaptureFixture) -> None:
    layout = subject.model.kv_layout
    assert layout.states is not None
    slot = layout.states.slot_bytes
    config = msgspec.structs.replace(subject.config, kv_cache_bytes=20 * slot, max_running=128)
    with caplog.at_level(logging.WARNING):
        facts = runner_facts(config, subject.model)
    assert facts.max_running == 10 and facts.num_checkpoints == 5
    assert facts.num_pages == 5 * slot // layout.page_bytes
    storage = subject.model.new_kv_storage(facts.num_pages, facts.num_states)
    assert storage.states is not None and storage.states.num_slots == 15
    tensors = [*storage.memory, *(tensor for layer in storage.states.layers for tensor in layer)]
    assert 19 * slot < sum(tensor.nbytes for tensor in tensors) <= 20 * slot
    assert "max_running is 10, not 128" in caplog.text
    with pytest.raises(CheckpointError, match="kv_cache_bytes"):
        runner_facts(msgspec.structs.replace(config, kv_cache_bytes=slot), subject.model)
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        engine, _ = subject.engine(kv_cache_bytes=3 * slot)
    assert "max_running is 1, not 4" in caplog.text and "prefixes are not cached" in caplog.text
    assert texts(engine, [ask("a", subject.prompts[0])]) == subject.alone[:1]


def test_it_is_no_draft_model(subject: Subject) -> None:
    with pytest.raises(CheckpointError, match="recurrent"):
        load_draft_model(subject.config, subject.config.checkpoint, 512)
