"""An EAGLE head says what the reference says, as chains and as trees, and changes no answer."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from backend.pico.batches import make_batch
from backend.pico.drafters.eagle import Eagle
from backend.speculative import BRANCHES
from backend.speculative.eagle import CATCH_UP_TOKENS, EagleDrafter
from backend.speculative.tree import TreeBudget, best_nodes
from backend.types import Draft, DraftTree, Sequence
from tests.backend.engine.driving import texts
from tests.backend.speculative.head_cases import (
    Pair,
    make_pair,
    say_it_when_preempted_in_small_chunks,
    say_what_the_reference_says,
)
from tests.backend.speculative.model_targets import draft_in, new_engine, requests, set_min_path_probability


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return make_pair(tmp_path_factory.mktemp("target"), "eagle")


@pytest.fixture(autouse=True, params=["compiled", "torch", "ahead"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How small heads are computed, and larger ones."""
    draft_in(request.param, monkeypatch)
    return str(request.param)


@pytest.fixture(autouse=True)
def whole_chains(monkeypatch: pytest.MonkeyPatch) -> None:
    """A head that was not trained is never sure."""
    set_min_path_probability(monkeypatch, 0.0)


def test_says_what_the_reference_says(pair: Pair, way: str) -> None:
    say_what_the_reference_says(pair)
    _, recording = new_engine(pair.model, "eagle", pair.folder)
    assert recording is not None and isinstance(recording.inner, EagleDrafter)
    assert (recording.inner._network.chain is not None) == (way != "torch")


def test_says_it_on_a_dense_target(tmp_path: Path) -> None:
    say_what_the_reference_says(make_pair(tmp_path, "eagle", "qwen3", tie_word_embeddings=False))


def test_says_it_when_preempted_in_small_chunks(pair: Pair) -> None:
    say_it_when_preempted_in_small_chunks(pair)


def test_long_sequences_catch_up_in_parts(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("backend.speculative.eagle.CATCH_UP_TOKENS", 20)
    assert CATCH_UP_TOKENS > 1000
    engine, recording = new_engine(pair.model, "eagle", pair.folder)
    assert recording is not None and isinstance(recording.inner, EagleDrafter)
    for request in requests():
        engine.add(request)
    while engine.has_work:
        engine.step()
    assert any(not said.draft for said in recording.said)
    pair.check(recording.said, 30)
    assert not recording.inner._num_stored


def test_a_chain_ends_where_the_head_is_not_sure(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    set_min_path_probability(monkeypatch, 1.1)
    engine, recording = new_engine(pair.model, "eagle", pair.folder)
    assert recording is not None
    for request in requests():
        engine.add(request)
    while engine.has_work:
        engine.step()
    assert {len(said.draft) for said in recording.said} == {1}


BUDGET = TreeBudget(num_nodes=12, depth=4)

Said = tuple[list[int], int, Draft]  # the sequence's tokens then, the depth asked for, the tree


def record(drafter: EagleDrafter) -> list[Said]:
    """What it says from now on."""
    said: list[Said] = []
    honest = drafter.propose

    def propose(sequences: list[Sequence], ks: list[int]) -> list[Draft]:
        drafts = honest(sequences, ks)
        for sequence, k, draft in zip(sequences, ks, drafts, strict=True):
            if draft:
                said.append((list(sequence.tokens), k, draft))
        return drafts

    drafter.propose = propose  # type: ignore[method-assign]
    return said


@torch.no_grad()
def likeliest(pair: Pair, tokens: list[int], path: list[int]) -> list[tuple[float, int]]:
    """What the reference predicts after `path`, best first."""
    ids = tokens + path
    view = pair.target.observe(make_batch([(ids, [True] * len(ids))], [0]))
    assert isinstance(pair.drafter, Eagle)
    *_, features = pair.drafter.rollout(pair.target, view, len(path) + 1)
    logits = pair.target.logits(features[0, len(ids) - 2])
    best = torch.log_softmax(logits.float(), dim=-1).topk(BRANCHES)
    return list(zip(best.values.tolist(), best.indices.tolist(), strict=True))


def reference_tree(pair: Pair, tokens: list[int], depth: int) -> DraftTree:
    """Paths go on level by level; each level's most likely are continued."""
    paths: list[list[int]] = []
    parents: list[int] = []
    totals: list[float] = []
    ends: list[tuple[int, list[int], float]] = [(-1, [], 0.0)]
    for _ in range(depth):
        begin = len(paths)
        for parent, path, total in ends:
            for logprob, token in likeliest(pair, tokens, path):
                paths.append([*path, token])
                parents.append(parent)
                totals.append(total + logprob)
        level = sorted(range(begin, len(paths)), key=lambda node: -totals[node])[:BRANCHES]
        ends = [(node, paths[node], totals[node]) for node in level]
    return best_nodes([path[-1] for path in paths], parents, totals, BUDGET.of(depth))


def test_trees_are_the_references_and_change_nothing(pair: Pair) -> None:
    asked = requests()
    plain = texts(new_engine(pair.model)[0], asked)
    engine, recording = new_engine(pair.model, "eagle", pair.folder, tree_nodes=BUDGET.num_nodes)
    assert recording is not None and isinstance(recording.inner, EagleDrafter)
    said = record(recording.inner)
    assert texts(engine, asked) == plain
    branching = [each for each in said if isinstance(each[2], DraftTree) and not each[2].is_chain]
    assert len(branching) > 15
    for tokens, k, draft in said[:: len(said) // 4 + 1]:
        assert draft == reference_tree(pair, tokens, k)


def test_trees_survive_preemption(pair: Pair) -> None:
    asked = requests(max_tokens=40, temperature=0.8)
    engine, _ = new_engine(
        pair.model, "eagle", pair.folder, tree_nodes=12, num_pages=12, max_batch_tokens=24, max_running=4
    )
    assert texts(engine, asked) == texts(new_engine(pair.model)[0], asked)
    assert engine.scheduler.preemptions_total > 0 and engine.kv.free_pages == 12


def test_a_head_with_one_sequence_and_one_level(tmp_path: Path) -> None:
    pair = make_pair(tmp_path, "eagle", "qwen3")
    engine, recording = new_engine(pair.model, "eagle", pair.folder, k=1, tree_nodes=3)
    assert recording is not None
    asked = requests()[:1]
    assert texts(engine, asked) == texts(new_engine(pair.model)[0], asked)
    assert {len(said.draft) for said in recording.said} <= {1, 2, 3}
