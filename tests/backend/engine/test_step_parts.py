"""A device without memory for a whole step computes it in parts, and nothing of the answers changes."""

from __future__ import annotations

import itertools
import logging
from collections import deque
from pathlib import Path

import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from backend.config import EngineConfig
from backend.engine.capacity import runner_facts
from backend.engine.engine import Engine
from backend.engine.runner import ModelRunner
from backend.engine.step_parts import RAISE_AFTER, TokenLimit, joined, take_part
from backend.errors import StepTooLarge
from backend.models.loaded import LoadedModel, load_model
from backend.types import Plan, Request, SamplingParams, ScheduledChunk, StepOutput
from tests.backend.engine.driving import run
from tests.backend.engine.fake_runner import LaunchedFake, expected
from tests.backend.engine.test_engine import ask, drain, new_engine, text
from tests.backend.engine.test_flight import Noting
from tests.backend.models.checkpoints import VARIANTS, write_checkpoint
from tests.backend.speculative.sequences import running


class Small(Noting):
    """Has memory for steps of `capacity` tokens."""

    capacity = 1 << 30

    def launch(self, plan: Plan) -> LaunchedFake:
        if plan.num_tokens > self.capacity:
            raise StepTooLarge(f"{plan.num_tokens} tokens")
        return super().launch(plan)


@settings(max_examples=60)
@given(
    capacity=st.integers(1, 40),
    prompts=st.lists(st.lists(st.integers(3, 99), min_size=1, max_size=60), min_size=1, max_size=5),
    is_ahead=st.booleans(),
    has_drafts=st.booleans(),
    max_tokens=st.sampled_from([1, 12]),
)
def test_any_size_gives_the_same_text(
    capacity: int, prompts: list[list[int]], is_ahead: bool, has_drafts: bool, max_tokens: int
) -> None:
    runner = Small()
    runner.is_ahead = is_ahead
    runner.capacity = capacity
    engine = new_engine(runner)
    for number, prompt in enumerate(prompts):
        asked = ask(str(number), prompt, max_tokens)
        if has_drafts:
            asked = msgspec.structs.replace(asked, prediction_token_ids=expected(prompt, max_tokens))
        engine.add(asked)
    outputs = drain(engine)
    engine.scheduler.check_invariants()
    for number, prompt in enumerate(prompts):
        assert text(outputs[str(number)]) == expected(prompt, max_tokens)
        *before, last = outputs[str(number)]
        assert last.finish_reason in ("stop", "length"), "nothing is said after the end"
        assert not any(output.finish_reason or output.error for output in before)
    assert all(plan.num_tokens <= capacity for plan in runner.plans)


