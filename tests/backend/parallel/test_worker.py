"""What fails on the other rank alone ends the request at fault, and nothing else."""

from __future__ import annotations

from backend.parallel.messages import Zero
from backend.types import Request, SamplingParams, StepOutput
from tests.backend.parallel.conftest import TwoRanks
from tests.backend.parallel.faulty_worker import BAD_TOKEN


def ask(name: str, tokens: list[int]) -> Request:
    params = SamplingParams(max_tokens=4, temperature=0.0, ignore_eos=True)
    return Request(request_id=name, prompt_token_ids=tokens, params=params)


def ends(two_ranks: TwoRanks, *requests: Request) -> dict[str, StepOutput]:
    for request in requests:
        two_ranks.engine.add(request)
    found: dict[str, StepOutput] = {}
    while two_ranks.engine.has_work:
        found |= {output.request_id: output for output in two_ranks.engine.step()}
    return found


def test_only_the_request_at_fault_ends(two_ranks: TwoRanks) -> None:
    found = ends(two_ranks, ask("good", [300, 301, 302]), ask("bad", [300, BAD_TOKEN, 302]))
    assert found["good"].finish_reason == "length"
    assert found["bad"].finish_reason == "error" and "its log names the cause" in found["bad"].error


def test_an_error_between_steps_is_told_with_the_next_one(two_ranks: TwoRanks) -> None:
    two_ranks.model.mirror.tell(Zero(storage=-1, slot=0, window_slot=0))
    found = ends(two_ranks, ask("one", [300, 301]), ask("two", [302, 303]))
    assert {output.finish_reason for output in found.values()} == {"length"}  # each was run again
