"""A round by the compiled loop is the round by torch: the same drafts, the same keys and values."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from numba import typeof

from backend.config import EngineConfig
from backend.kernels import greedy_chain
from backend.speculative import draft_loading
from backend.speculative.compiled_rounds import CompiledRounds
from backend.speculative.draft_rounds import TorchRounds
from backend.types import PAGE_TOKENS, Request, SamplingParams, Sequence
from tests.backend.speculative.model_targets import VOCAB, write_model

NUM_PAGES = 40
KINDS = {
    "qwen3": {"num_hidden_layers": 2},
    "qwen2": {
        "num_hidden_layers": 1,
        "tie_word_embeddings": False,
        "hidden_size": 20,
        "intermediate_size": 42,
    },
    "llama": {"num_hidden_layers": 2, "mlp_bias": True, "attention_bias": True, "num_key_value_heads": 4},
}


def load(
    folder: Path, kind: str, monkeypatch: pytest.MonkeyPatch, most: int = 256
) -> tuple[CompiledRounds, TorchRounds]:
    write_model(folder, kind, seed=3, **KINDS[kind])
    config = EngineConfig(model="t", checkpoint="/none", device="cpu", dtype="float32")
    compiled = draft_loading.load_draft_model(config, str(folder), most).open(NUM_PAGES)
    monkeypatch.setattr(draft_loading, "COMPILED_SIZE", 0)
    plain = draft_loading.load_draft_model(config, str(folder), most).open(NUM_PAGES)
    assert isinstance(compiled, CompiledRounds) and isinstance(plain, TorchRounds)
    return compiled, plain


def sequences(rng: random.Random, count: int) -> list[Sequence]:
    """With 1 to 40 tokens each, none computed, and pages in any order."""
    pages = rng.sample(range(NUM_PAGES), NUM_PAGES)
    found = []
    for _ in range(count):
        tokens = [rng.randrange(VOCAB) for _ in range(rng.randint(1, 40))]
        request = Request(request_id="r", prompt_token_ids=tokens, params=SamplingParams(max_tokens=9))
        sequence = Sequence(request, tokens, len(tokens))
        sequence.pages = [pages.pop() for _ in range(4)]
        found.append(sequence)
    return found


def stored(rounds: CompiledRounds | TorchRounds, sequence: Sequence, end: int) -> np.ndarray:
    """Keys and values of a sequence's first tokens, [L, end, 2, kv_heads, head_dim]."""
    if isinstance(rounds, CompiledRounds):
        memory = rounds._memory
    else:
        memory = np.stack([layer.numpy() for layer in rounds._storage.layers])
    places = [(sequence.pages[at // PAGE_TOKENS], at % PAGE_TOKENS) for at in range(end)]
    return np.stack([memory[:, page, slot] for page, slot in places], axis=1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [1, 4, 7])
def test_both_ways_give_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, count: int
) -> None:
    both = load(tmp_path, kind, monkeypatch)
    rng = random.Random(count)
    asked = sequences(rng, count)
    for sequence in asked:  # those that are behind catch up, one by one
        behind = rng.randrange(len(sequence.tokens))
        if behind:
            assert [rounds.compute([sequence], [behind], 0, 0.0) for rounds in both] == [[[]], [[]]]
        sequence.num_computed_tokens = behind
    begins = [len(sequence.tokens) - sequence.num_computed_tokens for sequence in asked]
    compiled, plain = (rounds.compute(asked, begins, 6, 0.0) for rounds in both)
    assert compiled == plain
    assert [len(draft) for draft in compiled] == [6] * count
    assert count == 1 or len({token for draft in compiled for token in draft}) > 1
    for sequence in asked:
        ours, theirs = (stored(rounds, sequence, len(sequence.tokens) + 5) for rounds in both)
        assert np.abs(theirs).min(axis=(0, 2, 3, 4)).max() > 0
        np.testing.assert_allclose(ours, theirs, atol=1e-4)


def test_both_stop_at_the_same_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    both = load(tmp_path, "qwen3", monkeypatch)
    asked = sequences(random.Random(1), 5)
    begins = [len(sequence.tokens) for sequence in asked]
    whole = both[1].compute(asked, begins, 8, 0.0)
    found = []
    for least_reached in (1.1, 0.9, 0.7, 0.5, 0.3, 0.1, 0.0):
        compiled, plain = (rounds.compute(asked, begins, 8, least_reached) for rounds in both)
        assert compiled == plain
        assert all(chain == all_[: len(chain)] for chain, all_ in zip(compiled, whole, strict=True))
        found.append([len(chain) for chain in compiled])
    assert found[0] == [1] * 5 and found[-1] == [8] * 5
    assert any(len(set(lengths)) > 2 for lengths in found), "each chain ends by itself"


def test_what_nobody_drafts_takes_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled, _ = load(tmp_path, "qwen3", monkeypatch, most=48)
    assert compiled.max_position_tokens == 48


def test_what_has_no_room_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled, _ = load(tmp_path, "qwen3", monkeypatch, most=8)
    sequence = sequences(random.Random(1), 1)[0]
    sequence.tokens[:] = [1] * 6
    assert len(compiled.compute([sequence], [6], 3, 0.0)[0]) == 3
    with pytest.raises(ValueError, match="9 tokens .* room for 8"):
        compiled.compute([sequence], [6], 4, 0.0)


def test_no_request_waits_for_the_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading has called the loop with the types that requests call it with."""
    called: list[list[object]] = []
    original = greedy_chain._greedy_chain

    def record(*arguments: object) -> None:
        flat = [part for each in arguments for part in (each if isinstance(each, tuple) else [each])]
        called.append([typeof(part) for part in flat])
        original(*arguments)

    monkeypatch.setattr(greedy_chain, "_greedy_chain", record)
    compiled, _ = load(tmp_path, "qwen3", monkeypatch)
    assert len(called) == 1 and not compiled._memory.any()
    asked = sequences(random.Random(1), 3)
    compiled.compute(asked, [len(sequence.tokens) for sequence in asked], 4, 0.1)
    assert len(called) == 2 and called[1] == called[0]
