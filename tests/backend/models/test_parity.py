"""Logits and greedy tokens equal transformers' on every family, however the work is cut and mixed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from backend.config import EngineConfig
from backend.models.loaded import LoadedModel, load_model
from tests.backend.models.checkpoints import VARIANTS, Variant, write_checkpoint
from tests.backend.models.driver import Driver, Track, random_tokens

MAX_DIFFERENCE = 1e-4
MAX_NOISE = 1e-5

_FIRST = {variant.model_type: variant for variant in reversed(VARIANTS)}.values()
_EVERY_RULE = ("llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe")
whole = pytest.mark.parametrize(
    "pair",
    [variant for variant in VARIANTS if variant in _FIRST or variant.model_type in _EVERY_RULE],
    ids=lambda variant: variant.name,
    indirect=True,
)
"""For tests of what does not depend on a configuration: one of each architecture, but all of the oldest."""


def is_consistent(variant: Variant) -> bool:
    """Whether transformers goes by one formula: Mamba's single tokens ignore the limits of time steps."""
    return variant.model_type != "nemotron_h" and "time_step" not in str(variant.changes)


@dataclass(frozen=True)
class Pair:
    """The same weights in transformers and here."""

    theirs: PreTrainedModel
    ours: LoadedModel

    def expected(self, tokens: list[int]) -> Tensor:
        """[T, vocab] logits of transformers."""
        with torch.no_grad():
            logits: Tensor = self.theirs(torch.tensor([tokens])).logits[0]
        return logits

    def cached(self, tokens: list[int], prompt: int) -> Tensor:
        """The same, the tokens behind those of the prompt one by one with a cache."""
        ids = torch.tensor([tokens])
        with torch.no_grad():
            out = self.theirs(ids[:, :prompt], use_cache=True)
            parts, cache = [out.logits[0]], out.cache
            for t in range(prompt, len(tokens)):
                parts.append(self.theirs(ids[:, t : t + 1], cache=cache, use_cache=True).logits[0])
        return torch.cat(parts)

    def assert_greedy(self, prompt: list[int], continuation: list[int]) -> None:
        """Transformers, given the prompt and the continuation so far, chooses every token of it.

        By induction this is what its greedy generation gives, in one forward pass instead of one per token.
        """
        chosen = self.expected(prompt + continuation[:-1])[len(prompt) - 1 :].argmax(dim=-1)
        assert continuation == chosen.tolist()


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module", params=VARIANTS, ids=lambda variant: variant.name)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    variant: Variant = request.param
    directory = tmp_path_factory.mktemp(variant.name)
    theirs = write_checkpoint(variant, directory)
    config = EngineConfig(model="m", checkpoint=str(directory), device="cpu", dtype="float32")
    return Pair(theirs, load_model(config))


def assert_close(ours: Tensor, theirs: Tensor) -> None:
    assert (ours - theirs).abs().max().item() <= MAX_DIFFERENCE


@whole
def test_whole_prompt(pair: Pair) -> None:
    tokens = random_tokens(75, seed=1)
    (logits,) = Driver(pair.ours).step([(Track(tokens), 75)])
    assert_close(logits, pair.expected(tokens))


def test_prompt_in_uneven_chunks(pair: Pair) -> None:
    tokens = random_tokens(90, seed=2)
    driver, track = Driver(pair.ours), Track(tokens)
    parts = [driver.step([(track, count)])[0] for count in (1, 15, 16, 17, 1, 40)]
    assert_close(torch.cat(parts), pair.expected(tokens))


@whole
def test_mixed_batch_of_decodes_and_chunks(pair: Pair) -> None:
    """Decodes of very different lengths, in several groups, beside prefill chunks of two sequences."""
    lengths = (3, 40, 150, 41, 17)
    driver = Driver(pair.ours)
    tracks = [Track(random_tokens(length + 6, seed=length)) for length in lengths]
    for track, length in zip(tracks, lengths, strict=True):
        driver.step([(track, length)])
    fresh, half = Track(random_tokens(33, seed=8)), Track(random_tokens(50, seed=9))
    driver.step([(half, 20)])
    got: list[list[Tensor]] = [[] for _ in tracks]
    chunks: list[Tensor] = []
    for step in range(6):
        work = [(track, 1) for track in tracks]
        extra = [(fresh, 33), (half, 13)] if step == 2 else [(half, 17)] if step == 4 else []
        results = driver.step(work + extra)
        for index, logits in enumerate(results[: len(tracks)]):
            got[index].append(logits)
        chunks += results[len(tracks) :]
    for track, length, logits in zip(tracks, lengths, got, strict=True):
        assert_close(torch.cat(logits), pair.expected(track.tokens)[length:])
    assert_close(chunks[0], pair.expected(fresh.tokens))
    assert_close(torch.cat(chunks[1:]), pair.expected(half.tokens)[20:])


def test_greedy_alone_and_batched(pair: Pair) -> None:
    prompts = [random_tokens(length, seed=50 + length) for length in (5, 31, 64)]
    batched = Driver(pair.ours).greedy([Track(list(prompt)) for prompt in prompts], 64)
    for prompt, continuation in zip(prompts, batched, strict=True):
        pair.assert_greedy(prompt, continuation)
    # With pages in one run, over the edge of two of them.
    assert Driver(pair.ours, seed=None).greedy([Track(list(prompts[1]))], 20) == [batched[1][:20]]


@whole
def test_greedy_equals_generate(pair: Pair) -> None:
    prompt = random_tokens(12, seed=6)
    ids = torch.tensor([prompt])
    out = pair.theirs.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=16, do_sample=False)
    assert Driver(pair.ours).greedy([Track(list(prompt))], 16) == [out[0, len(prompt) :].tolist()]


@pytest.mark.slow
@pytest.mark.parametrize("pair", list(filter(is_consistent, VARIANTS)), ids=lambda v: v.name, indirect=True)
def test_transformers_agrees_with_itself(pair: Pair) -> None:
    """Else a difference would not be ours: noise grows with the weights, which a variant can make smaller.

    Of our code the others say as much: it is for new variants and new versions of transformers.
    """
    tokens = random_tokens(75, seed=1)
    whole = pair.expected(tokens)
    noise = (pair.cached(tokens, 59) - whole).abs().max().item()
    (ours,) = Driver(pair.ours).step([(Track(tokens), 75)])
    print(f"transformers against its own cache: {noise:.1e}; we: {(ours - whole).abs().max().item():.1e}")
    assert noise <= MAX_NOISE


@whole
def test_reused_prefix_pages(pair: Pair) -> None:
    """A second sequence starts from the first one's full pages, as after a prefix hit."""
    prefix, tail = random_tokens(48, seed=3), random_tokens(9, seed=4)
    driver = Driver(pair.ours)
    first = Track(prefix + random_tokens(20, seed=5))
    driver.step([(first, 48)])
    second, third = (driver.fork(first, prefix + tail) for _ in range(2))
    driver.step([(first, 20)])
    (logits,) = driver.step([(second, len(tail))])
    assert_close(logits, pair.expected(prefix + tail)[48:])
    (continuation,) = driver.greedy([third], 8)
    pair.assert_greedy(prefix + tail, continuation)
