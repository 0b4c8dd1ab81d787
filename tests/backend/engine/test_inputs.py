from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from backend.engine.inputs import pack, unpack, upload

shapes = st.lists(st.integers(0, 5), min_size=1, max_size=2).map(tuple)


@given(shapes=st.lists(shapes, min_size=1, max_size=6), seed=st.integers(0, 1000))
def test_arrays_are_views_of_one_block_with_their_values(shapes: list[tuple[int, ...]], seed: int) -> None:
    rng = np.random.default_rng(seed)
    arrays = [rng.integers(-(2**62), 2**62, shape) for shape in shapes]
    parts = unpack(pack(arrays), arrays)
    assert len({part.untyped_storage().data_ptr() for part in parts}) == 1
    in_place = upload(arrays, torch.device("cpu"))
    elsewhere = upload(arrays, torch.device("meta"))
    for part, own, moved, array in zip(parts, in_place, elsewhere, arrays, strict=True):
        assert part.is_contiguous() and part.dtype == own.dtype == moved.dtype == torch.int64
        assert moved.shape == array.shape and moved.is_meta
        np.testing.assert_array_equal(part.numpy(), array)
        np.testing.assert_array_equal(own.numpy(), array)
