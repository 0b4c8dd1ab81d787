"""The terminal client against a scripted gateway."""

from __future__ import annotations

import asyncio
import io
import json
import sys
from collections.abc import Callable

import pytest

from gateway.cli.terminal_chat import ChatError, Terminal, error_message, progress_bar
from tests.gateway.providers.upstream.scripted_server import (
    END,
    STREAM_HEAD,
    ScriptedServer,
    Seen,
    chunk,
    response,
    serving,
    write_all,
)

READY = response(b'{"status": "ready", "models": {}}', connection="close")
LOADING = response(
    b'{"models": {"a": {"ready": true}, "b": {"ready": false, "phase": "loading", "fraction": 0.5}}}',
    503,
    connection="close",
)


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def delta(text: str) -> bytes:
    return b"data: " + json.dumps({"choices": [{"delta": {"content": text}}]}).encode() + b"\n\n"


def gateway(
    *answers: list[bytes], loading: int = 0
) -> Callable[[asyncio.StreamWriter, Seen], asyncio.Future[None]]:
    left = [loading]
    chats = iter(answers)

    async def script(writer: asyncio.StreamWriter, seen: Seen) -> None:
        if seen.head.startswith("GET /health/ready "):
            writer.write(LOADING if left[0] else READY)
            left[0] = max(0, left[0] - 1)
        else:
            await write_all(writer, next(chats))
        writer.close()

    return script  # type: ignore[return-value]


def stream(*events: bytes) -> list[bytes]:
    return [STREAM_HEAD, *map(chunk, events), END]


def terminal(server: ScriptedServer, screen: Screen, key: str = "k") -> Terminal:
    return Terminal(server.base_url, key, "auto", system="be kind", max_tokens=9, out=screen)


async def test_the_answer_is_streamed_and_remembered() -> None:
    answers = [
        stream(delta("Hé"), delta("llo"), b"data: [DONE]\n\n"),
        stream(delta("Bye"), b"data: [DONE]\n\n"),
    ]
    async with serving(gateway(*answers)) as server:
        screen = Screen()
        talk = terminal(server, screen)
        assert await asyncio.to_thread(talk.ask, "hi") == "Héllo"
        assert await asyncio.to_thread(talk.ask, "and now?") == "Bye"
    assert screen.getvalue() == "Héllo\nBye\n"
    assert server.seen[0].headers["authorization"] == "bearer k"
    assert json.loads(server.seen[1].body) == {
        "model": "auto",
        "stream": True,
        "max_tokens": 9,
        "messages": [
            {"role": "system", "content": "be kind"},
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": "Héllo"},
            {"role": "user", "content": "and now?"},
        ],
    }


@pytest.mark.parametrize(
    ("listed", "model"),
    [
        ([("pico", "penstock"), ("auto", "penstock")], "auto"),
        ([("vectors", "penstock"), ("far", "upstream"), ("other", "upstream")], "far"),
        ([("mine", "penstock")], "mine"),
        ([], "auto"),
        (None, "auto"),
    ],
)
async def test_the_default_model_is_one_that_exists(listed: list[tuple[str, str]] | None, model: str) -> None:
    data = None if listed is None else [{"id": name, "owned_by": owner} for name, owner in listed]
    models = [response(json.dumps({"data": data}).encode(), connection="close")]
    async with serving(gateway(models, stream(delta("Hi"), b"data: [DONE]\n\n"))) as server:
        talk = Terminal(server.base_url, "k", "", out=Screen())
        assert await asyncio.to_thread(talk.run, "hi") == 0
    assert server.seen[1].head.startswith("GET /v1/models ")
    assert json.loads(server.seen[2].body)["model"] == model


def reasoning(text: str, name: str = "reasoning_content") -> bytes:
    choices = [{"delta": {"content": None, name: text}}]
    return b"data: " + json.dumps({"choices": choices}).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
async def test_reasoning_is_dimmed_on_a_terminal_and_left_out_elsewhere(name: str) -> None:
    answer = stream(reasoning("7+", name), reasoning("5", name), delta("1"), delta("2"), DONE)
    async with serving(gateway(answer, answer)) as server:
        screen, file = Screen(), io.StringIO()
        talk = terminal(server, screen)
        assert await asyncio.to_thread(talk.ask, "7 + 5?") == "12"
        to_file = Terminal(server.base_url, "k", "auto", effort="low", out=file)
        assert await asyncio.to_thread(to_file.ask, "7 + 5?") == "12"
    assert screen.getvalue() == "\x1b[2m7+5\x1b[22m\n12\n"
    assert file.getvalue() == "12\n"
    assert "reasoning_effort" not in json.loads(server.seen[0].body)
    assert json.loads(server.seen[1].body)["reasoning_effort"] == "low"


