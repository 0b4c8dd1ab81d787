"""Messages are lines of JSON that come back as they were."""

from __future__ import annotations

import pytest

from gateway.processes.messages import (
    Activate,
    PolicyState,
    Prepare,
    Reply,
    StatusReport,
    ToWorker,
    Version,
    decode,
    encode,
)
from gateway.processes.status import ProcessStatus, RepeatedFailure
from gateway.settings import Settings
from policies.document import EngineModel, ModelEntry, Policies
from policies.routes import Route, Rule

FAILURE = RepeatedFailure(cause="no\nmemory", count=3, retry_at_s=1.5)
POLICIES = Policies(
    models={"m": ModelEntry(engine=EngineModel(checkpoint="/m"))},
    routes={"auto": Route(rules=[Rule(when="request.stream", model="m")], model="m")},
    version="v",
)


@pytest.mark.parametrize(
    "message",
    [
        StatusReport({"a\nb": ProcessStatus(phase="loading", fraction=0.5, failure=FAILURE)}),
        Prepare(Version(2, POLICIES, Settings(api_keys=("k",)), ("m",))),
        Activate(2),
        Activate(2, is_discarded=True),
        PolicyState("v2", ("v1",), 1, 2, "why\nnot"),
        Reply(7, is_done=False, message="no"),
    ],
    ids=lambda message: type(message).__name__,
)
def test_messages_are_one_line(message: ToWorker) -> None:
    line = encode(message)
    assert line.count(b"\n") == 1 and line.endswith(b"\n")
    assert decode(line) == message
