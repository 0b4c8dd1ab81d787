"""`python -m backend.server.encoder CONFIG.json --socket PATH`: one process that turns texts into vectors.

Protocol of the worker: JSON progress lines on stdout, exit code 0 drained after SIGTERM, 2 the encoder cannot
be served (one sentence on stderr), 1 anything else. No torch.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import logging
import os
import signal
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from backend.encoder.batches import BatchQueue
from backend.encoder.model import SentenceEncoder
from backend.errors import CheckpointError, FrameError, RequestError
from backend.server.encoder_messages import (
    Embed,
    Embedded,
    EmbedRejected,
    EncoderConfig,
    EncoderHeartbeat,
    EncoderHello,
    EncoderStats,
    FromEncoder,
    ToEncoder,
)
from backend.server.framing import FrameReader, encode_frame

logger = logging.getLogger("backend.server.encoder")

EXIT_CANNOT_SERVE = 2
HEARTBEAT_S = 0.5
DRAIN_LIMIT_S = 30.0
CLOSE_LIMIT_S = 1.0
MAX_BUFFERED_BYTES = 64 * 1024 * 1024  # of answers that a gateway does not read
_RECEIVE_BYTES = 1 << 18
_SMALL_CHARS = 20_000  # tokenized at once, in a few milliseconds; more goes to a thread
_FIRST_TOKENS_PER_S = 2_000.0  # a guess, until passes were measured


@dataclass(slots=True, eq=False)
class _Job:
    """One Embed on its way through the passes."""

    writer: asyncio.StreamWriter
    number: int
    ids: list[list[int]]
    vectors: dict[int, bytes] = field(default_factory=dict)


class EncoderServer:
    """Reads requests, runs pass after pass, answers. Passes run in a thread; the loop never blocks long.

    The heartbeat comes from the loop that runs the passes: when passes hang, it stops.
    """

    def __init__(self, encoder: SentenceEncoder, config: EncoderConfig) -> None:
        self._encoder = encoder
        self._config = config
        self._queue = BatchQueue()
        self._jobs: dict[int, _Job] = {}
        self._tokenizing: dict[tuple[asyncio.StreamWriter, int], asyncio.Task[None]] = {}
        self._keys = itertools.count()
        self._writers: set[asyncio.StreamWriter] = set()
        self._has_work = asyncio.Event()
        self._counts = dict.fromkeys(("requests", "inputs", "tokens", "passes"), 0)
        self._busy_s = 0.0
        self._is_draining = False
        self.parent_pid: int | None = None  # drain when it is no longer the parent

    def stop(self) -> None:
        """Accept no more, answer what waits, return from `run`."""
        self._is_draining = True
        self._has_work.set()

    async def run(self, path: Path) -> None:
        """Serve on the Unix socket `path`, which only this user may open, until `stop`."""
        path.unlink(missing_ok=True)  # a dead process may have left one
        before = os.umask(0o177)
        try:
            server = await asyncio.start_unix_server(self._serve, str(path))
        finally:
            os.umask(before)
        report_progress("ready", 1.0)
        try:
            await self._run_passes()
        finally:
            server.close()
            path.unlink(missing_ok=True)
            for writer in list(self._writers):
                writer.close()  # writes what is buffered first
            closing = [asyncio.ensure_future(writer.wait_closed()) for writer in self._writers]
            if closing:
                await asyncio.wait(closing, timeout=CLOSE_LIMIT_S)

    async def _run_passes(self) -> None:
        drain_until_s = float("inf")
        next_beat_s = 0.0
        while True:
            if self._is_draining:
                drain_until_s = min(drain_until_s, time.monotonic() + DRAIN_LIMIT_S)
                if not (self._jobs or self._tokenizing) or time.monotonic() >= drain_until_s:
                    return
            await self._run_pass()
            if time.monotonic() >= next_beat_s:
                next_beat_s = time.monotonic() + HEARTBEAT_S
                self._beat()
            if not self._jobs:
                await self._sleep(next_beat_s - time.monotonic())

    async def _run_pass(self) -> None:
        batch = [(self._jobs[key], index) for key, index in self._queue.next_batch()]
        if not batch:
            return
        ids = [job.ids[index] for job, index in batch]
        start_s = time.monotonic()
        vectors = await asyncio.to_thread(self._encoder.embed, ids)
        self._busy_s += time.monotonic() - start_s
        self._counts["passes"] += 1
        self._counts["tokens"] += sum(map(len, ids))
        for (job, index), vector in zip(batch, vectors.astype("<f4", copy=False), strict=True):
            job.vectors[index] = vector.tobytes()
        for key, job in [(key, job) for key, job in self._jobs.items() if len(job.vectors) == len(job.ids)]:
            del self._jobs[key]
            self._send(job.writer, _answer(job))

    async def _sleep(self, timeout_s: float) -> None:
        """Until there is work, or for `timeout_s`."""
        self._has_work.clear()
        try:
            await asyncio.wait_for(self._has_work.wait(), max(0.0, timeout_s))
        except TimeoutError:
            pass

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One gateway's connection, until it ends."""
        self._writers.add(writer)
        shape = self._encoder
        config = self._config
        self._send(writer, EncoderHello(config.model, config.checkpoint, shape.max_tokens, shape.dimensions))
        self._send(writer, EncoderHeartbeat(self._stats()))
        frames = FrameReader()
        decoder: msgspec.msgpack.Decoder[ToEncoder] = msgspec.msgpack.Decoder(ToEncoder)
        try:
            while data := await reader.read(_RECEIVE_BYTES):
                for body in frames.feed(data):
                    self._handle(writer, decoder.decode(body))
        except (OSError, FrameError, msgspec.MsgspecError) as error:
            # A decoding error names a path and types, never a value: safe to log.
            logger.info("a connection is dropped: %s", error)
        finally:
            self._writers.discard(writer)
            self._cancel([key for key, job in self._jobs.items() if job.writer is writer])
            for key in [key for key in self._tokenizing if key[0] is writer]:
                del self._tokenizing[key]
            writer.close()

    def _handle(self, writer: asyncio.StreamWriter, message: ToEncoder) -> None:
        if isinstance(message, Embed):
            self._embed(writer, message)
            return
        self._tokenizing.pop((writer, message.number), None)
        jobs = self._jobs.items()
        self._cancel([key for key, job in jobs if job.writer is writer and job.number == message.number])

    def _embed(self, writer: asyncio.StreamWriter, message: Embed) -> None:
        retry_after_s = self._queue.num_tokens / self._tokens_per_s()
        is_full = self._queue.num_tokens >= self._config.max_queued_tokens
        if is_full or self._is_draining:
            reason = "is shutting down" if self._is_draining else "has too much to do"
            text = f"The encoder {reason}: try again later."
            self._send(writer, EmbedRejected(message.number, "queue_full", text, max(1.0, retry_after_s)))
            return
        if sum(map(len, message.inputs)) <= _SMALL_CHARS:
            self._admit(writer, message.number, _tokenize(self._encoder, message))
        else:
            task = asyncio.create_task(self._embed_large(writer, message))
            self._tokenizing[writer, message.number] = task

    async def _embed_large(self, writer: asyncio.StreamWriter, message: Embed) -> None:
        result = await asyncio.to_thread(_tokenize, self._encoder, message)
        if self._tokenizing.pop((writer, message.number), None) is not None:  # not cancelled meanwhile
            self._admit(writer, message.number, result)

    def _admit(
        self, writer: asyncio.StreamWriter, number: int, result: list[list[int]] | RequestError
    ) -> None:
        if isinstance(result, RequestError):
            self._send(writer, EmbedRejected(number, "invalid", str(result), param=result.param))
            return
        job = _Job(writer, number, result)
        key = next(self._keys)
        self._jobs[key] = job
        self._queue.add(key, [len(ids) for ids in job.ids])
        self._counts["requests"] += 1
        self._counts["inputs"] += len(job.ids)
        self._has_work.set()

    def _cancel(self, keys: list[int]) -> None:
        for key in keys:
            self._queue.cancel(key)
            del self._jobs[key]

    def _beat(self) -> None:
        heartbeat = EncoderHeartbeat(self._stats())
        for writer in list(self._writers):
            self._send(writer, heartbeat)
        if self.parent_pid is not None and os.getppid() != self.parent_pid:
            self.stop()

    def _send(self, writer: asyncio.StreamWriter, message: FromEncoder) -> None:
        """Queue a frame; a gateway that does not read is dropped."""
        if writer.is_closing():
            return
        writer.write(encode_frame(msgspec.msgpack.encode(message)))
        if writer.transport.get_write_buffer_size() > MAX_BUFFERED_BYTES:
            logger.info("a connection is dropped: it does not read its answers")
            writer.transport.abort()

    def _stats(self) -> EncoderStats:
        return EncoderStats(
            waiting_inputs=self._queue.num_inputs,
            waiting_tokens=self._queue.num_tokens,
            requests_total=self._counts["requests"],
            inputs_total=self._counts["inputs"],
            tokens_total=self._counts["tokens"],
            passes_total=self._counts["passes"],
            busy_s=self._busy_s,
        )

    def _tokens_per_s(self) -> float:
        return self._counts["tokens"] / self._busy_s if self._busy_s else _FIRST_TOKENS_PER_S