async def test_dimming_ends_when_the_reasoning_breaks_off() -> None:
    async with serving(gateway(stream(reasoning("so")), stream(reasoning("so"), DONE))) as server:
        screen = Screen()
        talk = terminal(server, screen)
        with pytest.raises(ChatError):
            await asyncio.to_thread(talk.ask, "hi")
        assert await asyncio.to_thread(talk.ask, "hi") == ""
    assert screen.getvalue() == "\x1b[2mso\x1b[22m" * 2 + "\n"


async def test_progress_line_while_a_model_loads() -> None:
    async with serving(gateway(stream(delta("x"), b"data: [DONE]\n\n"), loading=2)) as server:
        screen = Screen()
        assert await asyncio.to_thread(terminal(server, screen).run, "hi") == 0
    assert screen.getvalue() == "\r\x1b[Kb loading [##########..........]  50%\r\x1b[Kx\n"


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ([response(b'{"error": {"message": "no such model"}}', 404)], "no such model"),
        ([response(b"oops", 500)], "the gateway answered 500"),
        (stream(delta("a"), b'data: {"error": {"message": "engine died"}}\n\n'), "engine died"),
        (stream(delta("a")), "ended before it was complete"),
        ([STREAM_HEAD + chunk(delta("a"))], "complete|broke"),
        (stream(b'data: {"other": 1}\n\n'), "sent no chat completion"),
        (stream(b"data: <html>\n\n"), "sent no chat completion"),
    ],
)
async def test_failures_are_reported(answer: list[bytes], message: str) -> None:
    async with serving(gateway(answer)) as server:
        with pytest.raises(ChatError, match=message):
            await asyncio.to_thread(terminal(server, Screen()).ask, "hi")


async def converse(
    server: ScriptedServer, lines: str, monkeypatch: pytest.MonkeyPatch, *, is_terminal: bool = True
) -> str:
    """What a person sees who types these lines."""
    monkeypatch.setattr(sys, "stdin", Screen(lines) if is_terminal else io.StringIO(lines))
    screen = Screen()
    assert await asyncio.to_thread(terminal(server, screen).run, "") == 0
    return screen.getvalue()


async def test_commands_of_a_conversation(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = stream(delta("ok"), DONE)
    async with serving(gateway(answer, answer)) as server:
        lines = "hi\n/help\n/hepl\n/clear\n/etc/hosts has what?\n/bye\nnever sent\n"
        shown = await converse(server, lines, monkeypatch)
    bodies = [json.loads(seen.body) for seen in server.seen if seen.head.startswith("POST")]
    assert [each["messages"][1:] for each in bodies] == [
        [{"role": "user", "content": "hi"}],
        [{"role": "user", "content": "/etc/hosts has what?"}],  # after /clear, and no command
    ]
    assert "/help shows the commands" in shown and "/bye    leave" in shown
    assert "there is no command /hepl; /help shows them" in shown and "never sent" not in shown


async def test_no_line_that_begins_like_a_command_goes_to_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = stream(delta("ok"), DONE)
    lines = "/model pico-large\n/foo bar\n/Foo_2!\n/bye now\n/clear it\n//tmp is what?\n/BYE\nnever sent\n"
    async with serving(gateway(answer)) as server:
        shown = await converse(server, lines, monkeypatch)
    bodies = [json.loads(seen.body) for seen in server.seen if seen.head.startswith("POST")]
    assert [each["messages"][1:] for each in bodies] == [[{"role": "user", "content": "/tmp is what?"}]]
    for word in ("/model", "/foo", "/foo_2!"):
        assert f"there is no command {word}; /help shows them; begin with // to send it" in shown
    assert "/bye stands alone" in shown and "/clear stands alone" in shown


async def test_no_prompts_where_nobody_types(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(gateway(stream(delta("ok"), DONE))) as server:
        assert await converse(server, "hi\n", monkeypatch, is_terminal=False) == "ok\n"


async def test_a_password_in_the_url_is_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    talk = Terminal("http://me:secret@127.0.0.1:9", "", "auto", out=Screen())
    assert await asyncio.to_thread(talk.run, "hi") == 1
    said = capsys.readouterr().err
    assert "no gateway at 127.0.0.1:9" in said and "secret" not in said


async def test_no_gateway(capsys: pytest.CaptureFixture[str]) -> None:
    async with serving(gateway()) as server:
        pass
    assert await asyncio.to_thread(terminal(server, Screen()).run, "hi") == 1
    assert "start one with `penstock serve`" in capsys.readouterr().err


def test_texts() -> None:
    assert progress_bar("m", {"phase": "warming_up"}) == "m warming up ..."
    assert progress_bar("m", {"phase": "loading", "fraction": 2}) == f"m loading [{'#' * 20}] 100%"
    assert error_message(b'{"error": "x"}', 418) == "the gateway answered 418"
