"""Decisions are recorded with the values of their time, without text and names, and can be replayed."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gateway.auth import KeyRing
from gateway.cli.replay import replay_log
from gateway.errors import ApiError
from gateway.pipeline.decision_log import DecisionLog, LogFile
from gateway.pipeline.models import ModelTable, ServedModel
from gateway.pipeline.pipeline import Pipeline, PipelineParts
from gateway.providers.fake import FakeProvider
from gateway.settings import SettingsError
from gateway.web.deadlines import TimeLimits
from policies.document import EngineModel, ModelEntry, Policies
from policies.routes import Refusal, Route, RoutingSection, Rule
from router.replay import Record
from tests.gateway.pipeline.exchanges import exchange_with, response_cache

SECRET = "a secret that no log may have"
BODY = {
    "model": "auto",
    "messages": [{"role": "user", "content": SECRET}],
    "user": SECRET,
    "reasoning_effort": SECRET,
    "metadata": {"team": "red", "note": SECRET},
}
RULES = [
    Rule(when="headers['x-stop'] == 'yes'", refuse=Refusal(message="no", status=429)),
    Rule(when="request.metadata['team'] == 'blue'", model="m"),
]
POLICIES = Policies(
    models={"m": ModelEntry(engine=EngineModel(checkpoint="/m"))},
    routes={"auto": Route(rules=RULES, model="m")},
    routing=RoutingSection(headers=["x-stop"]),
    version="v1",
)


async def records(path: Path, *requests: tuple[dict[str, Any], dict[str, str]]) -> list[Record]:
    """Run requests (body, headers) through a pipeline that records them."""
    file = LogFile(str(path))
    model = ServedModel("m", "engine", FakeProvider(), TimeLimits(None, None, 60), num_waiting=lambda: 3)
    table = ModelTable([model], {})
    log = DecisionLog(file, table, POLICIES)
    pipeline = Pipeline(KeyRing([]), table, response_cache(), POLICIES, PipelineParts(log=log))
    for body, headers in requests:
        exchange = exchange_with(body, headers=headers)
        try:
            await pipeline.run(exchange)
        except ApiError as error:
            exchange.error = error
        pipeline.settle(exchange)
    file.close()
    return [msgspec.json.decode(line, type=Record) for line in path.read_bytes().splitlines()]


async def test_a_decision_with_its_values(tmp_path: Path) -> None:
    (found,) = await records(tmp_path / "log", (BODY, {"x-stop": "no", "x-other": SECRET}))
    assert (found.version, found.model, found.route, found.rule, found.status) == (
        "v1",
        "m",
        "auto",
        "default",
        200,
    )
    assert found.facts["request.num_messages"] == 1 and found.facts["live.queue"] == {"m": 3}
    assert found.facts["headers"] == {"x-stop": "no"}
    assert found.facts["request.metadata"] == {"team": "red"}
    assert found.input_tokens == 7
    assert SECRET not in (tmp_path / "log").read_text()
    assert (tmp_path / "log").stat().st_mode & 0o077 == 0


async def test_refusals_are_recorded_and_unknown_names_are_not(tmp_path: Path) -> None:
    found = await records(
        tmp_path / "log", (BODY, {"x-stop": "yes"}), ({**BODY, "model": SECRET}, {}), ({**BODY, "n": 0}, {})
    )
    assert [(each.model, each.status) for each in found] == [("", 429)]
    assert SECRET not in (tmp_path / "log").read_text()


async def test_the_command_replays_them(tmp_path: Path) -> None:
    await records(tmp_path / "log", (BODY, {}), (BODY, {"x-stop": "yes"}))
    (tmp_path / "p.yaml").write_text(
        "models: {m: {engine: {checkpoint: /m}}, n: {engine: {checkpoint: /n}}}\n"
        "routes:\n  auto:\n    model: m\n    rules:\n"
        "      - {name: red, when: \"request.metadata['team'] == 'red'\", model: n}\n"
    )
    out = io.StringIO()
    assert replay_log(tmp_path / "p.yaml", tmp_path / "log", out) == 0
    assert "1 m → n: route auto, rule 1 (red)\n1 (refused) → n: route auto, rule 1 (red)\n" in out.getvalue()


@pytest.mark.parametrize(("content", "message"), [("{}\n", "log:1: not a recorded"), (None, "No such file")])
def test_logs_that_cannot_be_read(tmp_path: Path, content: str | None, message: str) -> None:
    (tmp_path / "p.yaml").write_text("models: {m: {engine: {checkpoint: /m}}}\n")
    if content is not None:
        (tmp_path / "log").write_text(content)
    with pytest.raises(SettingsError, match=message):
        replay_log(tmp_path / "p.yaml", tmp_path / "log", io.StringIO())
