from __future__ import annotations

from cache.frequency import MAX_COUNT, FrequencySketch
from tests.cache.entries import key_of


def test_counts_are_never_too_low_and_saturate() -> None:
    sketch = FrequencySketch(width=1 << 10)
    for number in range(100):
        for _ in range(number % 20):
            sketch.record(key_of(number))
    assert all(sketch.estimate(key_of(n)) >= min(n % 20, MAX_COUNT) for n in range(100))
    assert max(sketch.estimate(key_of(n)) for n in range(100)) == MAX_COUNT
    exact = sum(sketch.estimate(key_of(n)) == min(n % 20, MAX_COUNT) for n in range(100))
    assert exact > 95  # few collisions


def test_old_counts_fade() -> None:
    sketch = FrequencySketch(width=1 << 6)
    for _ in range(8):
        sketch.record(key_of(0))
    before = sketch.estimate(key_of(0))
    for number in range(10 * (1 << 6) - 8):
        sketch.record(key_of(1 + number % 2))
    assert before == 8 and sketch.estimate(key_of(0)) == 4
