"""The compiled roll-out drafts what the same networks draft with torch, and stores what they store."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.config import EngineConfig
from backend.kernels import draft_chain
from backend.kv.storage import KVLayout, KVShape, KVStorage
from backend.speculative.draft_model import DraftModelDrafter, load_draft_model
from backend.speculative.eagle import EagleDrafter, load_eagle
from backend.speculative.heads import HiddenStates, slots_of
from backend.speculative.mixture_of_attentions import MixtureDrafter, load_mixture
from backend.types import PAGE_TOKENS, Request, SamplingParams, Sequence
from tests.backend.speculative.head_cases import make_pair
from tests.backend.speculative.model_targets import VOCAB, set_min_path_probability, write_model

NUM_PAGES, PAGES_EACH, WIDTH = 64, 6, 24
CONFIG = EngineConfig(model="t", checkpoint="/none", device="cpu", dtype="float32", max_model_tokens=256)
CPU = torch.device("cpu")
KINDS: dict[str, dict[str, Any]] = {
    "narrow": {"num_hidden_layers": 2, "head_dim": 8, "hidden_size": 16},
    "deep": {"num_hidden_layers": 3, "tie_word_embeddings": False},
    "each key its query": {"num_hidden_layers": 1, "num_key_value_heads": 4, "rms_norm_eps": 0.1},
    "wide": {"num_hidden_layers": 1, "vocab_size": 45, "head_dim": 32, "intermediate_size": 37},
    "in 32 bits": {"is_rounded": False},
}
SLOW_KINDS = {"in 32 bits"}
"""Compiled for a minute, to read float32 for bfloat16; products with both have tests of their own."""


@pytest.fixture(autouse=True)
def whole_chains(monkeypatch: pytest.MonkeyPatch) -> None:
    set_min_path_probability(monkeypatch, 0.0)


@pytest.fixture(
    scope="module",
    params=[pytest.param(kind, marks=pytest.mark.slow if kind in SLOW_KINDS else ()) for kind in KINDS],
)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("draft")
    write_model(folder, "qwen3", seed=2, **KINDS[request.param])
    return folder


@pytest.fixture(scope="module", params=["qwen3_moe", "llama"])
def heads(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A head of each kind on one target; llama's has a matrix of its own for logits."""
    found = {}
    for name in ("eagle", "mixture_of_attentions"):
        changes = {} if request.param == "qwen3_moe" else {"tie_word_embeddings": False, "rms_norm_eps": 0.1}
        found[name] = make_pair(tmp_path_factory.mktemp("target"), name, request.param, **changes)
    return found


def sequences(rng: random.Random, count: int, most: int = 70) -> list[Sequence]:
    """With some tokens each, all but the last computed, and pages in any order."""
    pages = rng.sample(range(NUM_PAGES), NUM_PAGES)
    found = []
    for _ in range(count):
        tokens = [rng.randrange(VOCAB) for _ in range(rng.randint(2, most))]
        request = Request(request_id="r", prompt_token_ids=tokens, params=SamplingParams(max_tokens=9))
        sequence = Sequence(request, tokens, len(tokens), num_computed_tokens=len(tokens) - 1)
        sequence.pages = [pages.pop() for _ in range(PAGES_EACH)]
        found.append(sequence)
    return found


