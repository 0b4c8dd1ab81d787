"""What becomes of answers, refusals and failures; counts always add up."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.pico.tasks import Family, Instance
from backend.pico.tasks.base import Context, Tool
from gateway.evaluation import runner
from gateway.evaluation.client import Answer, NotReachable, RequestFailed, Tokens
from gateway.evaluation.report import count_cells
from gateway.evaluation.runner import Run, Subject, Verdict
from tests.gateway.evaluation.scripted import ScriptedClient, answer, outcome, play, question, run_of

TOOLS = Context(tools=(Tool("calculator", "Computes.", (("expression", "string"),)),))
NO_TOOLS = RequestFailed("400: 'tools' is not supported", 400)


def numbered(count: int, context: Context | None = None) -> list[Instance]:
    return [
        Instance("arithmetic", 1, str(n), "2", str(n), context=context or Context()) for n in range(count)
    ]


def number_of(request: Mapping[str, Any]) -> int:
    return int(request["messages"][-1]["content"])


async def test_graded_and_priced() -> None:
    async def script(request: Mapping[str, Any]) -> Answer:
        return answer("2" if number_of(request) else "3")

    run, client = await play(script, numbered(4), subject=Subject("m", "low"))
    assert dict(run.verdicts) == {"right": 3, "wrong": 1}
    assert client.bodies[0] == {
        "model": "m",
        "messages": [{"role": "user", "content": "0"}],
        "temperature": 0,
        "max_tokens": 99,
        "reasoning_effort": "low",
    }
    assert run.cost_usd() is None  # no price
    assert run_of(outcome("right"), outcome("wrong"), outcome("failed")).cost_usd() == Decimal("0.00006")


def test_no_cost_when_tokens_were_not_counted() -> None:
    silent = runner.Outcome(question(), "right", answer(tokens=None))
    assert run_of(silent, outcome("right")).cost_usd() is None
    assert silent.tokens == Tokens()


@pytest.mark.parametrize("status", [0, 400, 429, 501])
async def test_errors_are_final(status: int) -> None:
    async def script(request: Mapping[str, Any]) -> Answer:
        raise RequestFailed("no", status)

    run, client = await play(script, numbered(2))
    assert (run.problems, len(client.bodies)) == ({"no": 2}, 2)


@pytest.mark.parametrize(
    "error",
    [
        RequestFailed("404: no such model", 404),
        NotReachable("gone"),
        RequestFailed("'reasoning_effort'?", 400),
    ],
)
async def test_hopeless_runs_end_early(error: RequestFailed) -> None:
    async def script(request: Mapping[str, Any]) -> Answer:
        raise error

    run, _ = await play(script, numbered(9), subject=Subject("m", "low"), concurrency=2)
    assert len(run.outcomes) <= 2
    assert run.gave_up_because == str(error)


async def test_a_model_that_refuses_everything_is_given_up() -> None:
    async def script(request: Mapping[str, Any]) -> Answer:
        raise RequestFailed("400: 'm' makes vectors", 400)

    run, _ = await play(script, numbered(40), concurrency=1)
    assert len(run.outcomes) == runner.FEW_REFUSALS
    assert run.gave_up_because == "400: 'm' makes vectors"
    assert not run.is_complete


@pytest.mark.parametrize("fate", ["an answer", "other words", "500"])
async def test_equal_refusals_of_some_questions_do_not(fate: str) -> None:
    async def script(request: Mapping[str, Any]) -> Answer:
        if fate == "500":
            raise RequestFailed("500: it broke", 500)
        if number_of(request) == 1 and fate == "an answer":
            return answer()
        raise RequestFailed("400: other words" if number_of(request) == 1 else "400: too long", 400)

    run, _ = await play(script, numbered(9), concurrency=1)
    assert (len(run.outcomes), run.gave_up_because) == (9, "")


async def test_an_answer_that_breaks_its_grader_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    def grade(_: Instance, text: str) -> bool:
        return bool(int(text))

    monkeypatch.setitem(runner.FAMILIES, "fragile", Family("fragile", {}, grade))

    async def script(request: Mapping[str, Any]) -> Answer:
        return answer("1" * 5000 if number_of(request) else "1")

    questions = [Instance("fragile", 1, str(n), "1", str(n)) for n in range(3)]
    run, _ = await play(script, questions)
    assert dict(run.verdicts) == {"right": 1, "wrong": 2}
    assert run.is_complete
    assert {outcome.problem[:40] for outcome in run.outcomes} == {
        "",
        "cannot be graded: ValueError: Exceeds th",
    }
    assert not run.problems


async def test_other_failures_do_not() -> None:
    async def script(request: Mapping[str, Any]) -> Answer:
        if number_of(request) % 2:
            raise RequestFailed("500: it broke", 500)
        return answer()

    run, _ = await play(script, numbered(6))
    assert dict(run.verdicts) == {"right": 3, "failed": 3}
    assert run.problems == {"500: it broke": 3}


async def test_refused_tools_are_skipped_and_not_offered_again() -> None:
    async def script(request: Mapping[str, Any]) -> Answer:
        if "tools" in request:
            raise NO_TOOLS
        return answer()

    run, client = await play(script, [*numbered(5, TOOLS), *numbered(2)], concurrency=1)
    assert dict(run.verdicts) == {"skipped": 5, "right": 2}
    assert sum("tools" in body for body in client.bodies) == 1
    assert run.refusal_of_tools == str(NO_TOOLS)


async def test_a_broken_server_that_names_tools_does_not_refuse_them() -> None:
    async def script(request: Mapping[str, Any]) -> Answer:
        raise RequestFailed("500: internal error in tool parser", 500)

    run, _ = await play(script, numbered(3, TOOLS))
    assert (run.refusal_of_tools, dict(run.verdicts)) == ("", {"failed": 3})


@pytest.mark.parametrize(
    ("verdicts", "num_questions", "is_complete"),
    [
        (("right", "wrong", "skipped"), 3, True),
        (("right", "wrong", "failed"), 3, False),
        (("right", "wrong"), 3, False),
        ((), 3, False),
    ],
)
def test_complete_is_what_was_answered_or_skipped(
    verdicts: tuple[Verdict, ...], num_questions: int, is_complete: bool
) -> None:
    assert run_of(*map(outcome, verdicts), num_questions=num_questions).is_complete is is_complete


async def test_interrupted_run_keeps_what_is_done() -> None:
    stalled = asyncio.Event()

    async def script(request: Mapping[str, Any]) -> Answer:
        if number_of(request) >= 3:
            stalled.set()
            await asyncio.get_running_loop().create_future()
        return answer()

    run = Run(Subject("m"), 9)
    task = asyncio.create_task(
        runner.Runner(ScriptedClient(script), 1, 0).run(run, numbered(9), lambda: None)
    )
    await stalled.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (len(run.outcomes), run.verdicts["right"]) == (3, 3)
    assert run.wall_s > 0


FATES = st.sampled_from(["right", "wrong", "broken", "refuses tools"])


@given(st.lists(st.tuples(FATES, st.booleans(), st.integers(1, 3)), max_size=12), st.integers(1, 4))
def test_counts_add_up(fates: list[tuple[str, bool, int]], concurrency: int) -> None:
    async def script(request: Mapping[str, Any]) -> Answer:
        fate = fates[number_of(request)][0]
        if fate == "broken":
            raise RequestFailed("500: it broke", 500)
        if fate == "refuses tools":
            raise NO_TOOLS
        return answer("2" if fate == "right" else "3")

    questions = [
        Instance("arithmetic", tier, str(n), "2", str(n), context=TOOLS if has_tools else Context())
        for n, (_, has_tools, tier) in enumerate(fates)
    ]
    run, _ = asyncio.run(play(script, questions, concurrency=concurrency))
    assert sum(run.verdicts.values()) == len(run.outcomes) == len(fates)
    assert sum(count_cells(run.outcomes).values(), start=type(run.verdicts)()) == run.verdicts
    assert run.verdicts["right"] + run.verdicts["wrong"] == len(run.answers)
    assert sum(run.problems.values()) == run.verdicts["failed"]
    assert run.verdicts["right"] <= sum(fate == "right" for fate, *_ in fates)
    if not any(has_tools for _, has_tools, _ in fates):
        assert run.verdicts["skipped"] == 0
        assert run.verdicts["right"] == sum(fate == "right" for fate, *_ in fates)
