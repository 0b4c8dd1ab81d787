"""Decisions are recorded with the values of their time, without text and names, and can be replayed."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gateway.auth import KeyRing
from gateway.cli.explain_decisions import explain_recorded
from gateway.cli.replay_decisions import replay_log
from gateway.errors import ApiError
from gateway.exchange.model_table import ModelState, ModelTable, ServedModel
from gateway.pipeline.pipeline import Pipeline, PipelineParts
from gateway.providers.fake import FakeProvider
from gateway.routing.decision_log import DecisionLog, LogFile
from gateway.settings import SettingsError
from gateway.web.deadlines import TimeLimits
from policies.choose import ChoiceCandidate, Choose
from policies.document import EngineModel, ModelEntry, Policies
from policies.observability import ObservabilitySection
from policies.releases import Capabilities, Release
from policies.routes import Fallback, Refusal, Route, RoutingSection, Rule
from router.log import Record
from router.releases import stable_releases
from router.replay import replay, report
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


def served(name: str, entry: ModelEntry, *, ready: bool) -> ServedModel:
    return ServedModel(
        name,
        "engine",
        FakeProvider(),
        TimeLimits(None, None, 60),
        lambda: ModelState(ready=ready),
        num_waiting=lambda: 3,
        capabilities=entry.capabilities,
    )


async def records(
    path: Path,
    *requests: tuple[dict[str, Any], dict[str, str]],
    policies: Policies = POLICIES,
    down: tuple[str, ...] = (),
) -> list[Record]:
    """Run requests (body, headers) through a pipeline that records them."""
    file = LogFile(str(path))
    models = [served(name, entry, ready=name not in down) for name, entry in policies.models.items()]
    table = ModelTable(models, {}, stable_releases(policies.models))
    log = DecisionLog(file, table, policies)
    pipeline = Pipeline(KeyRing([]), table, response_cache(), policies, PipelineParts(log=log))
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


ENGINE = EngineModel(checkpoint="/m")
TOOL = {"type": "function", "function": {"name": "stock", "parameters": {"type": "object"}}}
LIMITED = {
    "small": ModelEntry(engine=ENGINE, capabilities=Capabilities(tools=False, context_tokens=50)),
    "large": ModelEntry(engine=ENGINE),
}
CANARY = ModelEntry(engine=ENGINE, release=Release(of="small", stage="canary", share=1.0))
CANDIDATES = {name: ChoiceCandidate() for name in LIMITED}
CHOICE = Route(choose=Choose(candidates=CANDIDATES))
UNFAMILIAR = Choose(candidates=CANDIDATES, estimate="builtin:pico", default="large", min_familiarity=1.0)
INSTEAD = Route(model="small", fallback=Fallback(any=["large"]))


@pytest.mark.parametrize(
    ("models", "route", "down", "fields", "answered", "chosen"),
    [
        (LIMITED, CHOICE, (), {}, "small", ""),
        (LIMITED, CHOICE, (), {"tools": [TOOL]}, "large", ""),
        (LIMITED, CHOICE, (), {"messages": [{"role": "user", "content": "x" * 400}]}, "large", ""),
        (LIMITED, CHOICE, ("small",), {}, "large", ""),
        (LIMITED, Route(choose=UNFAMILIAR), (), {}, "large", ""),
        (LIMITED | {"v2": CANARY}, Route(model="small"), (), {}, "v2", ""),
        (LIMITED | {"v2": CANARY}, INSTEAD, ("v2",), {}, "large", "v2"),
        (LIMITED, INSTEAD, ("small",), {}, "large", "small"),
    ],
)
async def test_a_replay_of_the_same_policies_changes_nothing(
    tmp_path: Path,
    models: dict[str, ModelEntry],
    route: Route,
    down: tuple[str, ...],
    fields: dict[str, Any],
    answered: str,
    chosen: str,
) -> None:
    policies = Policies(models=models, routes={"auto": route})
    body = {"model": "auto", "messages": [{"role": "user", "content": "hi"}], **fields}
    (found,) = await records(tmp_path / "log", (body, {}), policies=policies, down=down)
    assert (found.model, found.chosen) == (answered, chosen)
    assert report(replay([found], policies)).endswith("nothing changes\n")


@pytest.mark.parametrize(("content", "message"), [("{}\n", "log:1: not a recorded"), (None, "No such file")])
def test_logs_that_cannot_be_read(tmp_path: Path, content: str | None, message: str) -> None:
    (tmp_path / "p.yaml").write_text("models: {m: {engine: {checkpoint: /m}}}\n")
    if content is not None:
        (tmp_path / "log").write_text(content)
    with pytest.raises(SettingsError, match=message):
        replay_log(tmp_path / "p.yaml", tmp_path / "log", io.StringIO())


async def test_texts_are_recorded_where_the_policies_say_so(tmp_path: Path) -> None:
    allowed = msgspec.structs.replace(POLICIES, observability=ObservabilitySection(decision_texts=True))
    (found,) = await records(tmp_path / "log", (BODY, {}), policies=allowed)
    assert (found.prompt, found.id, found.reason) == (SECRET, "id", "route auto, default")


async def test_a_recorded_request_is_explained(tmp_path: Path) -> None:
    await records(tmp_path / "log", (BODY, {}))
    (tmp_path / "p.yaml").write_text(
        "models: {m: {engine: {checkpoint: /m}}}\n"
        "routes: {auto: {model: m, rules: [{when: request.num_messages > 3, model: m}]}}\n"
    )
    out = io.StringIO()
    assert explain_recorded(tmp_path / "p.yaml", tmp_path / "log", "id", out) == 0
    assert "rule 1: no, request.num_messages > 3   [request.num_messages = 1]" in out.getvalue()
    assert "recorded under version v1; the rules of" in out.getvalue()
    assert out.getvalue().endswith("recorded route auto, default\n")
    with pytest.raises(SettingsError, match="has no request or trace 'other'"):
        explain_recorded(tmp_path / "p.yaml", tmp_path / "log", "other", out)


async def test_only_the_last_hours_are_replayed(tmp_path: Path) -> None:
    await records(tmp_path / "log", (BODY, {}))
    (tmp_path / "p.yaml").write_text("models: {m: {engine: {checkpoint: /m}}}\nroutes: {auto: {model: m}}\n")
    old = (tmp_path / "log").read_text().replace('"time":"2', '"time":"1')
    with (tmp_path / "log").open("a") as file:
        file.write(old + '{"label_of":"id","scores":{"m":1.0},"kind":"shadow"}\n')
    for since, count in ((None, 2), ("1h", 1), ("7d", 1)):
        out = io.StringIO()
        replay_log(tmp_path / "p.yaml", tmp_path / "log", out, since)
        assert out.getvalue().startswith(f"requests  {count}\n")
    with pytest.raises(SettingsError, match="--since 'x' must be a number with"):
        replay_log(tmp_path / "p.yaml", tmp_path / "log", io.StringIO(), "x")


def test_a_full_log_is_moved_away_and_nothing_is_lost(tmp_path: Path) -> None:
    """Also by two processes, as two open files here, and when an operator moves it."""
    path = tmp_path / "log"
    files = [LogFile(str(path), max_bytes=200, num_kept=3) for _ in range(2)]
    for number in range(80):
        files[number % 2].add(b"%9d\n" % number)
    for file in files:
        file.close()
    found = sorted(each.name for each in tmp_path.iterdir())
    assert found == ["log", "log.1", "log.2", "log.3"]
    assert all(each.stat().st_size <= 210 for each in tmp_path.iterdir())
    lines = [int(line) for each in tmp_path.iterdir() for line in each.read_text().split("\n") if line]
    assert sorted(lines) == list(range(80))
    third = LogFile(str(path), max_bytes=10_000)
    path.rename(tmp_path / "moved")
    third.add(b"new\n")
    third.close()
    assert path.read_text() == "new\n"


def test_a_log_without_a_limit_only_grows(tmp_path: Path) -> None:
    file = LogFile(str(tmp_path / "log"), max_bytes=0)
    for _ in range(100):
        file.add(b"x" * 100 + b"\n")
    file.close()
    assert [each.name for each in tmp_path.iterdir()] == ["log"]
