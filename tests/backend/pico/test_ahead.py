"""Other processes make what this one would make, in the same order, and their faults come out here."""

from __future__ import annotations

import os

import pytest

from backend.pico.ahead import made_ahead


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_results_come_in_the_order_of_their_indices(workers: int) -> None:
    indices = [7, 3, 5, 1, 9, 0, 2, 8, 4, 6] * 4
    assert list(made_ahead(lambda index: [(index, True)], indices, workers)) == [[(i, True)] for i in indices]


def test_so_many_processes_work_at_it() -> None:
    found = set(made_ahead(lambda _: os.getpid(), range(12), 2))
    assert len(found) == 2
    assert os.getpid() not in found


@pytest.mark.parametrize("workers", [0, 2])
def test_a_fault_is_raised_where_its_result_is_asked_for(workers: int) -> None:
    def make(index: int) -> int:
        return 12 // (3 - index)

    made = made_ahead(make, range(5), workers)
    assert [next(made) for _ in range(3)] == [4, 6, 12]
    with pytest.raises(ZeroDivisionError):
        next(made)
