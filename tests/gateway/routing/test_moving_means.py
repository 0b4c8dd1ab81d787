"""Moving averages follow, and forget."""

from __future__ import annotations

import pytest

from gateway.routing.moving_means import MovingMeans


def test_an_average_follows_what_is_measured() -> None:
    means = MovingMeans(9.0)
    assert means.expected("small") == 9.0
    means.observe("small", 1.0)
    assert means.expected("small") == 1.0
    means.observe("small", 2.0)
    assert means.expected("small") == pytest.approx(1.2) and means.expected("large") == 9.0
