"""Drive an engine in this process until it has nothing left to do."""

from __future__ import annotations

from collections.abc import Sequence

from backend.engine.engine import Engine
from backend.types import Request, StepOutput


def run(engine: Engine, requests: Sequence[Request]) -> dict[str, list[StepOutput]]:
    """Everything that the engine says to each request; its accounts are checked after every step."""
    outputs: dict[str, list[StepOutput]] = {request.request_id: [] for request in requests}
    for request in requests:
        engine.add(request)
    while engine.has_work:
        for output in engine.step():
            outputs[output.request_id].append(output)
        engine.scheduler.check_invariants()
    return outputs


def texts(engine: Engine, requests: Sequence[Request]) -> list[list[int]]:
    """The token ids of each answer."""
    found = run(engine, requests)
    return [[t for o in found[request.request_id] for t in o.token_ids] for request in requests]
