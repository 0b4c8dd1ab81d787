from __future__ import annotations

from gateway.pipeline.latency import Latencies


def test_the_average_moves_towards_what_was_measured_last() -> None:
    latencies = Latencies()
    assert latencies.expected_s("m") == 0.0
    latencies.observe("m", 1.0)
    assert latencies.expected_s("m") == 1.0
    latencies.observe("m", 2.0)
    assert 1.0 < latencies.expected_s("m") < 1.5
