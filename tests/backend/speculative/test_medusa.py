from __future__ import annotations

import pytest

from backend.pico.batches import make_batch
from backend.speculative.tree import paths
from backend.types import DraftTree, Sequence
from tests.backend.engine.driving import run, texts
from tests.backend.speculative.head_cases import (
    Pair,
    make_pair,
    say_it_when_preempted_in_small_chunks,
    say_what_the_reference_says,
)
from tests.backend.speculative.model_targets import draft_in, new_engine, requests, set_min_path_probability


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return make_pair(tmp_path_factory.mktemp("target"), "medusa")


@pytest.fixture(autouse=True, params=["torch", "ahead"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    draft_in(request.param, monkeypatch)


@pytest.fixture(autouse=True)
def whole_chains(monkeypatch: pytest.MonkeyPatch) -> None:
    """Heads that were not trained are never sure."""
    set_min_path_probability(monkeypatch, 0.0)


def test_says_what_the_reference_says(pair: Pair) -> None:
    say_what_the_reference_says(pair)


def test_says_it_when_preempted_in_small_chunks(pair: Pair) -> None:
    say_it_when_preempted_in_small_chunks(pair)


def test_trees_change_nothing_and_gain_by_their_branches(pair: Pair) -> None:
    asked = requests(temperature=0.8)
    plain = texts(new_engine(pair.model)[0], asked)
    rates = []
    for tree_nodes in (0, 16):
        engine, _ = new_engine(pair.model, "medusa", pair.folder, tree_nodes=tree_nodes)
        outputs = [output for found in run(engine, asked).values() for output in found]
        assert [t for output in outputs for t in output.token_ids] == [t for text in plain for t in text]
        drafts = [output for output in outputs if output.num_drafted]
        rates.append(sum(output.num_accepted for output in drafts) / len(drafts))
    assert rates[1] > rates[0]


def test_a_tree_holds_the_likeliest_products_of_the_reference(pair: Pair) -> None:
    tree, tokens = proposed(pair, tree_nodes=9)
    view = pair.target.observe(make_batch([(tokens, [True] * len(tokens))], [0]))
    ranks = pair.drafter.drafts(pair.target, view)[0, len(tokens) - 2]  # [heads, candidates]
    assert not tree.is_chain and len(tree) <= 9
    found = paths(tree.tokens, tree.parents)
    assert found[0] == (int(ranks[0, 0]),), "the likeliest comes first"
    for path in found:
        assert all(token in ranks[depth, :4] for depth, token in enumerate(path))
        better = [int(token) for token in ranks[len(path) - 1, :4]]
        for sibling in better[: better.index(path[-1])]:
            assert (*path[:-1], sibling) in found, "a likelier sibling is in the tree as well"


def proposed(pair: Pair, tree_nodes: int) -> tuple[DraftTree, list[int]]:
    """What the drafter says to the first request after its first token, and the tokens until then."""
    engine, recording = new_engine(pair.model, "medusa", pair.folder, tree_nodes=tree_nodes)
    assert recording is not None
    trees: list[tuple[DraftTree, list[int]]] = []
    honest = recording.inner.propose

    def propose(sequences: list[Sequence], ks: list[int]) -> object:
        drafts = list(honest(sequences, ks))
        trees.extend(
            (draft, list(sequence.tokens))
            for draft, sequence in zip(drafts, sequences, strict=True)
            if isinstance(draft, DraftTree)
        )
        return drafts

    recording.inner.propose = propose  # type: ignore[assignment,method-assign]
    texts(engine, requests()[:1])
    return next((tree, tokens) for tree, tokens in trees if not tree.is_chain)