def stored(storage: KVStorage, sequence: Sequence, end: int) -> np.ndarray:
    """Keys and values of a sequence's first columns."""
    places = [(sequence.pages[at // PAGE_TOKENS], at % PAGE_TOKENS) for at in range(end)]
    return np.stack([storage.memory[0].numpy()[:, page, slot] for page, slot in places], axis=1)


def draft_models(folder: Path) -> tuple[DraftModelDrafter, DraftModelDrafter]:
    network = load_draft_model(CONFIG, str(folder), 128)
    assert network.chain is not None
    return DraftModelDrafter(network, NUM_PAGES), DraftModelDrafter(replace(network, chain=None), NUM_PAGES)


@pytest.mark.parametrize("count", [1, 4, 9])
def test_draft_models_draft_the_same(model: Path, count: int) -> None:
    """Sequences bring different numbers of new tokens and limits; then they go on with some of the drafts."""
    both, rng = draft_models(model), random.Random(count)
    asked = sequences(rng, count)
    for sequence in asked:  # some of each was computed before
        begin = rng.randrange(len(sequence.tokens))
        sequence.num_computed_tokens = 0
        if begin:
            assert [drafter._compute([sequence], [begin], [0]) for drafter in both] == [[[]], [[]]]
        sequence.num_computed_tokens = begin
    limits = [rng.randint(1, 7) for _ in asked]
    counts = [sequence.num_uncomputed_tokens for sequence in asked]
    compiled, plain = (drafter._compute(asked, counts, limits) for drafter in both)
    assert compiled == plain and [len(draft) for draft in compiled] == limits
    for sequence, draft in zip(asked, compiled, strict=True):
        ours, theirs = (
            stored(drafter._storage, sequence, len(sequence.tokens) + len(draft) - 1) for drafter in both
        )
        assert np.abs(theirs).min(axis=(0, 2, 3, 4)).max() > 0
        np.testing.assert_allclose(ours, theirs, atol=1e-4)


def test_chains_end_at_the_same_token(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    both, asked = draft_models(model), sequences(random.Random(1), 5)
    for sequence in asked:
        sequence.num_computed_tokens = 0
    counts = [len(sequence.tokens) for sequence in asked]
    whole = both[1]._compute(asked, counts, [8] * 5)
    lengths = []
    for probability in (1.1, 0.9, 0.7, 0.5, 0.3, 0.1, 0.0):
        set_min_path_probability(monkeypatch, probability)
        compiled, plain = (drafter._compute(asked, counts, [8] * 5) for drafter in both)
        assert compiled == plain
        assert all(chain == all_[: len(chain)] for chain, all_ in zip(compiled, whole, strict=True))
        lengths.append([len(chain) for chain in compiled])
    assert lengths[0] == [1] * 5 and lengths[-1] == [8] * 5 and lengths == sorted(lengths)


def test_what_has_no_room_is_refused(model: Path) -> None:
    network = load_draft_model(CONFIG, str(model), 8)
    drafter = DraftModelDrafter(network, NUM_PAGES)
    sequence = sequences(random.Random(1), 1)[0]
    sequence.tokens[:], sequence.num_computed_tokens = [1] * 6, 0
    assert len(drafter._compute([sequence], [6], [3])[0]) == 3
    with pytest.raises(ValueError, match="9 tokens .* room for 8"):
        drafter._compute([sequence], [6], [4])


def eagles(pair: Any) -> tuple[EagleDrafter, EagleDrafter]:  # noqa: ANN401
    network = load_eagle(CONFIG, pair.model, str(pair.folder))
    assert network.chain is not None
    states = HiddenStates(NUM_PAGES, WIDTH, torch.float32, CPU)
    torch.manual_seed(1)
    states._slots.normal_()
    states._slots[::7] = torch.nan  # as of a failed step: nothing of it may be seen

    def drafter(chain: object) -> EagleDrafter:
        return EagleDrafter(replace(network, chain=chain), NUM_PAGES, states)

    return drafter(network.chain), drafter(None)


@pytest.mark.parametrize("count", [1, 4, 9])
def test_eagle_heads_draft_the_same(heads: dict[str, Any], count: int) -> None:
    both, rng = eagles(heads["eagle"]), random.Random(count)
    asked = sequences(rng, count)
    for _ in range(3):
        limits = [rng.randint(1, 7) for _ in asked]
        compiled, plain = (drafter.propose(asked, limits) for drafter in both)
        assert compiled == plain and [len(draft) for draft in compiled] == limits
        for sequence in asked:
            ours, theirs = (stored(d._storage, sequence, sequence.num_computed_tokens) for d in both)
            np.testing.assert_allclose(ours, theirs, atol=1e-4)
            accepted = [rng.randrange(VOCAB) for _ in range(rng.randint(1, 6))]
            sequence.tokens += accepted
            sequence.num_computed_tokens += len(accepted)


Mixtures = tuple[MixtureDrafter, MixtureDrafter]


def mixtures(pair: Any, garbage: float = 0.0) -> Mixtures:  # noqa: ANN401
    network = load_mixture(CONFIG, pair.model, str(pair.folder))
    assert network.chain is not None
    config, heads = pair.model.config, pair.model.config.attention
    shape = KVShape(heads.num_kv_heads, heads.head_dim)
    layout = KVLayout((shape,) * config.num_layers, torch.float32, CPU)
    found = (
        MixtureDrafter(network, KVStorage(layout, NUM_PAGES)),
        MixtureDrafter(replace(network, chain=None), KVStorage(layout, NUM_PAGES)),
    )
    torch.manual_seed(3)
    memory = torch.randn_like(found[0]._storage.memory[0])
    for drafter in found:
        drafter._storage.memory[0].copy_(memory)
        drafter._is_captured[:] = True
    return found


@pytest.mark.parametrize("count", [1, 4, 9])
def test_mixtures_of_attentions_draft_the_same(heads: dict[str, Any], count: int) -> None:
    both, rng = mixtures(heads["mixture_of_attentions"]), random.Random(count)
    asked = sequences(rng, count)
    limits = [rng.randint(1, 40) for _ in asked]
    compiled, plain = (drafter.propose(asked, limits) for drafter in both)
    assert compiled == plain and [len(draft) for draft in compiled] == limits


def test_pages_that_were_not_captured_are_not_seen(heads: dict[str, Any]) -> None:
    both, rng = mixtures(heads["mixture_of_attentions"]), random.Random(5)
    asked = sequences(rng, 8)
    limits = [6] * len(asked)
    whole = both[0].propose(asked, limits)
    hidden = np.zeros(NUM_PAGES, dtype=bool)
    for sequence in asked:
        last = (sequence.num_computed_tokens - 1) // PAGE_TOKENS
        hidden[sequence.pages[: max(0, last - 1) : 2]] = True
    for drafter in both:
        drafter._is_captured[hidden] = False
    compiled, plain = (drafter.propose(asked, limits) for drafter in both)
    assert compiled == plain != whole
    both[0]._storage.memory[0][:, torch.from_numpy(hidden)] = torch.nan
    assert both[0].propose(asked, limits) == compiled


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32), count=st.integers(1, 9), share=st.floats(0.0, 1.0))
def test_random_cases(heads: dict[str, Any], seed: int, count: int, share: float) -> None:
    """Half-filled pages, pages not captured, ragged batches, limits of one token."""
    rng, both = random.Random(seed), mixtures(heads["mixture_of_attentions"])
    asked = sequences(rng, count, 90)
    for page in range(NUM_PAGES):
        for drafter in both:
            drafter._is_captured[page] = rng.random() < share
    for sequence in asked:
        last = (sequence.num_computed_tokens - 1) // PAGE_TOKENS
        for drafter in both:
            drafter._is_captured[sequence.pages[max(0, last - 1) : last + 1]] = True
    both[1]._is_captured[:] = both[0]._is_captured
    limits = [rng.randint(1, 9) for _ in asked]
    compiled, plain = (drafter.propose(asked, limits) for drafter in both)
    assert compiled == plain and [len(draft) for draft in compiled] == limits


def test_states_that_are_not_finite_leave_no_trace(heads: dict[str, Any]) -> None:
    drafter, _ = eagles(heads["eagle"])
    (sequence,) = sequences(random.Random(4), 1)
    drafter._states._slots[slots_of(sequence, range(5))] = torch.inf
    drafter.propose([sequence], [4])
    assert drafter._storage.memory[0].isfinite().all()


def test_all_calls_of_a_network_have_one_signature(
    heads: dict[str, Any], model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that no request waits for the compiler once the engine has warmed up."""
    dispatcher = draft_chain.loop.draft_chain.dispatcher
    drafters: list[Callable[[list[Sequence], list[int]], object]] = [
        draft_models(model)[0].propose,
        eagles(heads["eagle"])[0].propose,
        mixtures(heads["mixture_of_attentions"])[0].propose,
    ]
    for propose in drafters:
        propose(sequences(random.Random(1), 1), [1])
        known = len(dispatcher.signatures)
        for count in (1, 2, 9):
            propose(sequences(random.Random(count), count), [5] * count)
        assert len(dispatcher.signatures) == known
