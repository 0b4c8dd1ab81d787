"""An inverted file that a thread rebuilds while it changes."""

from __future__ import annotations

import random
import threading

import numpy as np
import pytest
from numpy import float32
from numpy.typing import NDArray

from cache import inverted_file
from cache.inverted_file import InvertedFile

DIMENSIONS = 16


def vectors(count: int) -> NDArray[float32]:
    found = np.random.default_rng(1).standard_normal((count, DIMENSIONS)).astype(float32)
    return found / np.linalg.norm(found, axis=1, keepdims=True)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inverted_file, "ONE_LIST_ROWS", 200)
    monkeypatch.setattr(inverted_file, "GROWTH", 2)
    monkeypatch.setattr(inverted_file, "CHUNK_ROWS", 7)


def test_changes_during_rebuilds_are_kept() -> None:
    file, known, draw = InvertedFile(DIMENSIONS), vectors(3000), random.Random(2)
    alive: set[int] = set()
    num_rebuilds, was = 0, file._index
    for number, vector in enumerate(known):
        file.add(number, vector)
        alive.add(number)
        if draw.random() < 0.2:  # a number that comes back, with another vector
            again = draw.choice(sorted(alive))
            file.remove(again)
            known[again] = known[(again + 1) % len(known)]
            file.add(again, known[again])
        if draw.random() < 0.3:
            removed = draw.choice(sorted(alive))
            file.remove(removed)
            alive.discard(removed)
        if number % 1000 == 999:  # the rebuild meets changes before, and the next one starts from its result
            file.wait_until_built()
        if file._index is not was:
            num_rebuilds, was = num_rebuilds + 1, file._index
    file.wait_until_built()
    assert num_rebuilds >= 2 and file._index.nlist > 1
    assert len(file) == len(alive) == len(inverted_file._numbers(file._index))
    for number in draw.sample(sorted(alive), 100):
        cosines = {found: cosine for found, cosine, _ in file.search(known[number], 9)}
        vector = file.vector(number)
        assert cosines[number] > 0.999
        assert vector is not None and np.allclose(vector, known[number], atol=1e-3)
    everything = {number for number, _, _ in file.search(known[0], 3000)}
    assert everything <= alive


def test_a_search_during_a_rebuild_finds_what_is_there() -> None:
    file, known = InvertedFile(DIMENSIONS), vectors(300)
    hits = 0
    for number, vector in enumerate(known):
        file.add(number, vector)
        hits += file.search(known[number // 2], 1)[0][0] == number // 2
    assert hits == 300
    file.wait_until_built()


def test_a_rebuild_that_starts_late_copies_nothing_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    file, known = InvertedFile(DIMENSIONS), vectors(250)
    may_start = threading.Event()
    rebuild = file._rebuild_all
    monkeypatch.setattr(file, "_rebuild_all", lambda: may_start.wait(5) and rebuild())
    for number, vector in enumerate(known):  # the thread is to start at the 201st
        file.add(number, vector)
    may_start.set()
    file.wait_until_built()
    assert file._index.nlist > 1 and len(file) == 250


def test_removing_an_unknown_number_does_nothing() -> None:
    file = InvertedFile(DIMENSIONS)
    file.remove(7)
    file.add(1, vectors(1)[0])
    file.remove(7)
    assert len(file) == 1 and file.search(vectors(1)[0], 5)[0][0] == 1
