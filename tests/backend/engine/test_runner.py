"""The real runner on tiny random checkpoints in float32, against transformers: always the same text."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from backend.config import EngineConfig
from backend.engine.capacity import runner_facts
from backend.engine.engine import Engine
from backend.engine.runner import ModelRunner, _on_device
from backend.errors import DeviceLost, PromptTooLong, StepTooLarge
from backend.models.loaded import LoadedModel, load_model
from backend.sampling import logprobs as logprobs_module
from backend.types import Request, SamplingParams
from tests.backend.engine.driving import run, texts
from tests.backend.models.checkpoints import VARIANTS, write_checkpoint

FAMILIES = ["llama-llama3-rope", "mistral-window", "qwen2-window", "qwen3", "mixtral", "qwen3-moe-mixed"]
NEW_TOKENS = 64


@dataclass
class Subject:
    """A checkpoint in our hands and in transformers'."""

    config: EngineConfig
    model: LoadedModel
    reference: Any
    prompts: list[list[int]]
    greedy: list[list[int]]  # 64 tokens for each prompt, computed alone and checked

    def engine(self, **changes: object) -> Engine:
        values = {"max_running": 4, "max_batch_tokens": 512, "num_pages": 256}
        config = EngineConfig(
            model="t",
            checkpoint=self.config.checkpoint,
            device="cpu",
            dtype="float32",
            **(values | changes),  # type: ignore[arg-type]
        )
        facts = runner_facts(config, self.model)
        return Engine(config, ModelRunner(self.model, self.model.new_kv_storage(facts.num_pages), facts, 4))


@pytest.fixture(scope="module")
def subjects(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Subject]:
    """Makes each family's subject once."""
    return functools.cache(lambda name: make_subject(name, tmp_path_factory))


@pytest.fixture(scope="module", params=FAMILIES)
def subject(request: pytest.FixtureRequest, subjects: Callable[[str], Subject]) -> Subject:
    return subjects(request.param)


@pytest.fixture(scope="module")
def qwen3(subjects: Callable[[str], Subject]) -> Subject:
    return subjects("qwen3")


def make_subject(name: str, tmp_path_factory: pytest.TempPathFactory) -> Subject:
    folder: Path = tmp_path_factory.mktemp(name)
    reference = write_checkpoint(next(v for v in VARIANTS if v.name == name), folder)
    config = EngineConfig(model="t", checkpoint=str(folder), device="cpu", dtype="float32")
    rng = random.Random(5)
    shared = [rng.randrange(199) for _ in range(50)]
    prompts = [shared, shared[:48] + [7] * 25, [rng.randrange(199)], [rng.randrange(199) for _ in range(130)]]
    subject = Subject(config, load_model(config), reference, prompts, [])
    for prompt in prompts:
        (tokens,) = texts(subject.engine(), [ask("a", prompt)])
        assert tokens == best_next(reference, prompt, tokens)
        subject.greedy.append(tokens)
    assert len(set(subject.greedy[3])) > 4, "a loop would prove little"
    return subject


def best_next(reference: Any, prompt: list[int], tokens: list[int]) -> list[int]:  # noqa: ANN401
    """What transformers finds best at every position: equal to `tokens` when it would generate them."""
    with torch.no_grad():
        logits = reference(torch.tensor([prompt + tokens])).logits[0]
    return list(logits[len(prompt) - 1 : -1].argmax(-1).tolist())


def generate(reference: Any, prompt: list[int], **options: object) -> list[int]:  # noqa: ANN401
    ids = torch.tensor([prompt])
    out = reference.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=24, do_sample=False, **options
    )
    return list(out[0, len(prompt) :].tolist())


def ask(request_id: str, prompt: list[int], max_tokens: int = NEW_TOKENS, **params: object) -> Request:
    values = {"temperature": 0.0} | params
    sampling = SamplingParams(max_tokens=max_tokens, **values)  # type: ignore[arg-type]
    return Request(request_id=request_id, prompt_token_ids=prompt, params=sampling)


def requests_for(subject: Subject) -> list[Request]:
    return [ask(str(i), prompt) for i, prompt in enumerate(subject.prompts)]


def test_together_cold_then_warm(subject: Subject) -> None:
    engine = subject.engine()
    assert texts(engine, requests_for(subject)) == subject.greedy
    found = run(engine, requests_for(subject))
    for request, want in zip(requests_for(subject), subject.greedy, strict=True):
        outputs = found[request.request_id]
        assert [t for o in outputs for t in o.token_ids] == want
        assert outputs[0].num_cached_tokens == (len(request.prompt_token_ids) - 1) // 16 * 16


