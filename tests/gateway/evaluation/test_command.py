"""The whole command against the real gateway on a real port; its model is scripted."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import httpx
import pytest
import uvicorn

from backend.pico.tasks import Instance
from gateway.answer import Delta
from gateway.cli import main as cli
from gateway.cli.releases.evaluations import read_evaluation
from gateway.errors import InvalidRequest
from gateway.evaluation import outputs
from gateway.evaluation.questions import draw_questions
from gateway.providers.fake import FakeProvider, TextCall
from gateway.settings import Settings
from gateway.wiring.app import build_app
from policies.document import EngineModel, ModelEntry, Policies, Price
from tests.gateway.providers.upstream.scripted_server import Seen, response, serving, write_all

FAMILIES = ("arithmetic", "sorting", "tools")
FLAGS = ("--families", ",".join(FAMILIES), "--tiers", "1,2", "--limit", "3", "--concurrency", "2")
QUESTIONS = draw_questions(FAMILIES, (1, 2), 3, 0)
ANSWERS = {question.prompt: question for question in QUESTIONS}
KEY = "sk-test"
Say = Callable[[Instance], str]


@contextlib.asynccontextmanager
async def gateway(
    say: Say,
    num_answers: int = 10**9,
    stalled: asyncio.Semaphore | None = None,
    talk: Callable[[str], str] = str.upper,
) -> AsyncIterator[tuple[str, FakeProvider]]:
    """A gateway whose models `ours` and `free` say what `say` makes of a question.

    After that number of answers they send nothing more, and release `stalled` for each question. `talk`
    answers what is no question of pico.
    """

    async def script(call: TextCall) -> AsyncIterator[Delta]:
        if stalled is not None and len(provider.asked) > num_answers:
            stalled.release()
            await asyncio.get_running_loop().create_future()
        asked = [m["content"] for m in call.body["messages"] if m["role"] == "user"]
        known = ANSWERS.get(asked[-1])
        yield Delta(0, talk(asked[-1]) if known is None else say(known), finish_reason="stop")

    provider = FakeProvider(script)
    price = Price(input_usd_per_million_tokens=1.0, output_usd_per_million_tokens=4.0)
    models = {
        "ours": ModelEntry(engine=EngineModel(checkpoint="/none"), price=price),
        "free": ModelEntry(engine=EngineModel(checkpoint="/none")),
    }
    app = build_app(
        Settings(api_keys=(KEY,)), Policies(models=models, version="v1"), dict.fromkeys(models, provider)
    )
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1))
    running = asyncio.create_task(server.serve(sockets=[listener]))
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    try:
        async with httpx.AsyncClient() as http:
            await http.get(f"{url}/health/live")
        yield url, provider
    finally:
        server.should_exit = True
        await running


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_API_KEYS", KEY)


async def evaluate(url: str, *flags: str) -> int:
    arguments = ["eval", "models", "--url", url, *FLAGS, *flags]
    return await asyncio.to_thread(cli.main, arguments)


async def test_tables_json_and_plot(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = tmp_path / "a.json", tmp_path / "a.svg"
    async with gateway(lambda question: question.answer if question.tier == 1 else "no idea") as (url, fake):
        flags = ["--model", "ours", "--model", "free@none", "--json", str(files[0]), "--plot", str(files[1])]
        assert await evaluate(url, *flags) == 0
    assert len(fake.asked) == 2 * len(QUESTIONS)
    assert {call.body.get("reasoning_effort") for call in fake.asked} == {None, "none"}
    out, error = capsys.readouterr()
    assert "ours: percent of right answers" in out and "free (none): percent" in out
    assert re.search(r"arithmetic +100\.0 +0\.0 +50\.0", out)
    assert "because their cost is unknown: free (none)" in error
    document = json.loads(files[0].read_text())
    assert document["is_complete"] is True
    ours, free = document["models"]
    num = len(QUESTIONS)
    assert ours["tokens"] == {"prompt": 7 * num, "completion": num, "reasoning": 0}
    assert ours["usd"] == pytest.approx(num * (7e-6 + 4e-6))
    assert ours["usd_per_1000_questions"] == pytest.approx(0.011)
    assert (free["usd"], free["right"]) == (None, ours["right"])
    assert ours["right"] == sum(question.tier == 1 for question in QUESTIONS)
    assert ">ours: " in files[1].read_text()


async def test_without_a_price_the_plot_has_seconds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plot = tmp_path / "a.svg"
    async with gateway(lambda question: question.answer) as (url, _):
        assert await evaluate(url, "--model", "free", "--plot", str(plot)) == 0
    assert ">seconds per answer, median<" in plot.read_text()
    assert "the plot has seconds" in capsys.readouterr().err


async def test_without_an_answer_there_is_no_plot(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def say(question: Instance) -> str:
        raise InvalidRequest("Not today.")

    plot, found = tmp_path / "a.svg", tmp_path / "a.json"
    async with gateway(say) as (url, _):
        assert await evaluate(url, "--model", "ours", "--json", str(found), "--plot", str(plot)) == 1
    assert not plot.exists() and json.loads(found.read_text())["is_complete"] is False
    assert "nothing to plot: no question was answered" in capsys.readouterr().err


async def test_refused_tools_are_noted_and_no_failure(capsys: pytest.CaptureFixture[str]) -> None:
    def say(question: Instance) -> str:
        if question.context.tools:
            raise InvalidRequest("'tools' is not supported with this model.", param="tools")
        return question.answer

    async with gateway(say) as (url, _):
        assert await evaluate(url, "--model", "ours") == 0
    out = capsys.readouterr().out
    assert "skipped 6 questions that offer tools" in out
    assert re.search(r"tools +skipped +skipped +skipped", out)


async def test_failed_requests_are_counted_and_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.json"

    def say(question: Instance) -> str:
        if question.family == "sorting":
            raise InvalidRequest("I cannot sort.")
        return question.answer

    async with gateway(say) as (url, _):
        assert await evaluate(url, "--model", "ours", "--json", str(path)) == 1
    assert json.loads(path.read_text())["is_complete"] is False
    out = " ".join(capsys.readouterr().out.split())
    assert "ours: 6 requests failed and count as not right, 6 of them with: 400: I cannot sort." in out


async def test_odd_answers_lose_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.json"
    odd = {"content": None, "tool_calls": [{"function": {"name": "f", "arguments": '"\\ud800 \\\\"'}}]}
    listing = response(b'{"data": [{"id": "m"}]}')

    async def script(writer: asyncio.StreamWriter, seen: Seen) -> None:
        chat = response(json.dumps({"choices": [{"message": odd}]}).encode())
        await write_all(writer, [listing if seen.head.startswith("GET") else chat])

    async with serving(script) as server:
        assert await evaluate(server.base_url, "--json", str(path)) == 0
    (model,) = json.loads(path.read_text(encoding="utf-8"))["models"]
    assert model["wrong"] == len(QUESTIONS)
    assert "\ud800 \\" in json.loads(model["outcomes"][0]["answer"].split("\n")[1])["arguments"]
    assert "0.0" in capsys.readouterr().out


async def test_wrong_key_and_wrong_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async with gateway(lambda question: question.answer) as (url, fake):
        assert await evaluate(url, "--model", "hours") == 2
        assert "no model 'hours'; did you mean 'ours'?" in capsys.readouterr().err
        monkeypatch.setenv("PENSTOCK_API_KEYS", "")
        assert await evaluate(url, "--model", "ours") == 1
        assert "give the key with --api-key" in capsys.readouterr().err
        assert fake.asked == []


def test_server_not_reachable(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
        assert cli.main(["eval", "models", "--url", url, *FLAGS]) == 1
    assert f"nothing answers at {url}/v1" in (error := capsys.readouterr().err)
    assert "start one with `penstock serve`" in error


async def test_files_that_cannot_be_written_cost_no_answers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(outputs, "write_file", full)
    async with gateway(lambda question: question.answer) as (url, _):
        flags = ["--json", str(tmp_path / "a.json"), "--plot", str(tmp_path / "a.svg")]
        assert await evaluate(url, "--model", "ours", *flags) == 1
    out, error = capsys.readouterr()
    assert "ours: percent of right answers" in out
    assert error.count("cannot be written: No space left on device") == 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_interrupt_shows_what_is_done(tmp_path: Path, number: signal.Signals) -> None:
    path = tmp_path / "a.json"
    stalled = asyncio.Semaphore(0)
    async with gateway(lambda question: question.answer, 5, stalled) as (url, _):
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "gateway.cli", "eval", "models", "--url", url, *FLAGS),
            *("--model", "ours", "--json", str(path)),
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        async with asyncio.timeout(60):
            await stalled.acquire()
            await stalled.acquire()  # both are under way, so the five before are answered
            process.send_signal(number)
            out, error = await process.communicate()
    assert (process.returncode, error) == (130, b"")
    assert re.search(rb"answered +5 of 18", out)
    assert b"13 questions were not asked: interrupted" in out
    assert json.loads(path.read_text())["is_complete"] is False


OWN = [
    {"prompt": "Capital of Norway?", "expected": "Oslo", "group": "cities"},
    {"prompt": "Capital of Sweden?", "expected": "Stockholm", "group": "cities"},
    {"prompt": "17 + 25?", "expected": 42, "grader": "numeric"},
    {"prompt": "As JSON?", "expected": {"a": 1}, "grader": "json"},
    {"prompt": "Which year?", "expected": r"\b19\d\d\b", "grader": "regex"},
    {"prompt": "Be polite.", "rubric": "polite", "grader": "judge"},
    {"prompt": "Be rude.", "rubric": "polite", "grader": "judge"},
]
SAID = {
    "Capital of Norway?": "Oslo", "Capital of Sweden?": "It is Stockholm.", "17 + 25?": "The answer is 42.",
    "As JSON?": '{"a": 2}', "Which year?": "In 1905.", "Be polite.": "If you please.", "Be rude.": "No!",
}  # fmt: skip


def talk(asked: str) -> str:
    """What the model says, also as the judge."""
    if asked in SAID:
        return SAID[asked]
    return json.dumps({"reason": "as seen", "right": "please" in json.loads(asked)["answer"]})


async def own(url: str, folder: Path, *flags: str, rows: Sequence[object] = OWN) -> int:
    (folder / "own.jsonl").write_text("\n".join(map(json.dumps, rows)))
    flags = ("--data", str(folder / "own.jsonl"), "--json", str(folder / "own.json"), *flags)
    arguments = ["eval", "models", "--url", url, "--model", "ours", *flags]
    return await asyncio.to_thread(cli.main, arguments)


async def test_own_questions_gate_a_release(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with gateway(lambda question: "", talk=talk) as (url, fake):
        assert await own(url, tmp_path, "--judge", "free") == 0
    assert {call.body["model"] for call in fake.asked} == {"ours", "free"}
    out = capsys.readouterr().out
    assert re.search(r"cities +2 +1 +1 +0 +50\.0 +9\.5 to 90\.5", out)
    assert re.search(r"json +differs at \$\.a +1", out) and re.search(
        r"exact +more than the expected text +1", out
    )
    assert "Form counts" not in out and not any(text in out for text in SAID)
    document = json.loads((tmp_path / "own.json").read_text())
    assert document["is_complete"] and document["judge"] == "free" and len(document["data_sha256"]) == 64
    (ours,) = document["models"]
    assert (ours["right"], ours["wrong"], ours["questions"]) == (4, 3, 7)
    assert {each["remark"] for each in ours["outcomes"] if each["grader"] == "judge"} == {"as seen"}
    found = read_evaluation(str(tmp_path / "own.json"), "ours")
    assert found.is_complete and found.told.startswith("accuracy 0.5714 on 7 questions, 95 % interval 0.250")


async def test_a_judge_without_a_verdict_leaves_the_evaluation_incomplete(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with gateway(lambda question: "", talk=lambda asked: "Hm.") as (url, _):
        assert await own(url, tmp_path, "--judge", "free") == 1
        assert (
            "2 requests failed and count as not right, 2 of them with: the judge" in capsys.readouterr().out
        )
        assert not read_evaluation(str(tmp_path / "own.json"), "ours").is_complete
        assert await own(url, tmp_path, "--judge", "fre") == 2
        assert "no model 'fre'; did you mean 'free'?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ([], "name the model that grades with --judge MODEL"),
        (["--judge", "free", "--tiers", "1"], "--data has its own"),
        (["--judge", "free", "--limit", "0"], "--limit 0 must be 1 or more"),
    ],
)
async def test_flags_of_own_questions(
    flags: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await own("http://127.0.0.1:9", tmp_path, *flags) == 2
    assert words in capsys.readouterr().err
    assert await asyncio.to_thread(cli.main, ["eval", "models", "--judge", "x"]) == 2
