from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from backend.kernels.upload import pack, unpack, upload

shapes = st.lists(st.integers(0, 5), min_size=1, max_size=2).map(tuple)
dtypes = st.sampled_from([np.int32, np.float32])


@given(
    longs=st.lists(shapes, max_size=2),
    words=st.lists(st.tuples(shapes, dtypes), min_size=1, max_size=5),
    seed=st.integers(0, 1000),
)
def test_arrays_are_views_of_one_block_with_their_values(
    longs: list[tuple[int, ...]], words: list[tuple[tuple[int, ...], type]], seed: int
) -> None:
    rng = np.random.default_rng(seed)
    arrays = [rng.integers(-(2**31), 2**31, shape).astype(dtype) for shape, dtype in words]
    arrays += [rng.integers(-(2**62), 2**62, shape) for shape in longs]
    rng.shuffle(arrays)
    block = pack(arrays)
    parts = unpack(block, arrays)
    assert block.dtype == torch.int32
    assert len({part.untyped_storage().data_ptr() for part in parts}) == 1
    in_place = upload(arrays, torch.device("cpu"))
    elsewhere = upload(arrays, torch.device("meta"))
    for part, own, moved, array in zip(parts, in_place, elsewhere, arrays, strict=True):
        assert part.is_contiguous() and part.dtype == own.dtype == moved.dtype
        assert moved.shape == array.shape and moved.is_meta
        np.testing.assert_array_equal(part.numpy(), array)
        np.testing.assert_array_equal(own.numpy(), array)
        assert own.numpy().dtype == array.dtype


def test_on_a_cpu_arrays_are_not_copied() -> None:
    array = np.zeros(3, np.int32)
    (own,) = upload([array], torch.device("cpu"))
    array[1] = 7
    assert own.tolist() == [0, 7, 0]
