from __future__ import annotations

import numpy as np

from guardrails.checks.topics import Topic, topics_of


def test_the_nearest_example_decides() -> None:
    axes = np.eye(3, dtype=np.float32)
    topics = {"a": Topic(axes[:2], 0.9), "b": Topic(axes[2:], 0.9), "c": Topic(axes, 0.5)}
    assert topics_of(axes[1:2], topics) == ["a", "c"]
    assert topics_of(axes[:0], topics) == []
