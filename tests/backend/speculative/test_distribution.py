"""At temperature 0.8 the distribution of what comes out is the model's: 20,480 draws and a chi-square test.

The model sees one token back, so that all draws after the same token are draws from the same distribution.
"""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from backend.config import EngineConfig, SpeculativeConfig
from backend.engine.capacity import runner_facts
from backend.engine.engine import Engine
from backend.engine.runner import ModelRunner
from backend.models.loaded import LoadedModel, load_model
from backend.speculative import verify
from backend.types import Request, SamplingParams
from tests.backend.models.checkpoints import Variant, write_checkpoint
from tests.backend.speculative.drafters import GuessingDrafter, TreeDrafter

VOCAB = 16
STREAMS, TOKENS = 64, 320
TEMPERATURE = 0.8
SHAPE = {"vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 1, "sliding_window": 1}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    folder: Path = tmp_path_factory.mktemp("one-back")
    write_checkpoint(Variant("one-back", "mistral", {**SHAPE, "initializer_range": 0.1}), folder)
    return load_model(EngineConfig(model="t", checkpoint=str(folder), device="cpu", dtype="float32"))


def new_engine(model: LoadedModel, drafter: GuessingDrafter, **changes: object) -> Engine:
    values = {"max_running": STREAMS, "max_batch_tokens": 1024, "num_pages": 2048}
    config = EngineConfig(
        model="t",
        checkpoint=model.config.checkpoint,
        speculative=SpeculativeConfig(drafter=drafter.name, max_tokens=3, adaptive=False),
        **(values | changes),  # type: ignore[arg-type]
    )
    facts = runner_facts(config, model)
    runner = ModelRunner(model, model.new_kv_storage(facts.num_pages), facts, STREAMS)
    return Engine(config, runner, drafters=[drafter])


def probabilities(model: LoadedModel) -> np.ndarray:
    """[VOCAB, VOCAB]: what follows each token, from prompts of one token."""
    engine = new_engine(model, GuessingDrafter(lambda tokens: 0, VOCAB, 0.0))
    params = SamplingParams(max_tokens=1, logprobs=VOCAB)
    for token in range(VOCAB):
        engine.add(Request(request_id=str(token), prompt_token_ids=[token], params=params))
    table = np.zeros((VOCAB, VOCAB))
    while engine.has_work:
        for output in engine.step():
            assert output.logprobs is not None
            for token, logprob in output.logprobs[0].top:
                table[int(output.request_id), token] = logprob
    weights = np.exp(table / TEMPERATURE)
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


small_trees = functools.partial(TreeDrafter, max_nodes=5)


def deviation(
    model: LoadedModel, streams: int = STREAMS, kind: Callable[..., GuessingDrafter] = GuessingDrafter
) -> float:
    """How many standard deviations the chi-square statistic lies above what chance gives."""
    expected = probabilities(model)
    likely = expected.argmax(axis=1)
    drafter = kind(lambda tokens: int(likely[tokens[-1]]), VOCAB, skill=0.7, seed=4)
    engine = new_engine(model, drafter, prefix_cache=False)
    for number in range(streams):
        params = SamplingParams(max_tokens=TOKENS, temperature=TEMPERATURE, seed=number, ignore_eos=True)
        engine.add(Request(request_id=str(number), prompt_token_ids=[number % VOCAB], params=params))
    last = [number % VOCAB for number in range(streams)]
    counts = np.zeros((VOCAB, VOCAB))
    accepted = 0
    while engine.has_work:
        for output in engine.step():
            accepted += output.num_accepted
            for token in output.token_ids:
                counts[last[int(output.request_id)], token] += 1
                last[int(output.request_id)] = token
    assert counts.sum() == streams * TOKENS and accepted > counts.sum() / 10
    wanted = expected * counts.sum(axis=1, keepdims=True)
    cells = wanted >= 5
    statistic = ((counts - wanted)[cells] ** 2 / wanted[cells]).sum()
    freedom = cells.sum() - VOCAB
    # Wilson and Hilferty: the cube root of chi-square over its mean is nearly normal.
    spread = 2 / (9 * freedom)
    return float(((statistic / freedom) ** (1 / 3) - (1 - spread)) / math.sqrt(spread))


def test_draws_with_drafts_follow_the_model(model: LoadedModel) -> None:
    assert STREAMS * TOKENS >= 20_000
    assert abs(deviation(model)) < 3.5


def test_draws_along_trees_follow_the_model(model: LoadedModel) -> None:
    assert abs(deviation(model, STREAMS // 4, small_trees)) < 3.5


def test_the_test_fails_when_acceptance_is_broken(
    model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest, rng = verify.num_accepted, random.Random(1)

    def generous(draft: Sequence[int], drawn: Sequence[int]) -> int:
        """Takes one in ten drafts unseen."""
        return len(draft) if rng.random() < 0.1 else honest(draft, drawn)

    def verdict_of(drafts: Sequence[Sequence[int]], drawn: Sequence[int], parents: None) -> verify.Verdict:
        verdict = honest_verify(drafts, drawn)
        for chunk, tokens in verdict.accepted.items():
            verdict.accepted[chunk] = list(drafts[chunk][: len(tokens)])
        return verdict

    honest_verify = verify.verify
    monkeypatch.setattr(verify, "num_accepted", generous)
    monkeypatch.setattr("backend.engine.runner.verify", verdict_of)
    assert deviation(model, streams=16) > 5


def test_the_test_fails_when_a_tree_is_entered_unseen(
    model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest, rng = verify.accepted_nodes, random.Random(1)

    def generous(tokens: Sequence[int], parents: Sequence[int], drawn: list[int]) -> list[int]:
        """Takes the first node of every other tree in place of what was drawn."""
        if rng.random() < 0.5:
            drawn[0] = tokens[0]
        return honest(tokens, parents, drawn)

    def verdict_of(
        drafts: Sequence[Sequence[int]], drawn: list[int], parents: Sequence[Sequence[int]]
    ) -> verify.Verdict:
        verdict = honest_verify(drafts, drawn, parents)
        for chunk, path in verdict.paths.items():
            if len(path) > 1:
                verdict.accepted[chunk] = [drafts[chunk][draw - path[0] - 1] for draw in path[1:]]
        return verdict

    honest_verify = verify.verify
    monkeypatch.setattr(verify, "accepted_nodes", generous)
    monkeypatch.setattr("backend.engine.runner.verify", verdict_of)
    assert deviation(model, 12, small_trees) > 5
