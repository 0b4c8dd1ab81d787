"""Keys, and whether each step that has one fits in its buffers."""

from __future__ import annotations

import random

import numpy as np
import torch

from backend.engine.graph_buffers import StaticStep, first_keys, key_of, most_tokens
from backend.layers.step_input import StepInput, step_of_tables

LONGEST, SPARE = 30_000, (9, 80)
CPU = torch.device("cpu")


def step_of(
    query_lens: list[int], longest: int = 64, trees: dict[int, tuple[int, ...]] | None = None
) -> StepInput:
    contexts = [longest] * len(query_lens)
    token_ids = torch.arange(1, sum(query_lens) + 1, dtype=torch.int32)
    table = np.ones((len(query_lens), -(-longest // 16)), dtype=np.int64)
    return step_of_tables(token_ids, query_lens, contexts, table, CPU, trees)


def test_keys() -> None:
    def key(*arguments: object) -> tuple[int, ...] | None:
        found = key_of(step_of(*arguments), LONGEST)  # type: ignore[arg-type]
        return found and found[:4]

    assert key([1] * 9) == (16, 16, 1, 2048)
    assert key([1] * 3, 2049) == (4, 4, 1, 8192)
    assert key([1], 9000) == (1, 1, 1, LONGEST)
    assert key([4, 1, 1]) == (8, 4, 4, 2048)
    assert key([5] * 20) == (128, 32, 8, 2048)
    assert key([5] * 40) == (256, 64, 8, 2048)
    assert key([1] * 600) is not None and key([2] * 129) is None, "long verifications are eager"
    assert key([3, 1], 64, {0: (-1, -1)}) is None, "so are trees"


def test_first_keys_begin_with_the_largest() -> None:
    assert first_keys(100, LONGEST)[:3] == [
        (256, 128, 2, LONGEST, 0),
        (104, 104, 1, LONGEST, 0),
        (104, 104, 1, 2048, 0),
    ]
    assert [key[:4] for key in first_keys(3, 1000)] == [
        *((256, 4, 64, 1000), (4, 4, 1, 1000), (2, 2, 1, 1000), (1, 1, 1, 1000))
    ]
    for num_rows in (1, 7, 20, 300):
        keys = first_keys(num_rows, LONGEST)
        sizes = [(key.longest_context, key.num_tokens) for key in keys]
        assert sizes == sorted(sizes, reverse=True) and keys[0].num_tokens == most_tokens(num_rows)
        assert key_of(step_of([1] * num_rows), LONGEST) in keys, "that of all rows"


def test_every_step_fits_in_the_buffers_of_its_key() -> None:
    rng = random.Random(1)
    for _ in range(200):
        lens = [rng.choice([1, 1, rng.randrange(1, 9)]) for _ in range(rng.randrange(1, 50))]
        step = step_of(lens)
        key = key_of(step, LONGEST)
        assert key is not None
        static = StaticStep(key, step.on_device.page_table, SPARE)
        first = static.step_input
        starts = np.cumsum([0, *first.query_lens]).tolist()
        assert first.on_device.query_starts.tolist()[: len(starts)] == starts and starts[-1] == key.num_tokens
        assert max(first.query_lens) == key.row_tokens and set(first.rows) == {SPARE[0]}
        for each in (step_of([*lens, *[1] * (key.num_tokens - sum(lens))]), step_of([lens[0]]), step):
            static.fill(each)  # what was there before is gone
        own, total, count = static.step_input, key.num_tokens, sum(lens)
        behind = total - count
        assert own.token_ids.tolist() == [*range(1, count + 1), *[0] * behind]
        assert own.slots.tolist() == [*step.slots.tolist(), *[SPARE[1]] * behind]
        assert own.positions.tolist() == [*step.positions.tolist(), *[0] * behind]
        assert own.query_lens == [*lens, *[1] * behind] and sum(own.query_lens) == total
        starts = own.on_device.query_starts.tolist()
        assert starts == sorted(starts) and len(starts) == key.num_sequences + 1
        assert starts[: len(own.query_lens) + 1] == np.cumsum([0, *own.query_lens]).tolist()
        assert set(starts[len(own.query_lens) :]) == {total}
        rows = own.on_device.rows.tolist()
        assert rows == [*range(len(lens)), *[SPARE[0]] * (key.num_sequences - len(lens))]
        contexts = own.on_device.context_lens.tolist()
        assert contexts == [*[64] * len(lens), *[1] * (key.num_sequences - len(lens))]