def test_in_small_chunks_together(subject: Subject) -> None:
    assert texts(subject.engine(max_batch_tokens=21), requests_for(subject)) == subject.greedy


def test_preempted(subject: Subject) -> None:
    engine = subject.engine(num_pages=16, prefix_cache=False)
    assert texts(engine, requests_for(subject)) == subject.greedy
    assert engine.scheduler.preemptions_total > 0


def test_preempted_in_small_chunks_with_prefix_hits(qwen3: Subject) -> None:
    engine = qwen3.engine(num_pages=16, max_batch_tokens=40)
    for _ in range(2):
        assert texts(engine, requests_for(qwen3)) == qwen3.greedy


def test_a_seed_gives_the_same_text_in_any_company(qwen3: Subject) -> None:
    def request(name: str, **params: object) -> Request:
        return ask(name, qwen3.prompts[0], temperature=0.9, **params)

    mine = {"seed": 11, "top_p": 0.9}
    (alone,) = texts(qwen3.engine(), [request("a", **mine)])
    crowd = [request("b", seed=12), request("c", top_k=5), ask("d", qwen3.prompts[3])]
    others = texts(qwen3.engine(max_batch_tokens=30), [*crowd, request("a", **mine)])
    assert others[3] == alone and others[0] != alone
    engine = qwen3.engine(num_pages=16, prefix_cache=False)
    assert texts(engine, [*crowd, request("a", **mine)])[3] == alone
    assert engine.scheduler.preemptions_total > 0
    (first,), (second,) = (texts(qwen3.engine(), [request("a")]) for _ in range(2))
    assert first != second, "without a seed every request draws its own"


def test_penalties_follow_transformers_also_after_preemption(qwen3: Subject) -> None:
    want = [generate(qwen3.reference, prompt, repetition_penalty=1.3) for prompt in qwen3.prompts]
    assert want != [tokens[:24] for tokens in qwen3.greedy]
    requests = [ask(str(i), p, repetition_penalty=1.3) for i, p in enumerate(qwen3.prompts)]
    free = texts(qwen3.engine(), requests)
    assert [tokens[:24] for tokens in free] == want
    engine = qwen3.engine(num_pages=16, prefix_cache=False)
    assert texts(engine, requests) == free
    assert engine.scheduler.preemptions_total > 0


def test_presence_penalty_forbids_repetition(qwen3: Subject) -> None:
    (tokens,) = texts(qwen3.engine(), [ask("a", qwen3.prompts[0], presence_penalty=100.0)])
    assert len(set(tokens)) == NEW_TOKENS


def test_bias_and_min_tokens(qwen3: Subject) -> None:
    prompt, greedy = qwen3.prompts[0], qwen3.greedy[0]
    engine = qwen3.engine()
    assert texts(engine, [ask("a", prompt, 5, logit_bias={42: 1000.0})]) == [[42] * 5]
    stop = greedy[2]
    outputs = run(engine, [ask("a", prompt, stop_token_ids=(stop,))])["a"]
    assert outputs[-1].stop_token_id == stop
    (kept,) = texts(engine, [ask("a", prompt, stop_token_ids=(stop,), min_tokens=10)])
    assert len(kept) >= 10 and stop not in kept


def test_logprobs_are_the_models_own(qwen3: Subject) -> None:
    prompt = qwen3.prompts[0]
    extras = {"temperature": 1.0, "seed": 3, "top_k": 5, "logit_bias": {3: 5.0}, "presence_penalty": 1.0}
    found = run(
        qwen3.engine(),
        [ask("a", prompt, 12, logprobs=4, **extras), ask("b", prompt, 12), ask("c", prompt, 12, logprobs=0)],
    )
    tokens = [t for o in found["a"] for t in o.token_ids]
    with torch.no_grad():
        want = qwen3.reference(torch.tensor([prompt + tokens])).logits[0].log_softmax(-1)[len(prompt) - 1 :]
    records = [record for o in found["a"] for record in o.logprobs or []]
    assert [r.token_id for r in records] == tokens
    for row, record in enumerate(records):
        assert record.logprob == pytest.approx(want[row, record.token_id].item(), abs=1e-4)
        assert [p for _, p in record.top] == pytest.approx(want[row].topk(4).values.tolist(), abs=1e-4)
    assert all(o.logprobs is None for o in found["b"])
    assert all(r.top == [] for o in found["c"] for r in o.logprobs or [])


