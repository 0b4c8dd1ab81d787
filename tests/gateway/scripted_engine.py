"""An engine without a model: the real protocol on a real socket, and a script for each request."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import msgspec

from backend.lora.info import AdapterInfo
from backend.server.engine_messages import (
    AdapterDone,
    Adapters,
    Cancel,
    EngineStats,
    Heartbeat,
    Hello,
    LoadAdapter,
    Outputs,
    Submit,
    ToEngine,
    UnloadAdapter,
)
from backend.server.wire import FrameReader, Rejected, encode_message
from backend.types import Request, StepOutput

Script = Callable[[Request], AsyncIterator[StepOutput]]


class ScriptedEngine:
    """Runs `script` for each request; records requests and cancellations."""

    def __init__(self, path: Path, script: Script, *, vocab_size: int, max_model_tokens: int = 256) -> None:
        self.path = path
        self.script = script
        self.rejection: Rejected | None = None  # sent for every request while set
        self.requests: list[Request] = []
        self.adapters: dict[str, AdapterInfo] = {}
        self.lost: list[str] = []  # names of adapters that were lost in a restart
        self.adapter_error = ""  # sent for every load and unload while set
        self.is_stuck = False  # True: loads and unloads get no answer until `release`
        self.foreign: set[str] = set()  # adapters that name another base model
        self.held: asyncio.Queue[tuple[LoadAdapter | UnloadAdapter, asyncio.StreamWriter]] = asyncio.Queue()
        self.cancelled: list[str] = []
        self.cancellation = asyncio.Event()
        self.hello = Hello(
            "scripted", "/none", "0123456789abcdef", max_model_tokens, vocab_size, 64, "cpu", "float32"
        )
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._writers: list[asyncio.StreamWriter] = []
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        self._server = await asyncio.start_unix_server(self._serve, self.path)

    async def die(self) -> None:
        """Close every connection at once, like a killed process."""
        for task in self._tasks.values():
            task.cancel()
        for writer in self._writers:
            writer.transport.abort()
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()
            self._server = None

    def release(self, held: tuple[LoadAdapter | UnloadAdapter, asyncio.StreamWriter]) -> None:
        """Execute the held loads and unloads, and later ones at once."""
        self.is_stuck = False
        self._adapter(*held)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        frames = FrameReader()
        decoder: msgspec.msgpack.Decoder[ToEngine] = msgspec.msgpack.Decoder(ToEngine)
        _write(writer, self.hello)
        _write(writer, Adapters(list(self.adapters.values()), self.lost))
        beats = asyncio.create_task(_beat(writer))
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                for frame in frames.feed(data):
                    self._handle(decoder.decode(frame), writer)
        beats.cancel()
        writer.close()

    def _handle(self, message: ToEngine, writer: asyncio.StreamWriter) -> None:
        if isinstance(message, Submit):
            for request in message.requests:
                self.requests.append(request)
                self._tasks[request.request_id] = asyncio.create_task(self._play(request, writer))
        elif isinstance(message, Cancel):
            for request_id in message.request_ids:
                self.cancelled.append(request_id)
                self._tasks[request_id].cancel()
            self.cancellation.set()

        elif isinstance(message, LoadAdapter | UnloadAdapter):
            self._adapter(message, writer)

    def _adapter(self, message: LoadAdapter | UnloadAdapter, writer: asyncio.StreamWriter) -> None:
        """Adapters are names only; a name's digest grows with each load."""
        if self.is_stuck:
            self.held.put_nowait((message, writer))
            return
        if self.adapter_error or (isinstance(message, UnloadAdapter) and message.name not in self.adapters):
            error = self.adapter_error or "no such adapter"
            _write(writer, Rejected(message.call_id, "adapter_invalid", error))
            return
        if isinstance(message, LoadAdapter) and not message.replaces and message.name in self.adapters:
            _write(writer, Rejected(message.call_id, "adapter_exists", "it is there"))
            return
        if isinstance(message, LoadAdapter) and message.name in self.foreign and not message.force:
            _write(writer, Rejected(message.call_id, "adapter_invalid", "it names another base model"))
            return
        if isinstance(message, UnloadAdapter):
            info = self.adapters.pop(message.name)
        else:
            known = self.adapters.get(message.name)
            digest = (known.digest if known else "") + f"<{message.name}>"
            info = AdapterInfo(message.name, digest, "scripted", 8, 1000, message.path)
            self.adapters[message.name] = info
        for each in self._writers:
            _write(each, Adapters(list(self.adapters.values())))
        _write(writer, AdapterDone(message.call_id, info))

    async def _play(self, request: Request, writer: asyncio.StreamWriter) -> None:
        if self.rejection is not None:
            _write(writer, msgspec.structs.replace(self.rejection, request_id=request.request_id))
            return
        if request.adapter and request.adapter not in [info.digest for info in self.adapters.values()]:
            _write(writer, Adapters(list(self.adapters.values())))
            _write(
                writer, Rejected(request.request_id, "adapter_gone", "it is not loaded here", param="model")
            )
            return
        async for output in self.script(request):
            output.request_id = request.request_id
            _write(writer, Outputs([output]))
            await asyncio.sleep(0)


def _write(writer: asyncio.StreamWriter, message: msgspec.Struct) -> None:
    writer.write(encode_message(message))


async def _beat(writer: asyncio.StreamWriter) -> None:
    for step in itertools.count():
        _write(writer, Heartbeat(step, EngineStats()))
        await asyncio.sleep(0.2)


def says(token_ids: Sequence[int], *, finish: str = "stop") -> Script:
    """A script that generates one token per step, at most `max_tokens`, at least one."""

    async def script(request: Request) -> AsyncIterator[StepOutput]:
        shown = list(token_ids)[: request.params.max_tokens or 1]
        is_cut = len(shown) < len(token_ids)
        for number, token_id in enumerate(shown):
            last = number == len(shown) - 1
            reason = ("length" if is_cut else finish) if last else None
            yield StepOutput(request_id="", token_ids=[token_id], finish_reason=reason)  # type: ignore[arg-type]

    return script


def silent(request: Request) -> AsyncIterator[StepOutput]:
    """A script that never answers."""
    return _never()


async def _never() -> AsyncIterator[StepOutput]:
    await asyncio.get_running_loop().create_future()
    yield StepOutput(request_id="")
