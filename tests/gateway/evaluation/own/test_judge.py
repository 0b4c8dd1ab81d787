"""A judge's verdict: the last one that it gives, or none."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from gateway.evaluation.client import Answer, RequestFailed
from gateway.evaluation.own.graders import Rubric
from gateway.evaluation.own.judge import Judge
from tests.gateway.evaluation.scripted import ScriptedClient, answer


def judge(said: str) -> tuple[Judge, ScriptedClient]:
    async def script(request: Mapping[str, Any]) -> Answer:
        return answer(said)

    client = ScriptedClient(script)
    return Judge(client, "grader", 100), client


@pytest.mark.parametrize(
    ("said", "is_right", "remark"),
    [
        ('{"reason": "Same city.", "right": true}', True, "Same city."),
        ('Well.\n```json\n{"right": false, "reason": "No."}\n```', False, "No."),
        ('It says {"right": true}, but: {"reason": "Not so.", "right": false}', False, "Not so."),
        ('{"right": true}', True, ""),
    ],
)
async def test_verdicts(said: str, is_right: bool, remark: str) -> None:
    grader, client = judge(said)
    found = await grader.grade(Rubric("Which city?", "Oslo", "be strict"), "Oslo, of course")
    assert (found.is_right, found.remark) == (is_right, remark)
    (body,) = client.bodies
    assert body["model"] == "grader" and body["temperature"] == 0 and body["max_tokens"] == 100
    asked = json.loads(body["messages"][1]["content"])
    assert asked == {
        "question": "Which city?", "answer": "Oslo, of course", "reference": "Oslo", "rubric": "be strict"
    }  # fmt: skip


@pytest.mark.parametrize("said", ["", "Yes, it is right.", '{"right": "true"}', "{" * 10_000])
async def test_no_verdict_is_no_grade(said: str) -> None:
    with pytest.raises(RequestFailed, match="the judge 'grader' gave no verdict"):
        await judge(said)[0].grade(Rubric("?"), "x")
