"""What a reload does that cannot even read the policies."""

from __future__ import annotations

import pytest

from gateway.processes.messages import Version
from gateway.processes.reload import Reloader, ReloadFailed
from gateway.settings import Settings
from policies.document import Policies


async def test_an_unexpected_error_is_an_answer_and_nothing_of_it_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def load() -> tuple[Policies, Settings]:
        raise AssertionError("sk-canary")

    changes: list[None] = []
    current = Version(1, Policies(version="old"), Settings(), ())
    reloader = Reloader(current, {}, load, lambda: changes.append(None))
    with pytest.raises(ReloadFailed, match="unexpected AssertionError; the log has more"):
        await reloader.reload()
    assert reloader.current is current and len(changes) == 1
    assert reloader.state.num_failures == 1 and "sk-canary" not in reloader.state.error
    assert "Traceback" in caplog.text
