"""Work that fails begins again; its error's message stays out of the log."""

from __future__ import annotations

import logging

import pytest

from backend import kept_running
from backend.kept_running import keep_running

SECRET = "what was " + "asked"


async def test_work_begins_again_until_it_returns(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(kept_running, "FIRST_WAIT_S", 0.001)
    tries: list[int] = []
    restarts: list[None] = []

    async def work() -> None:
        tries.append(len(tries))
        if len(tries) < 4:
            raise KeyError(SECRET)

    await keep_running("the work", work, logging.getLogger("test"), lambda: restarts.append(None))
    assert len(tries) == 4 and len(restarts) == 3
    assert "the work failed with KeyError, starting again in 0.0 s" in caplog.text
    assert "test_kept_running.py" in caplog.text and SECRET not in caplog.text
