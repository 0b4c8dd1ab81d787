from __future__ import annotations

import pytest

from backend.scheduler import SchedulerConfig


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"max_model_tokens": 0}, "max_model_tokens is 0; it must be at least 1"),
        ({"max_queue": -1}, "max_queue is -1"),
        ({"max_running": 64, "max_batch_tokens": 32}, "max_batch_tokens is 32, less than max_running 64"),
        ({"max_step_stretch": 1.0}, "max_step_stretch is 1.0"),
        ({"max_step_s": 0.0}, "max_step_s is 0.0"),
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, float], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        SchedulerConfig(**{"max_model_tokens": 8} | settings)  # type: ignore[arg-type]
