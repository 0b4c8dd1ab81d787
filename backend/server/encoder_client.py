"""EncoderClient: the gateway's only way to an encoder process. Texts in, vectors out."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from backend.errors import EngineUnavailable, FrameError, RequestError
from backend.server.client import PendingCalls, ProcessClient
from backend.server.encoder_messages import (
    Embed,
    EmbedCancel,
    Embedded,
    EncoderHeartbeat,
    EncoderHello,
    EncoderStats,
    FromEncoder,
)
from backend.server.wire import Rejected


@dataclass(frozen=True, slots=True)
class Embeddings:
    """Vectors in the order of the inputs, each as little-endian float32 bytes."""

    vectors: list[bytes]
    num_tokens: list[int]


class EncoderClient(ProcessClient[FromEncoder, EncoderHello]):
    """A connection to the encoder that listens on `socket_path`; survives its restarts."""

    def __init__(self, socket_path: str | Path) -> None:
        super().__init__(socket_path, "encoder", msgspec.msgpack.Decoder(FromEncoder))
        self.stats = EncoderStats()
        self._numbers = itertools.count()
        self._calls: PendingCalls[Embeddings] = PendingCalls()

    async def embed(self, inputs: Sequence[str] | Sequence[list[int]]) -> Embeddings:
        """One vector for each text, or list of token ids.

        Raises RequestError (too long, empty …), QueueFull, or EngineUnavailable when the encoder is lost.
        Cancelling the task that waits cancels the work.
        """
        self._check_connected()
        request_id = str(next(self._numbers))
        try:
            self._send(Embed(request_id, [*inputs]))
        except UnicodeEncodeError as error:
            raise RequestError("`input` is not valid Unicode.", param="input") from error
        except FrameError as error:
            raise RequestError("`input` is too large for one request: send less.", param="input") from error
        try:
            return await self._calls.answer(request_id)
        except asyncio.CancelledError:
            self._send(EmbedCancel(request_id))
            raise

    def _receive(self, message: FromEncoder) -> None:
        match message:
            case Embedded():
                self._calls.settle(message.request_id, Embeddings(message.vectors, message.num_tokens))
            case Rejected():
                self._calls.settle(message.request_id, message.to_error())
            case EncoderHeartbeat():
                self.stats = message.stats
                self._has_beaten = True
            case EncoderHello():
                self.hello = message

    def _fail_pending(self, new_error: Callable[[], EngineUnavailable]) -> None:
        self._calls.fail_all(new_error)
