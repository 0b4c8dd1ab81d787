"""A route between two scripted models behind the real gateway: shares, accuracy, machine time, curves."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import uvicorn

from gateway.answer import Delta, TokenInfo
from gateway.cli import main as cli
from gateway.evaluation.questions import draw_questions
from gateway.evaluation.route import command, machine
from gateway.evaluation.route.curves import Asked, cascade_curve, gain_curve
from gateway.evaluation.route.machine import Work, spent
from gateway.providers.fake import FakeProvider, TextCall
from gateway.settings import Settings
from gateway.wiring.app import build_app
from policies.document import EngineModel, ModelEntry, Policies
from policies.routes import Route, Rule
from tests.e2e.server import free_port

QUESTIONS = draw_questions(("arithmetic", "sorting"), (1, 2), 3, 0)
ANSWERS = {question.prompt: question for question in QUESTIONS}
FLAGS = (
    "--families",
    "arithmetic,sorting",
    "--tiers",
    "1,2",
    "--limit",
    "3",
    "--weak",
    "small",
    "--strong",
    "large",
)


def saying(*, is_right: bool) -> FakeProvider:
    async def script(call: TextCall) -> AsyncIterator[Delta]:
        asked = [m["content"] for m in call.body["messages"] if m["role"] == "user"]
        text = ANSWERS[asked[-1]].answer if is_right else "I do not know"
        yield Delta(0, text, [TokenInfo(text, text.encode(), math.log(0.5))], finish_reason="stop")

    return FakeProvider(script)


async def test_a_route_is_compared_with_its_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(base_url: str) -> dict[str, Work]:
        """Ten tokens for an answer; those of the large model take twice the time."""
        return {
            name: Work(seconds=cost * provider.num_ended, tokens=10.0 * provider.num_ended)
            for (name, provider), cost in zip(providers.items(), (1.0, 2.0), strict=True)
        }

    monkeypatch.setattr(command, "engine_work", work)
    providers = {"small": saying(is_right=False), "large": saying(is_right=True)}
    models = {name: ModelEntry(engine=EngineModel(checkpoint="/none")) for name in providers}
    rules = [Rule(when="request.num_tokens_estimate > 8", model="large")]
    policies = Policies(models=models, routes={"auto": Route(rules=rules, model="small")})
    port = free_port()
    app = build_app(Settings(), policies, providers)
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="error", timeout_graceful_shutdown=1))
    running = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    try:
        url, out, plot = f"http://127.0.0.1:{port}", tmp_path / "out.json", tmp_path / "out.svg"
        flags = ["eval", "route", "--url", url, *FLAGS, "--json", str(out), "--plot", str(plot)]
        assert await asyncio.to_thread(cli.main, flags) == 0
    finally:
        server.should_exit = True
        await running
    found = json.loads(out.read_text())
    long = sum(len(question.prompt) > 32 for question in QUESTIONS) / len(QUESTIONS)
    assert 0 < long < 1
    assert found["share"] == {
        "large": pytest.approx(long, abs=1e-3),
        "small": pytest.approx(1 - long, abs=1e-3),
    }
    accuracies = {each["name"]: each["accuracy"] for each in found["subjects"]}
    assert accuracies == {"small": 0.0, "large": 1.0, "auto": pytest.approx(long, abs=1e-3)}
    count = len(QUESTIONS)
    seconds = [count * 1.0, count * 2.0, count * (1 + long)]
    assert [each["machine_s"] for each in found["subjects"]] == pytest.approx(seconds)
    assert [each["measured_s"] for each in found["subjects"]] == pytest.approx(seconds)
    assert found["subjects"][2]["tokens"]["large"] == pytest.approx(10 * count * long)
    value, low, high = found["of_strong"]["cost"]
    assert value == pytest.approx((1 + long) / 2, abs=1e-3) and low < value < high
    value, low, high = found["of_strong"]["accuracy"]
    assert value == pytest.approx(long, abs=1e-3) and low < value < high
    assert found["families"].keys() == {"arithmetic", "sorting"}
    assert [point["accuracy"] for point in found["curves"]["cascade"]] == pytest.approx(
        [n / 20 for n in range(21)], abs=0.05
    )
    assert plot.read_text().startswith("<?xml")


def test_curves_send_the_right_questions_to_the_strong_model() -> None:
    asked = [
        Asked(weak_right=right, strong_right=True, weak_s=1.0, strong_s=4.0, gain=gain, confidence=sure)
        for right, gain, sure in (
            (True, 0.1, 0.9),
            (False, 0.8, 0.2),
            (True, 0.2, math.nan),
            (True, 0.3, 0.8),
        )
    ]
    gains, cascade = gain_curve(asked), cascade_curve(asked)
    assert gains[0] == {"strong_share": 0.0, "accuracy": 0.75, "machine_s": 4.0}
    assert gains[5] == {"strong_share": 0.25, "accuracy": 1.0, "machine_s": 7.0}
    assert cascade[5] == {
        "strong_share": 0.25,
        "accuracy": 0.75,
        "machine_s": 8.0,
    }  # NaN first
    assert cascade[10]["accuracy"] == 1.0 and cascade[-1]["machine_s"] == 20.0


async def test_work_is_the_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "SETTLE_S", 0.0)
    page = (
        'penstock_engine_work_seconds_total{model="a"} 1.5\npenstock_engine_steps_total{model="a"} 9.0\n'
        'penstock_engine_prompt_tokens_total{model="a"} 20.0\n'
        'penstock_engine_prefix_hit_tokens_total{model="a"} 16.0\n'
        'penstock_engine_generated_tokens_total{model="a"} 3.0\n'
    )
    asked: list[str] = []

    def read(url: str) -> str:
        asked.append(url)
        return page

    monkeypatch.setattr(machine, "_read", read)
    assert await machine.engine_work("http://host:1/v1") == {"a": Work(1.5, 39.0)}
    assert asked == ["http://host:1/metrics"]


def test_work_between_two_readings() -> None:
    before, after = {"a": Work(1.0, 10.0)}, {"a": Work(3.0, 15.0), "b": Work(1.0, 2.0)}
    assert spent(before, after) == {"a": Work(2.0, 5.0), "b": Work(1.0, 2.0)}
