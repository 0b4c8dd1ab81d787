"""The roll-out loop: where chains end, and what a drafted token sees."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from backend.kernels.paged_attention import paged_attention
from backend.kernels.rotary import Angles
from backend.kv.storage import KVLayout, KVShape, KVStorage
from backend.speculative import BRANCHES, MIN_NODE_PROBABILITY, MIN_PATH_PROBABILITY
from backend.speculative.rollout import Beam, RolloutKV, page_table, roll_out
from backend.speculative.tree import TreeBudget, paths
from backend.types import DraftTree

VOCAB = 5


def logits_of(tokens: list[int], probabilities: list[float]) -> torch.Tensor:
    """Rows [B, VOCAB] whose most likely tokens are these."""
    rows = torch.full((len(tokens), VOCAB), 0.0)
    for row, token, probability in zip(rows, tokens, probabilities, strict=True):
        row[:] = (1.0 - probability) / (VOCAB - 1)
        row[token] = probability
    return rows.log()


@given(
    rows=st.lists(st.lists(st.floats(0.3, 0.999), min_size=6, max_size=6), min_size=1, max_size=4).flatmap(
        lambda rows: st.tuples(st.just(rows), st.lists(st.integers(1, 6), min_size=4, max_size=4))
    )
)
def test_chains_end_at_their_limit_or_where_the_path_is_unlikely(
    rows: tuple[list[list[float]], list[int]],
) -> None:
    probabilities, limits = rows[0], rows[1][: len(rows[0])]
    seen: list[list[int]] = []

    def step(number: int) -> torch.Tensor:
        return logits_of(
            [(row + number) % VOCAB for row in range(len(probabilities))], [p[number] for p in probabilities]
        )

    def advance(beam: Beam) -> torch.Tensor:
        seen.append(beam.tokens.tolist())
        return step(beam.level)

    chains = roll_out(step(0), advance, limits)
    for row, (chain, own, limit) in enumerate(zip(chains, probabilities, limits, strict=True)):
        assert chain == [(row + number) % VOCAB for number in range(len(chain))]
        reached = list(itertools.accumulate(own, lambda a, b: a * b))
        assert all(p > MIN_PATH_PROBABILITY - 1e-5 for p in reached[: len(chain) - 1])
        assert len(chain) == limit or reached[len(chain) - 1] < MIN_PATH_PROBABILITY + 1e-5
    assert len(seen) < max(limits), "no step after the last token"
    assert all(tokens == [(row + n) % VOCAB for row in range(len(chains))] for n, tokens in enumerate(seen))


def test_what_is_not_finite_ends_a_chain() -> None:
    nothing = torch.full((2, VOCAB), torch.nan)
    sure = logits_of([1, 1], [0.9, 0.9])
    assert [len(chain) for chain in roll_out(sure, lambda _: nothing, [4, 4])] == [2, 2]


LAYOUT = KVLayout((KVShape(num_kv_heads=2, head_dim=8),) * 2, torch.float32, torch.device("cpu"))


@pytest.mark.parametrize("is_tree", [False, True])
def test_a_drafted_token_sees_what_is_visible_and_its_own_path(*, is_tree: bool) -> None:
    torch.manual_seed(1)
    storage = KVStorage(LAYOUT, 9)
    storage.memory[0].normal_()
    known = [20, 3, 37]
    table = page_table([[3, 5], [8], [1, 0, 7]], 37)
    visible = np.arange(48) < np.array(known)[:, None]
    visible[0, :16], visible[2, 5] = False, False
    kv = RolloutKV(storage, table, visible, 5, first_layer=1)
    angles = Angles(torch.zeros(2, 1, 8), torch.zeros(3, dtype=torch.int32))
    drafted = torch.randn(5, 3, 4, 8)  # keys and values of 3 sequences: a token, then two or four
    kv.kv.write(0, kv.next(None, angles).slots[None], drafted[0])
    if is_tree:
        is_seen = torch.tensor([[True, False], [False, True]]).expand(3, -1, -1)
        context = kv.next(is_seen, angles)
        kv.kv.write(0, context.slots[None], torch.stack((drafted[1], drafted[2]), dim=1).flatten(0, 1))
        paths_seen = [[0, 1], [0, 2]]
    else:
        context = kv.next(torch.ones(3, 1, 1, dtype=torch.bool), angles)
        kv.kv.write(0, context.slots[None], drafted[1])
        paths_seen = [[0, 1]]
    queries = torch.randn(3 * len(paths_seen), 4, 8)
    found = paged_attention(queries, kv.kv.layers[0], context.plan.by_window[None])
    for row, path in itertools.product(range(3), range(len(paths_seen))):
        pages = torch.from_numpy(table[row])
        own = storage.layers[1][pages].flatten(0, 1)[torch.from_numpy(visible[row])]
        mine = drafted[paths_seen[path], row].view(-1, 2, 2, 8)
        keys, values = torch.cat((own, mine)).permute(1, 2, 0, 3)
        query = queries[row * len(paths_seen) + path].view(2, 2, 8)
        want = F.scaled_dot_product_attention(query, keys, values).flatten()
        torch.testing.assert_close(found[row * len(paths_seen) + path], want, rtol=1e-4, atol=1e-5)


def test_a_beam_follows_the_likeliest_paths() -> None:
    """Each token is followed by itself, then by the others in order."""

    def after(tokens: torch.Tensor) -> torch.Tensor:
        return logits_of(tokens.tolist(), [0.6] * len(tokens)) + 0.01 * torch.arange(VOCAB)

    def advance(beam: Beam) -> torch.Tensor:
        num_sequences, num_paths, num_drafted = beam.is_seen.shape
        assert beam.tokens.shape == beam.parents.shape == (num_sequences * num_paths,)
        assert num_drafted == beam.level * num_paths and beam.is_seen.sum(dim=2).eq(beam.level).all()
        return after(beam.tokens)

    trees = roll_out(after(torch.tensor([2, 4])), advance, [3, 1], TreeBudget(6, 3))
    assert all(isinstance(tree, DraftTree) for tree in trees)
    first, second = trees
    assert isinstance(first, DraftTree) and isinstance(second, DraftTree)
    assert paths(first.tokens, first.parents)[:3] == [(2,), (2, 2), (2, 2, 2)] and len(first) <= 6
    assert second.depth == 1 and second.tokens[0] == 4


Levels = list[list[float]]


@st.composite
def levels(draw: st.DrawFn) -> Levels:
    """Probabilities of VOCAB guesses at each of two tokens."""
    guess = st.floats(0.01, 1.0)
    return [[draw(guess) for _ in range(VOCAB)] for _ in range(2)]


@given(found=levels(), num_nodes=st.integers(1, 30))
def test_a_tree_of_independent_guesses_has_the_likeliest_paths(found: Levels, num_nodes: int) -> None:
    logits = torch.tensor(found, dtype=torch.float32).log()
    probabilities = logits.softmax(dim=-1).tolist()
    (tree,) = roll_out(
        logits[:1],
        lambda beam: logits[beam.level].expand(len(beam.tokens), -1),
        [2],
        TreeBudget(num_nodes, 2),
    )
    assert isinstance(tree, DraftTree)

    def reached(path: tuple[int, ...]) -> float:
        return math.prod(probabilities[level][token] for level, token in enumerate(path))

    likeliest = [sorted(range(VOCAB), key=lambda token: -each[token])[:BRANCHES] for each in probabilities]
    every = [(token,) for token in likeliest[0]] + list(itertools.product(*likeliest))
    best = sorted((reached(path) for path in every), reverse=True)[: max(num_nodes, 2)]
    wanted = [p for i, p in enumerate(best) if i == 0 or p >= MIN_NODE_PROBABILITY]
    got = paths(tree.tokens, tree.parents)
    assert [reached(path) for path in got] == pytest.approx(wanted, rel=1e-4)
    assert len(set(got)) == len(tree)
