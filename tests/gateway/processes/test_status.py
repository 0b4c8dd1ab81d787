from __future__ import annotations

from gateway.processes.status import ProcessStatus, RepeatedFailure, decode_statuses, encode_statuses


def test_statuses_are_one_line() -> None:
    failure = RepeatedFailure(cause="no\nmemory", count=3, retry_at_s=1.5)
    sent = {"a\nb": ProcessStatus(phase="loading", fraction=0.5, failure=failure)}
    line = encode_statuses(sent)
    assert line.count(b"\n") == 1 and line.endswith(b"\n")
    assert decode_statuses(line) == sent
