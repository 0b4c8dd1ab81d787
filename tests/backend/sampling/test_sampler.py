from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import MinPLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from backend.sampling.sampler import CANDIDATES, Sampler, SamplingBatch

CPU = torch.device("cpu")


def batch_of(rows: int, **values: object) -> SamplingBatch:
    """A batch in which all rows are the same, except for values given as lists."""

    def column(name: str, default: float, dtype: type) -> np.ndarray:
        return np.broadcast_to(np.array(values.get(name, default), dtype=dtype), (rows,)).copy()

    return SamplingBatch(
        seeds=column("seeds", 0, np.uint64),
        positions=column("positions", 0, np.int64),
        temperature=column("temperature", 1.0, np.float32),
        top_k=column("top_k", 0, np.int64),
        top_p=column("top_p", 1.0, np.float32),
        min_p=column("min_p", 0.0, np.float32),
    )


def sampled(sampler: Sampler, logits: torch.Tensor, batch: SamplingBatch) -> tuple[list[int], list[bool]]:
    """Token ids and soundness as lists."""
    token_ids, is_sound = sampler.sample(logits, batch)
    return token_ids.tolist(), is_sound.tolist()


def allowed_by_transformers(
    logits: torch.Tensor, temperature: float, k: int, p: float, m: float
) -> torch.Tensor:
    scores = logits / temperature
    ids = torch.zeros((1, 1), dtype=torch.int64)
    if k:
        scores = TopKLogitsWarper(k)(ids, scores)
    if p < 1:
        scores = TopPLogitsWarper(p)(ids, scores)
    if m > 0:
        scores = MinPLogitsWarper(m)(ids, scores)
    return scores


def frequencies(logits: torch.Tensor, draws: int, **params: object) -> torch.Tensor:
    sampler = Sampler(logits.shape[0], CPU)
    counts = torch.zeros(logits.shape[0])
    batch = batch_of(draws, positions=list(range(draws)), **params)
    tokens, sound = sampled(sampler, logits.expand(draws, -1).contiguous(), batch)
    assert all(sound)
    counts += torch.bincount(torch.tensor(tokens), minlength=len(counts))
    return counts / draws


@pytest.mark.parametrize(
    ("temperature", "k", "p", "m"),
    [
        (1.0, 0, 1.0, 0.0),
        (0.7, 0, 1.0, 0.0),
        (1.0, 5, 1.0, 0.0),
        (1.5, 0, 0.8, 0.0),
        (1.0, 0, 1.0, 0.2),
        (0.9, 12, 0.9, 0.05),
    ],
)
def test_draws_follow_the_distribution(temperature: float, k: int, p: float, m: float) -> None:
    logits = torch.randn(40, generator=torch.Generator().manual_seed(1)) * 2
    want = allowed_by_transformers(logits[None], temperature, k, p, m).softmax(-1)[0]
    draws = 40_000
    got = frequencies(logits, draws, temperature=temperature, top_k=k, top_p=p, min_p=m)
    assert (got[want == 0] == 0).all()
    # Chi-square against its mean and 5 standard deviations.
    seen = want > 0
    chi2 = float((draws * (got[seen] - want[seen]) ** 2 / want[seen]).sum())
    degrees = max(1, int(seen.sum()) - 1)
    assert chi2 < degrees + 5 * (2 * degrees) ** 0.5


@pytest.mark.parametrize("params", [{}, {"top_k": 150}, {"top_p": 0.7}, {"min_p": 0.02}])
def test_draws_follow_the_distribution_over_many_runs_of_tokens(params: dict[str, float]) -> None:
    logits = torch.randn(300, generator=torch.Generator().manual_seed(2))  # two whole runs and a shorter one
    allowed = allowed_by_transformers(
        logits[None], 1.0, int(params.get("top_k", 0)), params.get("top_p", 1.0), params.get("min_p", 0.0)
    )
    want = allowed.softmax(-1)[0]
    draws = 30_000
    got = frequencies(logits, draws, **params)
    assert (got[want == 0] == 0).all()
    seen = want > 0
    chi2 = float((draws * (got[seen] - want[seen]) ** 2 / want[seen]).sum())
    degrees = int(seen.sum()) - 1
    assert degrees > 50 and chi2 < degrees + 5 * (2 * degrees) ** 0.5


@pytest.mark.parametrize("params", [{"top_k": 1500}, {"top_p": 0.9}, {"top_k": 1500, "top_p": 0.95}])
def test_filters_that_reach_beyond_the_candidates(params: dict[str, float]) -> None:
    vocab_size, draws = 3 * CANDIDATES + 5, 300
    logits = torch.randn(vocab_size, generator=torch.Generator().manual_seed(3)) * 0.3
    allowed = allowed_by_transformers(
        logits[None], 1.0, int(params.get("top_k", 0)), params.get("top_p", 1.0), 0.0
    )
    kept = allowed[0] > float("-inf")
    assert CANDIDATES < int(kept.sum()) < vocab_size
    batch = batch_of(draws, positions=list(range(draws)), **params)
    tokens, _ = sampled(Sampler(vocab_size, CPU), logits.expand(draws, -1).contiguous(), batch)
    assert kept[tokens].all()
    beyond = logits.argsort(descending=True)[CANDIDATES:]
    assert set(tokens) & set(beyond.tolist()), "tokens beyond the candidates are drawn too"


