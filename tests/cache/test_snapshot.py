from __future__ import annotations

from pathlib import Path

import pytest
from numpy import float16

from cache import snapshot
from cache.entry import Labels
from cache.memory_store import MemoryStore
from tests.cache.entries import add, entry_of, key_of, unit


def filled(count: int = 5) -> MemoryStore:
    store = MemoryStore(1 << 20, 1 << 20)
    for number in range(count):
        entry = entry_of(number, ttl_s=100.0 + number)
        entry.labels = Labels("small", "", ("tag",))
        add(store, entry, number)
    store.add(entry_of(99), None)
    return store


def loaded(path: Path, now_s: float = 0.0) -> MemoryStore:
    store = MemoryStore(1 << 20, 1 << 20)
    snapshot.load(path, store, now_s)
    return store


def test_entries_come_back_with_their_vectors(tmp_path: Path) -> None:
    path = tmp_path / "new" / "cache"
    snapshot.write(path, filled())
    store = loaded(path)
    assert len(store) == 6
    ((entry, neighbour),) = store.nearest(b"p", unit(3).astype(float16).astype("float32"), 1, 0.0)
    assert entry.key == key_of(3) and entry.labels.tags == ("tag",) and neighbour.cosine > 0.999
    assert path.stat().st_mode & 0o777 == 0o600 and [each.name for each in path.parent.iterdir()] == ["cache"]


def test_what_is_known_of_errors_comes_back(tmp_path: Path) -> None:
    store = filled()
    for _ in range(30):
        store.evidence.record("small", 0.02, "a", is_right=False)
    store.evidence.record("small", 0.02, "a", is_right=True)
    snapshot.write(tmp_path / "cache", store)
    found = loaded(tmp_path / "cache").evidence
    assert found.allowed("small", 0.02, "a") == store.evidence.allowed("small", 0.02, "a") < 0.02
    assert found.section("small").verdicts == store.evidence.section("small").verdicts


def test_expired_entries_stay_away(tmp_path: Path) -> None:
    path = tmp_path / "cache"
    snapshot.write(path, filled())
    assert len(loaded(path, 102.5)) == 2


@pytest.mark.parametrize("damage", ["cut", "flipped", "other version", "empty"])
def test_a_damaged_file_is_ignored_and_named(
    damage: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "cache"
    snapshot.write(path, filled())
    content = path.read_bytes()
    other = content.replace(snapshot.HEAD[:16], b"penstock cache 9")
    flipped = content[:-1] + bytes([content[-1] ^ 1])
    path.write_bytes({"cut": content[:-9], "flipped": flipped, "other version": other, "empty": b""}[damage])
    assert len(loaded(path)) == 0 and str(path) in caplog.text


def test_a_missing_file_is_no_problem(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert len(loaded(tmp_path / "none")) == 0 and not caplog.text


def test_a_file_that_cannot_be_written_is_logged_and_the_old_one_stays(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "cache"
    snapshot.write(path, filled(1))

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(snapshot.os, "fsync", full)
    snapshot.write(path, filled(5))
    assert "No space left" in caplog.text
    assert len(loaded(path)) == 2 and [each.name for each in tmp_path.iterdir()] == ["cache"]