@pytest.mark.parametrize("budget", [512, 21])
def test_prompt_logprobs_in_chunks(qwen3: Subject, budget: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logprobs_module, "MAX_LOGITS_ELEMENTS", 199 * 10)
    prompt = qwen3.prompts[3]
    engine = qwen3.engine(max_batch_tokens=budget)
    texts(engine, [ask("warm", prompt, 2)])
    outputs = run(engine, [ask("a", prompt, 3, prompt_logprobs=2), ask("b", qwen3.prompts[0], 20)])["a"]
    outputs = [output for output in outputs if output.token_ids]
    records = outputs[0].prompt_logprobs
    assert records is not None and len(records) == len(prompt) and records[0] is None
    with torch.no_grad():
        want = qwen3.reference(torch.tensor([prompt])).logits[0].log_softmax(-1)
    for position, record in enumerate(records[1:], start=1):
        assert record is not None and record.token_id == prompt[position] and len(record.top) == 2
        assert record.logprob == pytest.approx(want[position - 1, prompt[position]].item(), abs=1e-4)
    assert all(o.prompt_logprobs is None for o in outputs[1:])


def test_a_prompt_that_fills_the_context_is_scored(qwen3: Subject) -> None:
    """With max_tokens 0 it needs no room for an answer; the one token that is drawn has no KV slot."""
    prompt = qwen3.prompts[3][:64]
    engine = qwen3.engine(max_model_tokens=64, num_pages=4)
    (output,) = run(engine, [ask("a", prompt, 0, prompt_logprobs=0)])["a"]
    assert output.finish_reason == "length" and len(output.prompt_logprobs or ()) == 64
    with pytest.raises(PromptTooLong):
        engine.add(ask("b", prompt, 1))
    (tokens,) = texts(engine, [ask("c", prompt[:40], 24)])
    assert tokens == best_next(qwen3.reference, prompt[:40], tokens)


def poison(model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Token 198 becomes not a number."""
    table = model.decoder.embedding
    honest = type(table).__call__

    def poisoned(self: Any, token_ids: torch.Tensor) -> torch.Tensor:  # noqa: ANN401
        hidden = honest(self, token_ids)
        hidden[token_ids == 198] = float("nan")
        return hidden

    monkeypatch.setattr(type(table), "__call__", poisoned)


def assert_finite(engine: Engine) -> None:
    """A NaN left in a page would spread to the next sequence that gets the page."""
    runner = engine._runner
    assert isinstance(runner, ModelRunner)
    assert all(layer.isfinite().all() for layer in runner._storage.layers)


def test_not_a_number_ends_its_request_and_nobody_elses(
    qwen3: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = qwen3.engine(num_pages=16, prefix_cache=False)
    poison(qwen3.model, monkeypatch)
    found = run(engine, [ask("bad", [1, 2, 198])])
    assert_finite(engine)  # before the next step overwrites it
    found |= run(engine, [ask("bad", [1, 2, 198]), ask("good", qwen3.prompts[2])])
    assert found["bad"][-1].finish_reason == "error" and "finite" in found["bad"][-1].error
    assert [t for o in found["good"] for t in o.token_ids] == qwen3.greedy[2]
    assert_finite(engine)


def test_not_a_number_in_an_early_chunk_reaches_no_other_page(
    qwen3: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = qwen3.engine(max_batch_tokens=40)
    poison(qwen3.model, monkeypatch)
    found = run(engine, [ask("bad", [198, *qwen3.prompts[3]])])
    assert [o.finish_reason for o in found["bad"]] == ["error"] and engine.kv.cached_pages == 0
    assert_finite(engine)
    found = run(engine, [ask("bad", [198, *qwen3.prompts[3]]), ask("good", qwen3.prompts[2])])
    assert [t for o in found["good"] for t in o.token_ids] == qwen3.greedy[2]
    assert_finite(engine)


@pytest.mark.parametrize("is_lost", [True, False])
def test_a_device_is_lost_if_it_fails_whatever_it_is_asked(
    is_lost: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = torch.AcceleratorError("an illegal memory access was encountered")

    def synchronize() -> None:
        if is_lost:
            raise error

    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    with pytest.raises(DeviceLost if is_lost else torch.AcceleratorError), _on_device():
        raise error
    with pytest.raises(StepTooLarge, match="no room"), _on_device():
        raise torch.OutOfMemoryError("no room")
