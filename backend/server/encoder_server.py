"""Serves a sentence encoder: queues inputs, runs pass after pass, answers requests whose inputs are done."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field

import msgspec

from backend.encoder.batches import BatchQueue
from backend.encoder.model import SentenceEncoder
from backend.errors import QueueFull, RequestError
from backend.server.connections import Connection
from backend.server.encoder_messages import (
    Embed,
    EmbedCancel,
    Embedded,
    EncoderConfig,
    EncoderHeartbeat,
    EncoderHello,
    EncoderStats,
    ToEncoder,
)
from backend.server.server import Server, ServerLimits
from backend.server.wire import Rejected

MAX_BUFFERED_BYTES = 64 * 1024 * 1024
"""Bytes of answers that a gateway does not read."""

_SMALL_CHARS = 20_000
"""Shorter requests are tokenized at once, in a few milliseconds; longer ones in a thread."""

_NUM_TOKENIZER_THREADS = 4
"""More than one: a long request does not delay the next."""

logger = logging.getLogger(__name__)

_TOKENIZER_POLL_S = 0.005
_FIRST_TOKENS_PER_S = 2_000.0  # estimate until passes were measured

Gateway = Connection[ToEncoder]


@dataclass(slots=True, eq=False)
class _Job:
    """One Embed in the queue."""

    connection: Gateway
    request_id: str
    ids: list[list[int]]
    vectors: dict[int, bytes] = field(default_factory=dict)  # by index of the input

    def answer(self) -> Embedded:
        """The answer, once all inputs are done."""
        vectors = [self.vectors[i] for i in range(len(self.ids))]
        return Embedded(self.request_id, vectors, [len(ids) for ids in self.ids])


class EncoderServer(Server[ToEncoder]):
    """Serves one encoder on one listening socket until `stop`."""

    def __init__(self, encoder: SentenceEncoder, config: EncoderConfig, listener: socket.socket) -> None:
        limits = ServerLimits(max_buffered_bytes=MAX_BUFFERED_BYTES)
        super().__init__(listener, msgspec.msgpack.Decoder(ToEncoder), limits)
        self._encoder = encoder
        self._config = config
        self._queue = BatchQueue()
        self._jobs: dict[int, _Job] = {}  # by number, as the queue knows them
        self._tokenizing: dict[tuple[Gateway, str], Future[list[list[int]]]] = {}
        self._tokenizers = ThreadPoolExecutor(_NUM_TOKENIZER_THREADS, "tokenizer")
        self._requests_total = self._inputs_total = self._tokens_total = self._passes_total = 0
        self._busy_s = 0.0

    def close(self) -> None:
        """Stop tokenizing."""
        self._tokenizers.shutdown(wait=False, cancel_futures=True)

    @property
    def has_work(self) -> bool:
        """Whether an Embed is unanswered."""
        return bool(self._jobs or self._tokenizing)

    def _greet(self, connection: Gateway) -> None:
        config, encoder = self._config, self._encoder
        hello = EncoderHello(config.model, config.checkpoint, encoder.max_tokens, encoder.dimensions)
        self._send(connection, hello)

    def _handle(self, connection: Gateway, message: ToEncoder) -> None:
        match message:
            case Embed():
                self._embed(connection, message)
            case EmbedCancel():
                self._tokenizing.pop((connection, message.request_id), None)
                self._cancel(connection, message.request_id)

    def _step(self) -> None:
        """Queue what was tokenized, and run one pass."""
        for (connection, request_id), future in list(self._tokenizing.items()):
            if future.done():
                del self._tokenizing[connection, request_id]
                self._enqueue(connection, request_id, future.result)
        if self._jobs:
            self._run_pass()
        elif self._tokenizing:
            wait(self._tokenizing.values(), _TOKENIZER_POLL_S, FIRST_COMPLETED)

    def _heartbeat(self) -> EncoderHeartbeat:
        return EncoderHeartbeat(
            EncoderStats(
                waiting_inputs=self._queue.num_inputs,
                waiting_tokens=self._queue.num_tokens,
                requests_total=self._requests_total,
                inputs_total=self._inputs_total,
                tokens_total=self._tokens_total,
                passes_total=self._passes_total,
                busy_s=self._busy_s,
            )
        )

    def _cancel_all(self, connection: Gateway) -> int:
        tokenizing = [key for key in self._tokenizing if key[0] is connection]
        for key in tokenizing:
            del self._tokenizing[key]
        return len(tokenizing) + self._cancel(connection)

    def _embed(self, connection: Gateway, message: Embed) -> None:
        if self._queue.num_tokens >= self._config.max_queued_tokens or self.is_draining:
            reason = "is shutting down" if self.is_draining else "has too much to do"
            retry_after_s = max(1.0, self._queue.num_tokens / self._tokens_per_s())
            error = QueueFull(f"The encoder {reason}: try again later.", retry_after_s)
            self._send(connection, Rejected.from_error(message.request_id, error))
        elif sum(map(len, message.inputs)) > _SMALL_CHARS:
            future = self._tokenizers.submit(self._encoder.tokenize, message.inputs)
            self._tokenizing[connection, message.request_id] = future
        else:
            self._enqueue(connection, message.request_id, lambda: self._encoder.tokenize(message.inputs))

    def _enqueue(self, connection: Gateway, request_id: str, tokenize: Callable[[], list[list[int]]]) -> None:
        """Queue the inputs that `tokenize` returns, or reject the request with the error it raises."""
        try:
            job = _Job(connection, request_id, tokenize())
        except RequestError as error:
            self._send(connection, Rejected.from_error(request_id, error))
            return
        except Exception as error:  # noqa: BLE001 - the fault of one request, in the library, ends only that one
            kind = type(error).__name__  # not its text, which may hold the input
            logger.error("the tokenizer failed: %s", kind)
            failure = RequestError(f"`input` cannot be tokenized ({kind}).", param="input")
            self._send(connection, Rejected.from_error(request_id, failure))
            return
        number = self._requests_total
        self._jobs[number] = job
        self._queue.add(number, [len(ids) for ids in job.ids])
        self._requests_total += 1
        self._inputs_total += len(job.ids)

    def _run_pass(self) -> None:
        batch = [(self._jobs[number], index) for number, index in self._queue.next_batch()]
        ids = [job.ids[index] for job, index in batch]
        start_s = time.monotonic()
        vectors = self._encoder.embed(ids)
        self._busy_s += time.monotonic() - start_s
        self._passes_total += 1
        self._tokens_total += sum(map(len, ids))
        for (job, index), vector in zip(batch, vectors.astype("<f4", copy=False), strict=True):
            job.vectors[index] = vector.tobytes()
        for job in [self._jobs.pop(number) for number in self._finished()]:
            self._send(job.connection, job.answer())

    def _finished(self) -> list[int]:
        return [number for number, job in self._jobs.items() if len(job.vectors) == len(job.ids)]

    def _cancel(self, connection: Gateway, request_id: str | None = None) -> int:
        """Remove a gateway's jobs from the queue, or the one with this id; returns how many there were."""
        numbers = [
            number
            for number, job in self._jobs.items()
            if job.connection is connection and request_id in (None, job.request_id)
        ]
        for number in numbers:
            self._queue.cancel(number)
            del self._jobs[number]
        return len(numbers)

    def _tokens_per_s(self) -> float:
        return self._tokens_total / self._busy_s if self._busy_s else _FIRST_TOKENS_PER_S
