"""What each grader takes for right, and its reasons, which quote no answer."""

from __future__ import annotations

import pytest

from gateway.evaluation.own.graders import Exact, Grader, Json, Numeric, Regex


@pytest.mark.parametrize(
    ("grader", "text", "reason"),
    [
        (Exact(["Oslo"]), " Oslo\n", ""),
        (Exact(["Oslo", "Bergen"]), "Bergen", ""),
        (Exact(["Oslo"]), "oslo", "another text"),
        (Exact(["Oslo"], ignore_case=True), "OSLO", ""),
        (Exact(["Oslo"]), "The answer is Oslo", "more than the expected text"),
        (Exact(["Oslo"]), " \n", "empty"),
        (Exact(["é"]), "e\u0301", ""),
        (Regex(r"\b4[0-9]\b"), "It is 42.", ""),
        (Regex("^oslo$"), "Oslo", "no match"),
        (Regex("^oslo$", ignore_case=True), "Oslo", ""),
        (Regex("(a+)+$"), "a" * 50_000 + "b", "no match"),
        (Regex("x"), "\ud800x", ""),
        (Json({"a": [1, 2.0], "b": None}), '{"b": null, "a": [1.0, 2]}', ""),
        (Json({"a": 1}), '```json\n{"a": 1}\n```', ""),
        (Json({"a": 1}), 'Here: {"a": 1}', "no JSON"),
        (Json({"a": 1}), "[" * 100_000, "no JSON"),
        (Json({"a": {"b": [1, 2]}}), '{"a": {"b": [1, 3]}}', "differs at $.a.b[1]"),
        (Json({"a": 1}), "{}", "differs at $.a, which is missing"),
        (Json({"a": 1}), '{"a": 1, "b": 2}', "differs at $, which has more keys"),
        (Json({"a": 1}, subset=True), '{"a": 1, "b": 2}', ""),
        (Json([1]), "[1, 2]", "differs at $, which has another length"),
        (Json(1), "true", "differs at $"),
        (Json("x"), '"x"', ""),
        (Numeric(42), "17 + 25 = 42.", ""),
        (Numeric(1234.5), "It is **1,234.50** euros", ""),
        (Numeric(-3), "−3", ""),
        (Numeric(0.5), "about .5", ""),
        (Numeric(5), "between 3-5", ""),
        (Numeric(2e6), "2e6", ""),
        (Numeric(100, tolerance=1), "101", ""),
        (Numeric(100, relative_tolerance=0.02), "98", ""),
        (Numeric(100), "101", "another number"),
        (Numeric(100), "a hundred", "no number"),
        (Numeric(1), "1e999", "another number"),
        (Numeric(0.1 + 0.2), "0.3", ""),
    ],
)  # fmt: skip
def test_grades(grader: Grader, text: str, reason: str) -> None:
    found = grader.grade(text)
    assert (found.is_right, found.reason) == (not reason, reason)


def test_an_expression_that_is_none_is_not_quoted() -> None:
    with pytest.raises(ValueError, match="no RE2 expression") as raised:
        Regex("(secret")
    assert "secret" not in str(raised.value)