@pytest.mark.parametrize("temperature", [1e-6, 1e-20, 1e-42])
def test_the_smallest_temperatures_are_greedy(temperature: float) -> None:
    logits = torch.randn(5, 1000, generator=torch.Generator().manual_seed(4)) * 30
    tokens, sound = sampled(Sampler(1000, CPU), logits, batch_of(5, temperature=temperature))
    assert all(sound) and tokens == logits.argmax(-1).tolist()


def test_two_seeds_and_two_positions_are_independent() -> None:
    draws = 20_000
    sampler, logits = Sampler(8, CPU), torch.zeros(draws, 8)
    first, _ = sampled(sampler, logits, batch_of(draws, positions=list(range(draws)), seeds=1))
    second, _ = sampled(sampler, logits, batch_of(draws, positions=list(range(draws)), seeds=2))
    next_ones, _ = sampled(sampler, logits, batch_of(draws, positions=list(range(1, draws + 1)), seeds=2))
    for a, b in ((first, second), (second[:-1], second[1:])):
        table = np.zeros((8, 8))
        np.add.at(table, (a, b), 1)
        expected = len(a) / 64
        assert ((table - expected) ** 2 / expected).sum() < 63 + 5 * 126**0.5
    assert next_ones[:-1] == second[1:]  # only seed and absolute position count


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**31), vocab_size=st.sampled_from([7, CANDIDATES, 300, 1000]))
def test_a_row_draws_the_same_in_any_batch(seed: int, vocab_size: int) -> None:
    rng = np.random.default_rng(seed)
    rows = 9
    # Coarse logits make ties, including at the filters' thresholds.
    logits = torch.from_numpy(rng.integers(-6, 6, (rows, vocab_size)).astype(np.float32))
    batch = SamplingBatch(
        seeds=rng.integers(0, 2**63, rows).astype(np.uint64),
        positions=rng.integers(0, 10_000, rows),
        temperature=rng.choice([0.0, 0.5, 1.0, 3.0], rows).astype(np.float32),
        top_k=rng.choice([0, 1, 3, 40, 200], rows),
        top_p=rng.choice([0.1, 0.9, 1.0], rows).astype(np.float32),
        min_p=rng.choice([0.0, 0.05], rows).astype(np.float32),
    )
    sampler = Sampler(vocab_size, CPU)
    together, _ = sampled(sampler, logits, batch)
    order = rng.permutation(rows)
    for part in (order, *([int(row)] for row in range(rows))):
        some = SamplingBatch(*(getattr(batch, name)[part] for name in batch.__dataclass_fields__))
        alone, _ = sampled(sampler, logits[torch.as_tensor(part)], some)
        assert alone == [together[row] for row in part]


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    vocab_size=st.sampled_from([50, 400, 2000]),
    k=st.sampled_from([0, 1, 20, CANDIDATES, 300]),
    p=st.sampled_from([0.05, 0.5, 0.95, 1.0]),
    m=st.sampled_from([0.0, 0.01, 0.3]),
    scale=st.sampled_from([0.1, 2.0]),
)
def test_only_tokens_that_transformers_allows(
    seed: int, vocab_size: int, k: int, p: float, m: float, scale: float
) -> None:
    logits = torch.randn(1, vocab_size, generator=torch.Generator().manual_seed(seed)) * scale
    allowed = allowed_by_transformers(logits, 0.8, min(k, vocab_size), p, m)[0] > float("-inf")
    draws = 200
    batch = batch_of(draws, temperature=0.8, top_k=k, top_p=p, min_p=m, positions=list(range(draws)))
    tokens, _ = sampled(Sampler(vocab_size, CPU), logits.expand(draws, -1).contiguous(), batch)
    assert allowed[tokens].all()


def test_greedy_rows_in_a_batch_with_random_ones() -> None:
    logits = torch.randn(6, 50)
    tokens, _ = sampled(Sampler(50, CPU), logits, batch_of(6, temperature=[0, 1, 0, 1, 0, 0]))
    best = logits.argmax(-1).tolist()
    assert [tokens[row] for row in (0, 2, 4, 5)] == [best[row] for row in (0, 2, 4, 5)]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("top_k", [0, 3])
def test_unsound_rows_are_reported(temperature: float, top_k: int) -> None:
    logits = torch.randn(3, 20)
    logits[1, 4] = float("nan")
    logits[2] = float("-inf")
    _, sound = sampled(Sampler(20, CPU), logits, batch_of(3, temperature=temperature, top_k=top_k))
    assert sound == [True, False, False]


def test_logits_are_not_modified() -> None:
    logits = torch.randn(4, 500)
    before = logits.clone()
    sampled(Sampler(500, CPU), logits, batch_of(4, temperature=[0, 1, 1, 1], top_k=[0, 0, 5, 300], top_p=0.9))
    assert torch.equal(logits, before)


def test_parameters_as_words() -> None:
    batch = batch_of(2, seeds=[2**64 - 2, 1 << 32], positions=[7, 8], top_k=[2**40, 5], top_p=0.5, min_p=1.0)
    words = batch.words()
    assert words.dtype == np.int32 and words.shape == (2, 8) and words[:, 7].tolist() == [0, 0]
    assert words[:, :3].tolist() == [[-2, -1, 7], [0, 1, 8]] and words[:, 4].tolist() == [2**31 - 1, 5]
    floats = np.ascontiguousarray(words[:, [3, 5, 6]]).view(np.float32)
    assert floats.tolist() == [[1.0, 0.5, 1.0]] * 2
