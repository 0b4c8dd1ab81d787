"""`penstock chat`: a conversation with a running gateway; answers are streamed."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import sys
import time
from typing import Any, TextIO

from gateway.gateway_url import gateway_url
from gateway.providers.upstream.sse import EventReader

CONNECT_TIMEOUT_S = 10.0
READ_TIMEOUT_S = 300.0
WAIT_FOR_GATEWAY_S = 120.0
POLL_INTERVAL_S = 0.2
_BAR_CELLS = 20
HELP = """\
  /clear  forget the conversation; the system message stays
  /help   show these commands
  /bye    leave, as Ctrl-D does
  //text  send a text that begins with one slash
Ctrl-C stops an answer; all that is no command goes to the model.
"""
_COMMAND = re.compile(r"/[^/\s]*(?!\S)")
"""A first word with one slash; a path has more."""
_DIM, _UNDIM = "\x1b[2m", "\x1b[22m"


class ChatError(Exception):
    """The gateway cannot be reached or answered with an error; the message is for the user."""


class Terminal:
    """One conversation and its history."""

    def __init__(
        self,
        url: str,
        api_key: str,
        model: str,
        *,
        system: str | None = None,
        max_tokens: int | None = None,
        effort: str | None = None,
        out: TextIO | None = None,
    ) -> None:
        """`url` is the gateway's, with or without /v1; `effort` is OpenAI's reasoning_effort.

        `model` "": "auto" where there is one, else the first that chats. Reasoning is shown dimmed on a
        terminal, and not at all in a file or pipe.
        """
        self._is_tls, self._host, self._port, self._prefix = gateway_url(url)
        host = f"[{self._host}]" if ":" in self._host else self._host
        self._address = host if self._port is None else f"{host}:{self._port}"  # without a password
        self._headers = {"content-type": "application/json"}
        if api_key:
            self._headers["authorization"] = f"Bearer {api_key}"
        self._model = model
        self._options = {
            name: value
            for name, value in (("max_tokens", max_tokens), ("reasoning_effort", effort))
            if value is not None
        }
        self._is_dimmed = False
        self._messages = [{"role": "system", "content": system}] if system else []
        self._out = out or sys.stdout

    def run(self, message: str) -> int:
        """Send one message, or converse until the end of input. Returns the exit code."""
        try:
            self.wait_until_ready()
            self._model = self._model or self._default_model()
            if message:
                self.ask(message)
            else:
                self._converse()
        except ChatError as error:
            sys.stderr.write(f"penstock: {error}\n")
            return 1
        return 0

    def _converse(self) -> None:
        is_shown = sys.stdin.isatty()
        if is_shown:
            with contextlib.suppress(ImportError):
                import readline  # noqa: F401 - gives input() history and line editing
            self._write(f"Talking to {self._model}; /help shows the commands.\n")
        while True:
            try:
                message = input("> " if is_shown else "").strip()
            except (EOFError, KeyboardInterrupt) as ended:
                self._write("\n" if is_shown else "")
                if isinstance(ended, KeyboardInterrupt):
                    raise
                return
            if message.lower() == "/bye":
                return
            if found := _COMMAND.match(message):
                self._write(self._command(found[0].lower(), message[found.end() :].strip()))
            elif message:
                self._try_to_ask(message.replace("//", "/", 1) if message.startswith("//") else message)

    def _command(self, text: str, rest: str) -> str:
        """Do what the command says; returns what to tell the person."""
        if text not in ("/bye", "/clear", "/help"):
            return f"there is no command {text}; /help shows them; begin with // to send it\n"
        if rest:
            return f"{text} stands alone; begin with // to send it\n"
        if text == "/clear":
            self._messages = [each for each in self._messages if each["role"] == "system"]
            return "(forgotten)\n"
        return HELP

    def _try_to_ask(self, message: str) -> None:
        try:
            self.ask(message)
        except ChatError as error:  # the conversation can go on
            self._write(f"error: {error}\n")
        except KeyboardInterrupt:
            self._write("\n(stopped)\n")

    def wait_until_ready(self) -> None:
        """Wait until every model is ready, showing a progress line. Raises ChatError."""
        deadline_s = time.monotonic() + WAIT_FOR_GATEWAY_S
        shown = ""
        while True:
            line = self._loading_line()
            if line is None:
                break
            if line != shown and self._out.isatty():
                self._write(f"\r\x1b[K{line}")
                shown = line
            if time.monotonic() > deadline_s:
                raise ChatError(f"not ready after {WAIT_FOR_GATEWAY_S:g} s: {line}")
            time.sleep(POLL_INTERVAL_S)
        if shown:
            self._write("\r\x1b[K")

    def _loading_line(self) -> str | None:
        """The progress of models that are not ready; None when all are."""
        with contextlib.closing(self._connect()) as connection:
            response = self._request(connection, "GET", "/health/ready", None)
            body = response.read()
        if response.status == 200:
            return None
        try:
            states: dict[str, dict[str, Any]] = json.loads(body)["models"]
            waiting = [(name, state) for name, state in states.items() if not state["ready"]]
        except (ValueError, KeyError, TypeError):
            raise ChatError(
                f"{self._address} answered {response.status}; is it a Penstock gateway?"
            ) from None
        return "  ".join(progress_bar(name, state) for name, state in waiting) or None

    def _default_model(self) -> str:
        """ "auto" where it is listed, or the list cannot be read; else the first that may chat."""
        with contextlib.closing(self._connect()) as connection:
            body = self._request(connection, "GET", "/v1/models", None).read()
        with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError):
            listed = json.loads(body)["data"]
            names = [each["id"] for each in listed]
            chats = [
                each["id"] for each in listed if each.get("max_model_len") or each["owned_by"] == "upstream"
            ]
            if names and "auto" not in names:
                return str((chats or names)[0])
        return "auto"

    def ask(self, message: str) -> str:
        """Send a message, print the answer while it streams, and return it. Raises ChatError."""
        messages = [*self._messages, {"role": "user", "content": message}]
        body = {"model": self._model, "messages": messages, "stream": True, **self._options}
        with contextlib.closing(self._connect()) as connection:
            response = self._request(connection, "POST", "/v1/chat/completions", json.dumps(body).encode())
            if response.status != 200:
                raise ChatError(error_message(response.read(), response.status))
            try:
                answer = self._read_answer(response)
            finally:
                self._end_reasoning()
        self._messages = [*messages, {"role": "assistant", "content": answer}]
        return answer

    def _read_answer(self, response: http.client.HTTPResponse) -> str:
        reader = EventReader()
        answer = ""
        while True:
            try:
                data = response.read1(1 << 16)
            except (OSError, http.client.HTTPException) as error:
                raise ChatError(f"the connection broke in the middle of the answer ({error})") from None
            for event in reader.feed(data) if data else reader.close():
                if event == b"[DONE]":
                    self._end_reasoning()
                    self._write("\n")
                    return answer
                answer += self._show_event(event)
            if not data:
                raise ChatError("the answer ended before it was complete")

    def _show_event(self, event: bytes) -> str:
        """Print a chunk of the answer; return its text."""
        try:
            chunk = json.loads(event)
            if "error" in chunk:
                raise ChatError(error_message(event, 200))
            return "".join(self._show(choice["delta"]) for choice in chunk["choices"])
        except (ValueError, KeyError, TypeError, AttributeError):
            raise ChatError(f"{self._address} sent no chat completion; is it a Penstock gateway?") from None

    def _show(self, delta: dict[str, Any]) -> str:
        """Print a delta's reasoning and text; return the text."""
        reasoning = delta.get("reasoning_content") or delta.get("reasoning") or ""
        if reasoning and self._out.isatty():
            self._write(reasoning if self._is_dimmed else _DIM + reasoning)
            self._is_dimmed = True
        text: str = delta.get("content") or ""
        if text:
            self._end_reasoning("\n")
            self._write(text)
        return text

    def _end_reasoning(self, gap: str = "") -> None:
        if self._is_dimmed:
            self._is_dimmed = False
            self._write(_UNDIM + gap)

    def _connect(self) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection if self._is_tls else http.client.HTTPConnection
        connection = kind(self._host, self._port, timeout=CONNECT_TIMEOUT_S)
        try:
            connection.connect()
        except (OSError, UnicodeError) as error:  # a host name that is none, too
            reason = getattr(error, "strerror", None) or type(error).__name__
            raise ChatError(
                f"no gateway at {self._address} ({reason}); start one with `penstock serve`, or give --url"
            ) from None
        connection.sock.settimeout(READ_TIMEOUT_S)
        return connection

    def _request(
        self, connection: http.client.HTTPConnection, method: str, path: str, body: bytes | None
    ) -> http.client.HTTPResponse:
        try:
            connection.request(method, self._prefix + path, body, self._headers)
            return connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            raise ChatError(f"{self._address} did not answer ({type(error).__name__})") from None

    def _write(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()


def progress_bar(name: str, state: dict[str, Any]) -> str:
    """One model's progress, such as `pico-small loading [##########..........]  50%`."""
    phase = str(state.get("phase") or "starting").replace("_", " ")
    fraction = min(max(float(state.get("fraction") or 0.0), 0.0), 1.0)
    if not fraction:
        return f"{name} {phase} ..."
    cells = "#" * round(fraction * _BAR_CELLS)
    return f"{name} {phase} [{cells:.<{_BAR_CELLS}}] {fraction:4.0%}"


def error_message(body: bytes, status: int) -> str:
    """The message of OpenAI's error body, or the status when the body is not one."""
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"the gateway answered {status}"
