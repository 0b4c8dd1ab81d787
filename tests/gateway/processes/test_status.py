from __future__ import annotations

from gateway.processes.status import ProcessStatus, decode_statuses, encode_statuses


def test_statuses_are_one_line() -> None:
    sent = {"a\nb": ProcessStatus(phase="loading", fraction=0.5, restarts=2)}
    line = encode_statuses(sent)
    assert line.count(b"\n") == 1 and line.endswith(b"\n")
    assert decode_statuses(line) == sent
