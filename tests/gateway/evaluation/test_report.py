"""Tables and documents say what happened, no more and no less."""

from __future__ import annotations

import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from backend.pico.tasks import FAMILIES, Instance
from gateway.evaluation.price import TokenPrice
from gateway.evaluation.report import (
    FORM_COUNTS,
    as_document,
    cost_of_many,
    percentile,
    problem_lines,
    show,
)
from gateway.evaluation.runner import Outcome, Run, Subject
from tests.gateway.evaluation.scripted import PRICE, answer, outcome, question, run_of


def shown(*runs: Run) -> str:
    out = io.StringIO()
    show(Console(file=out, width=110), runs)
    return out.getvalue()


def mixed() -> Run:
    return run_of(
        outcome("right"),
        outcome("wrong"),
        outcome("right"),
        outcome("right", family="tools", tier=2),
        outcome("skipped", family="tools"),
        outcome("failed", family="units", tier=2),
    )


@given(st.lists(st.floats(0, 100), min_size=1), st.floats(0, 100))
def test_percentile(values: list[float], percent: float) -> None:
    found = percentile(values, percent)
    assert found in values
    assert sum(value <= found for value in values) >= percent / 100 * len(values) - 1e-9
    assert sum(value < found for value in values) <= percent / 100 * len(values)


def test_tables() -> None:
    lines = {line.split()[0]: line.split()[1:] for line in shown(mixed()).splitlines() if line.strip()}
    assert lines["arithmetic"] == ["66.7", "66.7"]
    assert lines["tools"] == ["skipped", "100.0", "100.0"]
    assert lines["units"] == ["failed", "failed"]
    assert lines["all"] == [
        "66.7",
        "50.0",
        "60.0",
    ]  # what failed is not right, what was skipped does not count
    text = " ".join(shown(mixed()).split())
    assert "answered 4 of 6" in text and "prompt tokens 40" in text and "completion tokens 20" in text
    assert "for reasoning 8" in text and "USD 0.00012" in text and "USD per 1,000 0.03" in text
    assert "s per request, p95 0.50" in text
    assert "USD 0.00012 0 " in " ".join(shown(mixed(), run_of(outcome("failed"))).split())


def test_runs_without_any_answer_have_no_table() -> None:
    text = shown(run_of(outcome("failed"), num_questions=3))
    assert "what it took" not in text
    assert "m: 1 requests failed" in text and "2 questions were not asked: interrupted" in text


def test_one_line_says_that_form_counts() -> None:
    assert shown(mixed(), mixed()).splitlines().count(FORM_COUNTS) == 1
    assert "Form counts" not in shown(run_of(outcome("failed")))
    asked = Instance("arithmetic", 1, "(2 + 11) * 7 =", "91", "k")
    assert [FAMILIES["arithmetic"].grade(asked, text) for text in ("The answer is 91.", "91")] == [
        False,
        True,
    ]


def test_problem_lines() -> None:
    cut = Outcome(question(), "wrong", answer(tokens=None))
    run = run_of(outcome("skipped"), outcome("failed"), cut, num_questions=9)
    run.refusal_of_tools = "400: no [tools]"
    run.gave_up_because = "404"
    run.add(Outcome(question(), "failed", problem="other"))
    assert list(problem_lines(run)) == [
        "m: 2 requests failed and count as not right, 1 of them with: 500: it broke; 1 other messages",
        "m: skipped 1 questions that offer tools, because the server refuses them: 400: no [tools]",
        "m: 5 questions were not asked: the next ones would fail as well",
        "m: the server did not count the tokens of every answer, so there is no cost",
    ]
    assert "no [tools]" in shown(run)  # brackets are not taken for markup


@pytest.mark.parametrize("price", [PRICE, None])
def test_tokens_that_nobody_counted_are_not_0(price: TokenPrice | None) -> None:
    run = run_of(Outcome(question(), "right", answer(tokens=None)), subject=Subject("m", price=price))
    rows = dict(line.strip().rsplit("  ", 1) for line in shown(run).splitlines() if "not counted" in line)
    assert {name.strip() for name in rows} == {
        *("prompt tokens", "completion tokens", "for reasoning", "USD", "USD per 1,000")
    }
    (model,) = as_document([run], {})["models"]
    assert (model["tokens"], model["usd"], model["outcomes"][0]["completion_tokens"]) == (None, None, None)


def test_an_answer_that_broke_its_grader_is_told() -> None:
    run = run_of(Outcome(question(), "wrong", answer(), "cannot be graded: ValueError: no"), outcome("right"))
    assert "m: 1 answers could not be graded and count as wrong; --json keeps them" in shown(run)
    outcomes = as_document([run], {})["models"][0]["outcomes"]
    assert [each.get("problem") for each in outcomes] == ["cannot be graded: ValueError: no", None]


def test_cost_is_per_answered_question() -> None:
    assert cost_of_many(mixed()) == pytest.approx(1000 * (10e-6 + 20e-6))
    assert cost_of_many(run_of(outcome("failed"))) is None
    assert cost_of_many(run_of(outcome("right"), subject=Subject("m"))) is None


def test_document() -> None:
    document = json.loads(json.dumps(as_document([mixed()], {"seed": 3})))
    assert document["seed"] == 3
    (model,) = document["models"]
    assert (model["right"], model["wrong"], model["failed"], model["skipped"]) == (3, 1, 1, 1)
    assert model["accuracy"] == 0.6
    assert model["is_complete"] is False
    assert model["cells"][0] == {
        "family": "arithmetic",
        "tier": 1,
        "accuracy": pytest.approx(2 / 3),
        "interval": pytest.approx([0.2077, 0.9385], abs=1e-4),
        "right": 2,
        "wrong": 1,
        "failed": 0,
        "skipped": 0,
    }
    assert sum(cell["right"] for cell in model["cells"]) == model["right"]
    assert model["price"] == {"prompt": f"{PRICE.prompt_usd:f}", "completion": "0.000004"}
    assert [each["verdict"] for each in model["outcomes"]][-2:] == ["skipped", "failed"]
    assert model["outcomes"][0]["answer"] == "2"
    assert model["problems"] == [{"message": "500: it broke", "count": 1}]
