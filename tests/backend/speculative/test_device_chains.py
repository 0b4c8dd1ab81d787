"""Roll-outs without waits: the same chains as the loop that ends early, and one upload and download each."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from backend.kernels.paged_attention import plan
from backend.kernels.upload import upload
from backend.layers.step_input import StepInput
from backend.speculative.device_chains import Chains, RollOuts, Spare, chain_arrays, read_chains
from backend.speculative.rollout import Beam, roll_out
from backend.types import Draft, Sequence
from tests.backend.engine.driving import texts
from tests.backend.kernels.waits import Waits, replaced, unseen
from tests.backend.speculative.head_cases import make_pair
from tests.backend.speculative.model_targets import draft_in, load, new_engine, requests, write_model

VOCAB = 5


def queue(logits: Tensor, lengths: list[int], depth: int) -> Tensor:
    """A roll-out by a network that says `logits` [depth, B, VOCAB] whatever the tokens."""
    table = np.arange(len(lengths) * 4).reshape(len(lengths), 4)
    seen: list[StepInput] = []

    def level(step: StepInput) -> Tensor:
        number = len(seen)
        seen.append(step)
        places = [length + number for length in lengths]
        slots = [(4 * row + place // 16) * 16 + place % 16 for row, place in enumerate(places)]
        assert step.slots.tolist() == slots and step.positions.tolist() == places
        assert step.context_lens == step.on_device.context_lens.tolist() == [place + 1 for place in places]
        return logits[number]

    def begin(chains: Chains) -> Any:  # noqa: ANN401
        assert chains.stored().context_lens == chains.places[0].tolist() == lengths
        return level

    arrays = chain_arrays([3] * len(lengths), lengths, table, depth)
    result = RollOuts(begin).run(upload(arrays, torch.device("cpu")), lengths)
    ids = [step.token_ids.tolist() for step in seen]
    assert ids == [[3] * len(lengths), *result[: depth - 1].tolist()]
    return result


@given(
    sharpness=st.floats(0.1, 8.0),
    limits=st.lists(st.integers(1, 6), min_size=1, max_size=4),
    seed=st.integers(0, 10_000),
    bad_level=st.integers(0, 9),
)
def test_chains_are_those_of_the_loop_that_ends_early(
    sharpness: float, limits: list[int], seed: int, bad_level: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    depth, count = max(limits), len(limits)
    logits = sharpness * torch.randn(depth, count, VOCAB, generator=generator)
    if 0 < bad_level < depth:
        logits[bad_level] = torch.nan

    def advance(beam: Beam) -> Tensor:
        return logits[beam.level]

    wanted = roll_out(logits[0], advance, limits)
    found = read_chains(queue(logits, [7, 30, 0, 15][:count], depth), limits)
    for mine, other in zip(found, wanted, strict=True):
        assert len(mine) == len(other)
        assert mine[:bad_level] == other[:bad_level] or not bad_level  # NaN: any token
    if not bad_level:
        assert found == wanted


def test_tails_go_to_spare_pages_behind_full_ones() -> None:
    table, lengths, sources, targets = Spare(100, 2).place([[5, 9], [], [7]], [[1, 2, 3], [], [40]])
    assert table.tolist() == [[5, 9, 100, 101], [102, 103, 0, 0], [7, 104, 105, 0]]
    assert lengths == [35, 0, 17]
    assert sources.tolist() == [1, 2, 3, 40] and targets.tolist() == [1600, 1601, 1602, 1664]


@pytest.mark.parametrize("name", ["eagle", "draft_model"])
def test_a_round_waits_once(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the prefix is not copied, which for a GPU's loop it is."""
    draft_in("ahead", monkeypatch)
    if name == "draft_model":
        write_model(tmp_path / "target", "qwen3")
        write_model(tmp_path / "draft", "qwen3", seed=2, num_hidden_layers=1)
        model, folder = load(tmp_path / "target"), tmp_path / "draft"
    else:
        pair = make_pair(tmp_path, name, "qwen3")
        model, folder = pair.model, pair.folder
    engine, recording = new_engine(model, name, folder)
    assert recording is not None
    honest, found, unseen_upload = recording.inner.propose, list[dict[str, int]](), unseen(upload)
    uploads: Counter[str] = Counter()

    def counted_upload(arrays: list[Any], device: torch.device) -> list[Tensor]:
        uploads["uploads"] += 1
        return unseen_upload(arrays, device)  # type: ignore[no-any-return]

    def propose(sequences: list[Sequence], ks: list[int]) -> list[Draft]:
        uploads.clear()
        with Waits() as waits, replaced(upload, counted_upload):
            drafts = list(honest(sequences, ks))
        del waits.copies["from_numpy"]  # attention on a CPU, which plans for itself
        found.append({**uploads, **+waits.reads, **+waits.copies})
        return drafts

    recording.inner.propose = propose  # type: ignore[method-assign]
    monkeypatch.setattr("backend.kv.storage.KVStorage.copy_pages", None)
    monkeypatch.setattr(plan, "seen_tokens", unseen(plan.seen_tokens))
    assert texts(engine, requests()) == texts(new_engine(model)[0], requests())
    counts = [each["uploads"] for each in found]
    assert len(found) > 8 and 1 in counts and max(counts) <= (2 if name == "draft_model" else 1)
    assert all({**each, "uploads": 1} == {"uploads": 1, "tolist": 1} for each in found), found
