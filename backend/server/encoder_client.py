"""EncoderClient: how the gateway reaches an encoder process. asyncio; one connection, kept up. No torch."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from backend.errors import EngineError, EngineUnavailable, FrameError, QueueFull, RequestError
from backend.server.encoder_messages import (
    Embed,
    EmbedCancel,
    Embedded,
    EmbedRejected,
    EncoderHeartbeat,
    EncoderHello,
    EncoderStats,
    FromEncoder,
    ToEncoder,
)
from backend.server.framing import FrameReader, encode_frame

HEARTBEAT_LIMIT_S = 5.0
"""An encoder whose last heartbeat is older is not ready."""

_FIRST_RETRY_S = 0.05
_LAST_RETRY_S = 1.0
_RECEIVE_BYTES = 1 << 18


@dataclass(frozen=True, slots=True)
class Embeddings:
    """Vectors in the order of the inputs, each as little-endian float32 bytes of a unit vector."""

    vectors: list[bytes]
    num_tokens: list[int]


class EncoderClient:
    """A connection to the encoder that listens on `socket_path`; survives its restarts."""

    def __init__(self, socket_path: str | Path) -> None:
        self._socket_path = str(socket_path)
        self._answers: dict[int, asyncio.Future[Embeddings]] = {}
        self._numbers = itertools.count()
        self._writer: asyncio.StreamWriter | None = None
        self._task: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self._last_frame_s = 0.0
        self.hello: EncoderHello | None = None
        self.stats = EncoderStats()

    @property
    def heartbeat_age_s(self) -> float:
        """Seconds since the encoder was last heard of; infinite when not connected."""
        return float("inf") if self.hello is None else time.monotonic() - self._last_frame_s

    @property
    def ready(self) -> bool:
        """Connected, greeted, and its loop turns."""
        return self.heartbeat_age_s < HEARTBEAT_LIMIT_S

    async def start(self) -> None:
        """Begin to connect, and to connect again whenever the encoder goes away. Returns at once."""
        if self._task is None:
            self._task = asyncio.create_task(self._keep_connected(), name=f"encoder {self._socket_path}")

    async def close(self) -> None:
        """End the connection; whoever waits gets EngineUnavailable."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None
        self._drop()

    async def wait_ready(self, timeout_s: float) -> None:
        """Return once `ready`. Raises EngineUnavailable when that takes longer."""
        try:
            async with asyncio.timeout(timeout_s):
                while not self.ready:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise self._unavailable(f"did not answer within {timeout_s:g} s") from None

    async def embed(self, inputs: Sequence[str] | Sequence[list[int]]) -> Embeddings:
        """One vector for each text, or list of token ids.

        Raises RequestError (too long, empty …), QueueFull, or EngineUnavailable when the encoder is lost.
        Cancelling the task that waits cancels the work.
        """
        if self._writer is None or self.hello is None:
            raise self._unavailable("is not connected")
        number = next(self._numbers)
        try:
            frame = _frame(Embed(number, [*inputs]))
        except UnicodeEncodeError as error:
            raise RequestError("`input` is not valid Unicode.", param="input") from error
        except FrameError as error:
            raise RequestError("`input` is too large for one request: send less.", param="input") from error
        answer: asyncio.Future[Embeddings] = asyncio.get_running_loop().create_future()
        self._answers[number] = answer
        self._writer.write(frame)
        try:
            return await answer
        except asyncio.CancelledError:
            if self._answers.pop(number, None) is not None and self._writer is not None:
                self._writer.write(_frame(EmbedCancel(number)))
            raise

    def _unavailable(self, what: str) -> EngineUnavailable:
        return EngineUnavailable(
            f"the encoder at {self._socket_path!r} {what}; it is starting, restarting or hung"
        )

    async def _keep_connected(self) -> None:
        delay_s = _FIRST_RETRY_S
        while True:
            try:
                reader, self._writer = await asyncio.open_unix_connection(self._socket_path)
            except OSError:  # no socket yet, or nobody listens
                await asyncio.sleep(delay_s)
                delay_s = min(2 * delay_s, _LAST_RETRY_S)
                continue
            delay_s = _FIRST_RETRY_S
            try:
                await self._read(reader)
            except (OSError, FrameError, msgspec.MsgspecError):
                pass  # the connection is over either way
            finally:
                self._drop()

    async def _read(self, reader: asyncio.StreamReader) -> None:
        """Handle frames until the encoder closes the connection."""
        frames = FrameReader()
        decoder: msgspec.msgpack.Decoder[FromEncoder] = msgspec.msgpack.Decoder(FromEncoder)
        while data := await reader.read(_RECEIVE_BYTES):
            for body in frames.feed(data):
                self._receive(decoder.decode(body))

    def _receive(self, message: FromEncoder) -> None:
        self._last_frame_s = time.monotonic()
        match message:
            case Embedded():
                self._settle(message.number, Embeddings(message.vectors, message.num_tokens))
            case EmbedRejected():
                self._settle(message.number, _refusal(message))
            case EncoderHeartbeat():
                self.stats = message.stats
            case EncoderHello():
                self.hello = message
        self._changed.set()

    def _settle(self, number: int, result: Embeddings | EngineError) -> None:
        answer = self._answers.pop(number, None)
        if answer is None or answer.done():  # cancelled while this was on its way
            return
        if isinstance(result, EngineError):
            answer.set_exception(result)
        else:
            answer.set_result(result)

    def _drop(self) -> None:
        """The connection is gone: whoever waits must know."""
        if self._writer is not None:
            self._writer.transport.abort()
        self._writer = None
        self.hello = None
        for number in list(self._answers):
            self._settle(number, self._unavailable("closed the connection"))


def _frame(message: ToEncoder) -> bytes:
    return encode_frame(msgspec.msgpack.encode(message))


def _refusal(message: EmbedRejected) -> EngineError:
    if message.kind == "queue_full":
        return QueueFull(message.message, message.retry_after_s)
    return RequestError(message.message, message.param)