def main(arguments: list[str] | None = None) -> int:
    """Load, serve, drain. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="backend.server.encoder", description="One encoder process.")
    parser.add_argument("config", type=Path, help="EncoderConfig as a JSON file")
    parser.add_argument("--socket", type=Path, required=True, help="Unix socket to listen on")
    parser.add_argument("--parent-pid", type=int, help="drain and exit when this is no longer the parent")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of the terminal; the supervisor sends SIGTERM
    try:
        config = read_config(options.config)
        report_progress("loading", 0.0)
        encoder = SentenceEncoder.from_checkpoint(config.checkpoint, config.num_threads)
        report_progress("warming_up", 1.0)
        encoder.embed(encoder.tokenize(["warm up"]))
    except CheckpointError as error:
        sys.stderr.write(f"{error}\n")
        return EXIT_CANNOT_SERVE
    try:
        asyncio.run(_serve_until_told(encoder, config, options.socket, options.parent_pid))
    except Exception as error:  # noqa: BLE001 - the process ends; one line says why
        logger.critical("the encoder died: %s: %s", type(error).__name__, error)
        return 1
    return 0


def read_config(path: Path) -> EncoderConfig:
    """Raises CheckpointError when the file holds no EncoderConfig."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=EncoderConfig)
    except (OSError, msgspec.MsgspecError) as error:
        raise CheckpointError(f"{str(path)!r} holds no encoder configuration ({error}).") from error


def report_progress(phase: str, fraction: float) -> None:
    """One JSON line on stdout for whoever started this process."""
    sys.stdout.write(json.dumps({"phase": phase, "fraction": fraction}) + "\n")
    sys.stdout.flush()


async def _serve_until_told(
    encoder: SentenceEncoder, config: EncoderConfig, path: Path, parent_pid: int | None
) -> None:
    server = EncoderServer(encoder, config)
    server.parent_pid = parent_pid
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, server.stop)
    await server.run(path)


def _tokenize(encoder: SentenceEncoder, message: Embed) -> list[list[int]] | RequestError:
    """The refusal is returned: it is an answer, wherever this runs."""
    try:
        return encoder.tokenize(message.inputs)
    except RequestError as error:
        return error


def _answer(job: _Job) -> Embedded:
    order = range(len(job.ids))
    return Embedded(job.number, [job.vectors[i] for i in order], [len(ids) for ids in job.ids])


if __name__ == "__main__":
    sys.exit(main())