def test_the_limit_is_kept_and_ends_when_there_is_memory_again(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    runner = Small()
    engine = new_engine(runner)
    runner.capacity = 16
    engine.add(ask("a", [5] * 60, 5 * RAISE_AFTER, ignore_eos=True))
    first = engine.step()
    assert "no memory for a step of 60 tokens: it computes at most 30 at once" in caplog.text
    assert caplog.text.count("no memory") == 2, "what is known to fail is not tried in each step"
    runner.capacity = 1 << 30
    outputs = drain(engine)
    assert "no limit of tokens again" in caplog.text
    assert len(text(first + outputs["a"])) == 5 * RAISE_AFTER
    assert runner.was_ahead[:2] == [False] * 2 and runner.was_ahead[-1], "it runs ahead again"


def test_a_device_without_any_memory_is_broken() -> None:
    runner = Small()
    runner.capacity = 0
    engine = new_engine(runner)
    engine.add(ask("a", [5, 6, 7], 4))
    engine.add(ask("b", [5, 6, 7], 4))
    with pytest.raises(StepTooLarge):
        engine.step()


def test_another_error_in_a_part_ends_only_its_request() -> None:
    runner = Small(poison=666)
    runner.capacity = 4
    engine = new_engine(runner)
    for name, prompt in (("a", [5] * 10), ("bad", [6, 666, 7, 8, 9, 9]), ("b", [7] * 9)):
        engine.add(ask(name, prompt, 6))
    outputs = drain(engine)
    assert text(outputs["a"]) == expected([5] * 10, 6) and text(outputs["b"]) == expected([7] * 9, 6)
    assert outputs["bad"][-1].finish_reason == "error" and not text(outputs["bad"])


def test_parts_cut_prompts_and_never_drafts() -> None:
    first, second = running([1, 2], [3]), running([1], [2])
    waiting = deque([ScheduledChunk(first, 0, 5), ScheduledChunk(second, 1, 4, (7, 8, 9))])
    parts = []
    while part := take_part(waiting, 3, ()):
        parts.append([(chunk.start, chunk.num_tokens, chunk.draft) for chunk in part])
    assert parts == [[(0, 3, ())], [(3, 2, ()), (1, 1, ())]]
    pieces = [ScheduledChunk(first, 0, 3), ScheduledChunk(first, 3, 2), ScheduledChunk(second, 1, 1)]
    whole = [ScheduledChunk(first, 0, 5), ScheduledChunk(second, 1, 1)]
    assert joined(pieces, [False, True, True], ()) == (whole, [False, True])
    assert joined(pieces, [True, True, True], {first}) == (whole[1:], [True])


def test_the_limit_doubles_until_it_is_not_needed() -> None:
    limit = TokenLimit()
    limit.lower(40)
    limit.lower(20)
    sizes = []
    for _ in range(2 * RAISE_AFTER + 3):
        limit.begin_step()
        sizes.append(limit.max_tokens)
    assert list(dict.fromkeys(sizes)) == [10, 20, None]


@pytest.mark.parametrize(
    ("name", "capacity", "first"), [("qwen3", 7, 0), ("qwen3.5", 7, 0), ("qwen3.5", 2, 1)]
)
def test_a_real_model_says_the_same(
    name: str, capacity: int, first: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory ends late in a step, from the `first` on: it has changed recurrent states already."""
    write_checkpoint(next(v for v in VARIANTS if v.name == name), tmp_path)
    config = EngineConfig(
        model="t",
        checkpoint=str(tmp_path),
        device="cpu",
        dtype="float32",
        max_running=4,
        num_pages=64,
        max_batch_tokens=192,
    )
    model, forward = load_model(config), LoadedModel.forward
    facts = runner_facts(config, model)

    def answers(capacity: int) -> dict[str, list[StepOutput]]:
        calls = itertools.count()

        def short(own: LoadedModel, token_ids: Tensor, *more: object) -> Tensor:
            hidden = forward(own, token_ids, *more)  # type: ignore[arg-type]
            if next(calls) >= first and len(token_ids) > capacity:
                raise torch.OutOfMemoryError("CUDA out of memory")
            return hidden

        monkeypatch.setattr(LoadedModel, "forward", short)
        runner = ModelRunner(model, model.new_kv_storage(facts.num_pages, facts.num_states), facts, 4)
        return run(Engine(config, runner), requests())

    whole, parts = answers(1 << 30), answers(capacity)
    for request_id, outputs in whole.items():
        told, others = ([o for o in each if o.token_ids] for each in (outputs, parts[request_id]))
        assert text(others) == text(told) and others[-1].finish_reason == "length"
        assert len(others[0].prompt_logprobs or ()) == 130


def requests() -> list[Request]:
    """Three that share steps: penalties count each token once, prompts are scored whole."""
    drawn = {"temperature": 0.8, "seed": 3, "presence_penalty": 0.9, "logprobs": 2, "prompt_logprobs": 1}
    return [
        Request(
            request_id=str(number),
            prompt_token_ids=[number + 1] * 130,
            params=SamplingParams(max_tokens=12, ignore_eos=True, **drawn),  # type: ignore[arg-type]
        )
        for number in range(3)
    ]
