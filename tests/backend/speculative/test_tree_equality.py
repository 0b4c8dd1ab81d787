"""Trees of drafts never change the output of the real model, in float32, whatever else is going on."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from backend.config import EngineConfig, SpeculativeConfig
from backend.engine.runner import ModelRunner
from backend.kernels.paged_attention.tree import seen_tokens
from backend.models.loaded import LoadedModel, load_model
from backend.speculative import verify
from backend.types import DraftOptions, GrammarSpec, Plan, Request, StepOutput
from tests.backend.engine.driving import run
from tests.backend.lora.making import Recipe, checkpoint, make_engine, make_store, write_adapter
from tests.backend.speculative.drafters import RandomDrafter, TreeDrafter
from tests.backend.speculative.test_equality import CASES, POISON, VOCAB, answers, requests
from tests.backend.structured.pico import Pico

TREES = SpeculativeConfig(drafter="trees", max_tokens=5, adaptive=False)


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> EngineConfig:
    return checkpoint("mistral-window", tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="module")
def model(config: EngineConfig) -> LoadedModel:
    return load_model(config)


class Oracle:
    """Says what is known to follow, and anything else where nothing is."""

    def __init__(self, asked: list[Request], found: dict[str, list[StepOutput]]) -> None:
        self._known = [
            [*request.prompt_token_ids, *(t for o in found[request.request_id] for t in o.token_ids)]
            for request in asked
        ]
        self._rng = random.Random(0)

    def __call__(self, tokens: list[int]) -> int:
        for known in self._known:
            if len(known) > len(tokens) and known[: len(tokens)] == tokens:
                return known[len(tokens)]
        return self._rng.randrange(VOCAB)


def trees(
    asked: list[Request], plain: dict[str, list[StepOutput]], seed: int = 0, nodes: int = 10
) -> TreeDrafter:
    return TreeDrafter(Oracle(asked, plain), VOCAB, skill=0.6, seed=seed, max_nodes=nodes)


def is_at_work(found: dict[str, list[StepOutput]]) -> bool:
    """Whether drafts were accepted, and rejected."""
    outputs = [output for each in found.values() for output in each]
    accepted, drafted = sum(o.num_accepted for o in outputs), sum(o.num_drafted for o in outputs)
    return 10 < accepted < drafted


@pytest.mark.parametrize("case", CASES)
def test_the_output_is_that_without_drafts(config: EngineConfig, model: LoadedModel, case: str) -> None:
    asked = requests(**CASES[case])
    plain = run(make_engine(config, model), asked)
    engine = make_engine(config, model, drafters=[trees(asked, plain)], speculative=TREES)
    cold = run(engine, asked)
    assert answers(cold) == answers(plain)
    assert is_at_work(cold) or case == "stops"
    if case in ("greedy", "drawn"):
        assert answers(run(engine, asked)) == answers(plain), "prefix hits"


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_also_when_preempted_in_small_chunks(
    config: EngineConfig, model: LoadedModel, temperature: float
) -> None:
    asked = requests(temperature=temperature, repetition_penalty=1.1, max_tokens=40)
    plain = run(make_engine(config, model), asked)
    engine = make_engine(
        config,
        model,
        drafters=[trees(asked, plain)],
        speculative=TREES,
        num_pages=11,
        max_batch_tokens=24,
        max_running=4,
    )
    found = run(engine, asked)
    assert answers(found) == answers(plain) and is_at_work(found)
    assert engine.scheduler.preemptions_total > 0 and engine.kv.free_pages == 11


@settings(max_examples=6, deadline=None)
@given(
    seed=st.integers(0, 2**32), nodes=st.sampled_from([3, 10, 80]), temperature=st.sampled_from([0.0, 0.8])
)
def test_random_trees(
    config: EngineConfig, model: LoadedModel, seed: int, nodes: int, temperature: float
) -> None:
    asked = requests(temperature=temperature, max_tokens=12)
    plain = run(make_engine(config, model), asked)
    engine = make_engine(config, model, drafters=[trees(asked, plain, seed, nodes)], speculative=TREES)
    assert answers(run(engine, asked)) == answers(plain)


def test_beside_chains_and_plain_sequences_with_adapters(
    config: EngineConfig, model: LoadedModel, tmp_path: Path
) -> None:
    store = make_store(model)
    folders = [write_adapter(tmp_path / str(i), model, Recipe(seed=i)) for i in range(2)]
    digests = ["", *(store.load_now(f"adapter{i}", folder).digest for i, folder in enumerate(folders)), ""]
    asked = [
        msgspec.structs.replace(request, adapter=digest)
        for request, digest in zip(requests(temperature=0.8), digests, strict=True)
    ]
    plain = run(make_engine(config, model, store), asked)
    assert answers(plain)["1"] != answers(run(make_engine(config, model), requests(temperature=0.8)))["1"]
    drafters = [trees(asked, plain), RandomDrafter(VOCAB)]
    engine = make_engine(config, model, store, drafters=drafters, speculative=TREES)
    ways = [None, None, "random", "none"]
    found = run(engine, [by(request, way) for request, way in zip(asked, ways, strict=True)])
    assert answers(found) == answers(plain) and is_at_work(found)


def test_observers_find_accepted_tokens_side_by_side(config: EngineConfig, model: LoadedModel) -> None:
    asked = requests()
    plain = run(make_engine(config, model), asked)
    want: dict[tuple[str, int], torch.Tensor] = {}
    num_same = 0

    class Watcher:
        wants_layers = False

        def see(self, plan: Plan, *rest: Any) -> None:  # noqa: ANN401
            nonlocal num_same
            offset, hidden = 0, rest[-1]
            for chunk in plan.chunks:
                for i in range(chunk.num_tokens):
                    key = (chunk.sequence.request.request_id, chunk.start + i)
                    num_same += key in want and torch.allclose(want[key], hidden[offset + i], atol=1e-4)
                    want.setdefault(key, hidden[offset + i].clone())
                offset += chunk.num_tokens

    engine = make_engine(config, model)
    assert isinstance(engine._runner, ModelRunner)
    engine._runner.observers.append(Watcher())
    run(engine, asked)
    assert num_same == 0
    num_positions = len(want)
    engine = make_engine(config, model, drafters=[trees(asked, plain)], speculative=TREES)
    assert isinstance(engine._runner, ModelRunner)
    engine._runner.observers.append(Watcher())
    run(engine, asked)
    assert num_same >= num_positions, "each position's hidden state was where a chain would have it"


def test_not_a_number_in_a_rejected_branch_harms_nobody(
    config: EngineConfig, model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = [r for r in requests(logit_bias={POISON: -1000.0}) if POISON not in r.prompt_token_ids]
    plain = run(make_engine(config, model), asked)
    table = type(model.decoder.embedding)
    honest = table.__call__

    def poisoned(self: object, token_ids: torch.Tensor) -> torch.Tensor:
        hidden = honest(self, token_ids)  # type: ignore[arg-type]
        hidden[token_ids == POISON] = float("nan")
        return hidden

    monkeypatch.setattr(table, "__call__", poisoned)
    oracle, rng = Oracle(asked, plain), random.Random(2)
    drafter = TreeDrafter(lambda tokens: POISON if rng.random() < 0.2 else oracle(tokens), VOCAB, skill=0.8)
    engine = make_engine(config, model, drafters=[drafter], speculative=TREES)
    found = run(engine, asked)
    assert answers(found) == answers(plain) and is_at_work(found)


def test_grammars_mask_each_node_by_its_path() -> None:
    pico = Pico()
    try:
        grammar = GrammarSpec(kind="regex", text="(yes|no)( (yes|no|maybe)){12}")
        asked = [
            pico.request(
                str(i), "Say something.", grammar if i else None, seed=i, temperature=1.0, max_tokens=40
            )
            for i in range(4)
        ]
        plain = run(pico.engine(dtype="float32"), asked)
        drafter = TreeDrafter(Oracle(asked, plain), pico.vocab_size, skill=0.6, max_nodes=10)
        found = run(pico.engine(dtype="float32", drafters=[drafter], speculative=TREES), asked)
        assert answers(found) == answers(plain) and is_at_work(found)
    finally:
        pico.compiler.close()


def as_chain(tree: tuple[int, ...] | int, window: int | None) -> NDArray[np.int64]:
    """Shows every token of a tree all before it."""
    return seen_tokens(len(tree) + 1 if isinstance(tree, tuple) else tree, window)


@pytest.mark.parametrize("part", ["acceptance", "mask", "order"])
def test_the_test_fails_when_a_part_is_broken(
    config: EngineConfig, model: LoadedModel, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    def generous(tokens: tuple[int, ...], parents: tuple[int, ...], drawn: list[int]) -> list[int]:
        """Takes the first child unseen."""
        return [0] if parents else []

    if part == "acceptance":
        monkeypatch.setattr(verify, "accepted_nodes", generous)
    elif part == "mask":
        monkeypatch.setattr("backend.kernels.paged_attention.plan.seen_tokens", as_chain)
    else:
        monkeypatch.setattr("backend.engine.runner.detours", lambda *args: ([], []))
    asked = requests()
    plain = run(make_engine(config, model), asked)
    engine = make_engine(config, model, drafters=[trees(asked, plain)], speculative=TREES)
    assert answers(run(engine, asked)) != answers(plain)


def by(request: Request, drafter: str | None) -> Request:
    """The request with its own word on who drafts; None: the model's drafter."""
    return msgspec.structs.replace(request, draft=DraftOptions(drafter=drafter))
