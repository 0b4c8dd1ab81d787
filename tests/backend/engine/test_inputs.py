from __future__ import annotations

import pytest
import torch

from backend.engine import inputs
from backend.engine.inputs import prepare
from backend.engine.state import StateTable
from backend.kernels.upload import Array, upload
from backend.types import Plan, ScheduledChunk, Sequence
from tests.backend.speculative.sequences import running

CPU = torch.device("cpu")


def placed(sequence: Sequence, row: int, pages: list[int]) -> Sequence:
    sequence.row, sequence.pages = row, pages
    return sequence


def test_a_step_of_a_tree_a_chain_a_chunk_and_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    uploads = []

    def counted(arrays: list[Array], device: torch.device) -> list[torch.Tensor]:
        uploads.append(arrays)
        return upload(arrays, device)

    monkeypatch.setattr(inputs, "upload", counted)
    one = placed(running([5] * 15, [6]), 3, [9])
    tree = placed(running([1] * 14, [2]), 0, [4, 2])
    chain = placed(running([1, 2], [3]), 2, [7])
    chunk = placed(running([8] * 40), 1, [10, 11, 12])
    plan = Plan(
        [
            ScheduledChunk(one, 15, 1),
            ScheduledChunk(tree, 14, 4, (50, 51, 52), (-1, -1, 0)),
            ScheduledChunk(chain, 2, 3, (60, 61)),
            ScheduledChunk(chunk, 16, 8),
        ],
        num_drafts=5,
    )
    step = prepare(plan, StateTable(4, 64, frozenset(), CPU), CPU)
    own = step.step_input
    assert len(uploads) == 1
    assert own.token_ids.tolist() == [6, 2, 50, 51, 52, 3, 60, 61, *[8] * 8]
    assert own.positions.tolist() == [15, 14, 15, 15, 16, 2, 3, 4, *range(16, 24)]
    tree_slots = [4 * 16 + 14, 4 * 16 + 15, 2 * 16, 2 * 16 + 1]
    assert own.slots.tolist() == [9 * 16 + 15, *tree_slots, 114, 115, 116, *range(176, 184)]
    assert own.on_device.query_starts.tolist() == [0, 1, 5, 8, 16] and step.offsets == [0, 1, 5, 8]
    assert own.on_device.context_lens.tolist() == own.context_lens == [16, 18, 5, 24]
    assert own.on_device.rows.tolist() == own.rows == [3, 0, 2, 1]
    assert own.on_device.ancestors is not None
    assert own.on_device.ancestors[:, 0].tolist() == [0, 1, 0b11, 0b101, 0b1011, *[0] * 11]
    assert not own.on_device.ancestors[:, 1].any()
    assert (max(own.on_device.chain_lens), own.on_device.longest_context) == (8, 24)
    assert step.drawn_after.tolist() == step.token_index.tolist() == [0, 1, 2, 3, 4, 5, 6, 7]
    assert step.rows.tolist() == [3, 0, 0, 0, 0, 2, 2, 2]
    assert step.positions.tolist() == [16, 15, 16, 16, 17, 3, 4, 5]
    assert step.drafts_before() == [(), (), (50,), (51,), (50, 52), (), (60,), (60, 61)]
    int32 = (own.token_ids, own.positions, own.on_device.query_starts, own.on_device.rows, step.drawn_after)
    assert {each.dtype for each in int32} == {torch.int32}
