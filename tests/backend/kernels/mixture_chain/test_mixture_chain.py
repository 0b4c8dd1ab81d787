"""What the compiled loops remember and draft is what torch does."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from numba import typeof

from backend.kernels import mixture_chain
from backend.kv.storage import KVLayout, KVStorage
from backend.speculative.compiled_mixture import CompiledMixture, CompiledMixtureRounds
from backend.speculative.mixture_loading import load_mixture
from backend.speculative.mixture_rounds import TorchMixture, TorchMixtureRounds, Verified
from backend.types import PAGE_TOKENS, Request, SamplingParams, Sequence
from tests.backend.speculative.head_cases import Pair, make_pair
from tests.backend.speculative.model_targets import VOCAB

NUM_PAGES, PAGES_EACH = 64, 5
SHAPES: dict[str, dict[str, int]] = {
    "one vector": {"head_dim": 16},
    "more": {"head_dim": 32, "num_attention_heads": 6, "hidden_size": 20},
    "each key its query": {"head_dim": 16, "num_key_value_heads": 4},
}
Both = tuple[CompiledMixtureRounds, TorchMixtureRounds]


@pytest.fixture(scope="module", params=SHAPES)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return make_pair(tmp_path_factory.mktemp("target"), "mixture_of_attentions", **SHAPES[request.param])


def load(pair: Pair, most: int = 256) -> Both:
    config = pair.model.config
    layout = KVLayout(
        config.num_layers, config.num_kv_heads, config.head_dim, torch.float32, torch.device("cpu")
    )
    target = KVStorage(layout, NUM_PAGES)
    head = load_mixture(str(pair.folder), pair.model, most, most)
    assert isinstance(head, CompiledMixture)
    compiled, plain = head.open(target), TorchMixture(head.network).open(target)
    assert isinstance(compiled, CompiledMixtureRounds) and isinstance(plain, TorchMixtureRounds)
    return compiled, plain


def sequences(rng: random.Random, count: int, most: int = PAGES_EACH * PAGE_TOKENS) -> list[Sequence]:
    """With some known tokens each and one more, and pages in any order."""
    pages = rng.sample(range(NUM_PAGES), NUM_PAGES)
    found = []
    for _ in range(count):
        tokens = [rng.randrange(VOCAB) for _ in range(rng.randint(2, most))]
        request = Request(request_id="r", prompt_token_ids=tokens, params=SamplingParams(max_tokens=9))
        sequence = Sequence(request, tokens, len(tokens))
        sequence.num_computed_tokens = len(tokens) - 1
        sequence.pages = [pages.pop() for _ in range(PAGES_EACH)]
        found.append(sequence)
    return found


def verified(pair: Pair, asked: list[Sequence]) -> Verified:
    """All their known tokens, in any order; streams are random."""
    each = [(one, place) for one in asked for place in range(one.num_computed_tokens)]
    random.Random(3).shuffle(each)
    slots = [one.pages[place // PAGE_TOKENS] * PAGE_TOKENS + place % PAGE_TOKENS for one, place in each]
    config = pair.model.config
    return Verified(
        torch.tensor([one.tokens[place] for one, place in each]),
        torch.tensor([place for _, place in each]),
        torch.tensor(slots),
        torch.randn(len(each), config.num_layers, config.hidden_size),
        max(one.num_computed_tokens for one in asked),
    )


def everything() -> np.ndarray:
    return np.ones(NUM_PAGES, dtype=bool)


@pytest.mark.parametrize("count", [1, 4, 9])
def test_both_ways_draft_the_same(pair: Pair, count: int) -> None:
    rng, both = random.Random(count), load(pair)
    for memory in both[0]._memories:
        memory[:] = np.nan  # what was never written is nobody's
    asked = sequences(rng, count)
    for rounds in both:
        torch.manual_seed(count)
        rounds.remember(verified(pair, asked))
    compiled, plain = (rounds.draft(asked, everything(), 6, 0.0) for rounds in both)
    assert compiled == plain
    assert [len(draft) for draft in compiled] == [6] * count
    assert count == 1 or len({token for draft in compiled for token in draft}) > 1


def test_drafts_go_on_over_pages_of_their_own(pair: Pair) -> None:
    both = load(pair)
    asked = sequences(random.Random(2), 3)
    for rounds in both:
        torch.manual_seed(1)
        rounds.remember(verified(pair, asked))
    compiled, plain = (rounds.draft(asked, everything(), 40, 0.0) for rounds in both)
    assert compiled == plain and [len(draft) for draft in compiled] == [40] * 3


def test_of_pages_that_were_not_read_nothing_is_seen(pair: Pair) -> None:
    both = load(pair)
    asked = sequences(random.Random(5), 8)
    is_read = everything()
    for sequence in asked:  # but the last known token's, all are read or not by chance
        last = (sequence.num_computed_tokens - 1) // PAGE_TOKENS
        for page in sequence.pages[:last:2]:
            is_read[page] = False
    for rounds in both:
        torch.manual_seed(1)
        rounds.remember(verified(pair, asked))
    whole = both[0].draft(asked, everything(), 6, 0.0)
    compiled, plain = (rounds.draft(asked, is_read, 6, 0.0) for rounds in both)
    assert compiled == plain and compiled != whole
    for memory in both[0]._memories:
        memory[~is_read] = np.nan
    assert both[0].draft(asked, is_read, 6, 0.0) == compiled


def test_both_stop_at_the_same_place(pair: Pair) -> None:
    both = load(pair)
    asked = sequences(random.Random(1), 5)
    for rounds in both:
        torch.manual_seed(1)
        rounds.remember(verified(pair, asked))
    whole = both[1].draft(asked, everything(), 8, 0.0)
    found = []
    for least_reached in (1.1, 0.9, 0.7, 0.5, 0.3, 0.1, 0.0):
        compiled, plain = (rounds.draft(asked, everything(), 8, least_reached) for rounds in both)
        assert compiled == plain
        assert all(chain == all_[: len(chain)] for chain, all_ in zip(compiled, whole, strict=True))
        found.append([len(chain) for chain in compiled])
    assert found[0] == [1] * 5 and found[-1] == [8] * 5
    assert any(len(set(lengths)) > 2 for lengths in found), "each chain ends by itself"


@pytest.mark.parametrize("scale", [0.0, 1.0, 100.0])
def test_it_is_remembered_the_same_by_whom_and_in_what_parts(pair: Pair, scale: float) -> None:
    tokens = verified(pair, sequences(random.Random(7), 6))
    tokens.streams.mul_(scale)
    found = []
    for size, most in ((len(tokens.slots), 1000), (1, 1000), (7, 1000), (len(tokens.slots), 0)):
        rounds, _ = load(pair)
        rounds._most_remembered = most  # with 0 torch computes it
        for begin in range(0, len(tokens.slots), size):
            rounds.remember(tokens.select(torch.arange(begin, min(begin + size, len(tokens.slots)))))
        found.append(rounds._memories)
    for own, cross in found[1:]:
        assert own.any() and cross.any()
        np.testing.assert_allclose(own, found[0].own, atol=1e-4)
        np.testing.assert_allclose(cross, found[0].cross, atol=1e-4)


def test_positions_that_have_no_angles_are_refused(pair: Pair) -> None:
    compiled, plain = load(pair, most=24)
    asked = sequences(random.Random(1), 3, most=17)
    for rounds in (compiled, plain):
        torch.manual_seed(1)
        rounds.remember(verified(pair, asked))
    room = 24 - max(one.num_computed_tokens for one in asked)
    assert compiled.draft(asked, everything(), room, 0.0) == plain.draft(asked, everything(), room, 0.0)
    with pytest.raises(ValueError, match="position 25 are asked for; there are 24"):
        compiled.draft(asked, everything(), room + 1, 0.0)


@pytest.mark.parametrize("most", [0, 1000], ids=["by torch", "compiled"])
def test_what_is_not_finite_is_not_remembered(pair: Pair, most: int) -> None:
    rounds, _ = load(pair)
    rounds._most_remembered = most
    asked = sequences(random.Random(4), 3)
    tokens = verified(pair, asked)
    for place, value in enumerate((torch.nan, torch.inf, -torch.inf)):
        tokens.streams[place] = value
    rounds.remember(tokens)
    for memory in rounds._memories:
        assert np.isfinite(memory).all() and memory.any()


def test_its_memory_is_accounted_for(pair: Pair) -> None:
    rounds, _ = load(pair)
    assert rounds._head.page_bytes * NUM_PAGES == sum(memory.nbytes for memory in rounds._memories)


def test_what_is_much_depends_on_torchs_threads(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 64)
    assert load(pair)[0]._most_remembered == 16


def test_large_heads_are_left_to_torch(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    config = pair.model.config
    widest = config.hidden_size * max(3 * 3, config.num_heads + 2 * config.num_kv_heads) * config.head_dim
    for most, kind in ((widest, CompiledMixture), (widest - 1, TorchMixture)):
        monkeypatch.setattr("backend.speculative.compiled_layer.MAX_ELEMENTS", most)
        assert isinstance(load_mixture(str(pair.folder), pair.model, 256, 256), kind)


@pytest.mark.parametrize("function", ["_mixture_chain", "_remember", "_store"])
def test_no_request_waits_for_the_compiler(
    pair: Pair, function: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Opening has called the loops with the types that requests call them with."""
    called: list[list[object]] = []

    def types_of(value: object) -> list[object]:
        return (
            [part for each in value for part in types_of(each)]
            if isinstance(value, tuple)
            else [typeof(value)]
        )

    def record(*arguments: object) -> None:
        called.append([part for each in arguments for part in types_of(each)])
        original(*arguments)

    original = getattr(mixture_chain, function)
    monkeypatch.setattr(mixture_chain, function, record)
    rounds, _ = load(pair)
    assert len(called) == 1
    assert not any(memory.any() for memory in rounds._memories)
    asked = sequences(random.Random(1), 3)
    rounds._most_remembered = 0 if function == "_store" else 1000
    rounds.remember(verified(pair, asked))
    rounds.draft(asked, everything(), 4, 0.1)
    assert len(called) == 2 and called[1] == called[0]
