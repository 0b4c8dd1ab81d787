from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from backend.encoder.checkpoint import BUILTIN
from backend.encoder.model import SentenceEncoder
from backend.errors import EngineUnavailable, QueueFull, RequestError
from backend.server.encoder_client import EncoderClient
from backend.server.encoder_messages import EncoderConfig
from backend.server.encoder_server import EncoderServer
from tests.backend.encoder.checkpoints import MAX_TOKENS, SIZE, TEXTS, write_encoder
from tests.backend.server.listening import listen, start_process

Process = subprocess.Popen[str]


def start(folder: Path, **config: object) -> Process:
    """A real encoder process, ready to serve on folder/socket."""
    values = {"model": "minilm", "checkpoint": BUILTIN, "num_threads": 1, **config}
    line = json.dumps(values).encode()
    process = start_process("encoder", folder / "socket", line, "--parent-pid", str(os.getpid()))
    assert process.stdout is not None
    phases = []
    for line in process.stdout:
        phases.append(json.loads(line)["phase"])
        if phases[-1] == "ready":
            break
    assert phases in (["loading", "warming_up", "ready"], ["loading", "failed"], ["failed"])
    return process


def finish(process: Process, *, kill: bool = False) -> int:
    if process.poll() is None:
        process.send_signal(signal.SIGKILL if kill else signal.SIGTERM)
    code = process.wait(timeout=20)
    for stream in (process.stdin, process.stdout, process.stderr):
        assert stream is not None
        stream.close()
    return code


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("encoder")
    process = start(folder, max_queued_tokens=2000)
    yield folder
    assert finish(process) == 0


@pytest.fixture
async def client(folder: Path) -> AsyncIterator[EncoderClient]:
    client = EncoderClient(folder / "socket")
    await client.start()
    await client.wait_ready(10)
    yield client
    await client.close()


async def test_embeds_texts_and_token_ids(client: EncoderClient, folder: Path) -> None:
    assert client.hello is not None
    assert (client.hello.model, client.hello.max_tokens, client.hello.dimensions) == ("minilm", 256, 384)
    answer = await client.embed(["The cat sleeps.", "A kitten naps.", "Rates rose again."])
    vectors = np.array([np.frombuffer(vector, dtype="<f4") for vector in answer.vectors])
    assert vectors.shape == (3, 384)
    assert answer.num_tokens == [6, 7, 6]
    assert vectors[0] @ vectors[1] > vectors[0] @ vectors[2] + 0.3
    same = await client.embed([[1996, 4937, 25126, 1012]])
    np.testing.assert_allclose(np.frombuffer(same.vectors[0], dtype="<f4"), vectors[0], atol=1e-5)


async def test_refusals_reach_the_caller(client: EncoderClient) -> None:
    for inputs, message in (
        (["x " * 300], "at most 256"),
        ([""], "is empty"),
        ([], "is empty"),
        (["\ud800"], "Unicode"),
    ):
        with pytest.raises(RequestError, match=message) as caught:
            await client.embed(inputs)
        assert caught.value.param == "input"
    long_text = ["word " * 30_000]  # tokenized in a thread
    with pytest.raises(RequestError, match="at most 256"):
        await client.embed(long_text)
    assert client.ready


async def test_concurrent_requests_and_the_queue_bound(client: EncoderClient) -> None:
    tasks = [asyncio.create_task(client.embed([f"sentence number {i} " * 40] * 8)) for i in range(6)]
    small = asyncio.create_task(client.embed(["short"]))
    results = await asyncio.gather(*tasks, small, return_exceptions=True)
    refused = [result for result in results if isinstance(result, QueueFull)]
    assert refused and all(error.retry_after_s >= 1 for error in refused)
    assert not isinstance(results[0], BaseException)
    assert (await client.embed(["again"])).num_tokens == [3]


async def test_a_cancelled_request_leaves_the_queue(client: EncoderClient) -> None:
    for _ in range(2):  # the next heartbeat may be from before the last test's answers
        await client.wait_message()
    before = client.stats
    task = asyncio.create_task(client.embed(["water and wheel " * 60] * 10))
    await asyncio.sleep(0)  # let it send
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await client.embed(["next"])
    # A heartbeat may be from before the second answer: wait for one that counts both, with an empty queue.
    while client.stats.requests_total < before.requests_total + 2 or client.stats.waiting_inputs:
        await client.wait_message()
    assert client.stats.tokens_total - before.tokens_total < 5 * 182  # two inputs of the first pass, at most


async def test_nonsense_ends_only_its_own_connection(client: EncoderClient, folder: Path) -> None:
    for nonsense in (b"\xff" * 64, b"\x00\x00\x00\x01\xc1", b"\x00\x00\x00\x02{}"):
        reader, writer = await asyncio.open_unix_connection(folder / "socket")
        writer.write(nonsense)
        await asyncio.wait_for(reader.read(), 10)  # hello, heartbeat, end
        writer.close()
        await writer.wait_closed()
    assert (await client.embed(["still here"])).num_tokens == [4]


async def test_a_dead_encoder_is_noticed_and_its_successor_found(tmp_path: Path) -> None:
    first = start(tmp_path)
    client = EncoderClient(tmp_path / "socket")
    with pytest.raises(EngineUnavailable, match="not connected"):
        await client.embed(["too early"])
    await client.start()
    await client.wait_ready(10)
    waiting = asyncio.create_task(client.embed(["water and wheel " * 60] * 100))
    await client.embed(["one"])
    finish(first, kill=True)
    with pytest.raises(EngineUnavailable, match="closed the connection"):
        await waiting
    assert not client.ready
    second = await asyncio.to_thread(start, tmp_path)
    await client.wait_ready(10)
    assert (await client.embed(["two"])).num_tokens == [3]
    await client.close()
    assert finish(second) == 0


async def test_drains_before_it_ends(tmp_path: Path) -> None:
    process = start(tmp_path)
    client = EncoderClient(tmp_path / "socket")
    await client.start()
    await client.wait_ready(10)
    waiting = asyncio.create_task(client.embed(["water and wheel " * 60] * 20))
    await client.embed(["in the queue behind it"])
    process.send_signal(signal.SIGTERM)
    assert len((await waiting).vectors) == 20
    assert await asyncio.to_thread(finish, process) == 0
    await client.close()


@pytest.mark.parametrize(
    ("config", "message"),
    [({"checkpoint": "/nowhere"}, "is not a folder"), ({"threads": 1}, "no encoder configuration")],
)
def test_what_cannot_be_served_is_one_sentence(
    tmp_path: Path, config: dict[str, object], message: str
) -> None:
    process = start(tmp_path, **config)
    assert process.stderr is not None
    error = process.stderr.read()
    assert finish(process) == 2
    assert message in error and error.count("\n") == 1 and "Traceback" not in error


class BrokenTokenizer:
    """A real encoder whose tokenizer fails for texts with "panic" and holds those with "slow" until told."""

    def __init__(self) -> None:
        self._encoder = SentenceEncoder.from_checkpoint(BUILTIN, 1)
        self.max_tokens, self.dimensions = self._encoder.max_tokens, self._encoder.dimensions
        self.embed = self._encoder.embed
        self.is_held, self.go_on = threading.Event(), threading.Event()

    def tokenize(self, inputs: Sequence[str | list[int]]) -> list[list[int]]:
        if "panic" in inputs:
            raise OSError("canary")
        if "slow" in inputs:
            self.is_held.set()
            assert self.go_on.wait(60)
        return self._encoder.tokenize(inputs)


@asynccontextmanager
async def served(encoder: BrokenTokenizer, path: Path) -> AsyncIterator[EncoderClient]:
    server = EncoderServer(encoder, EncoderConfig(model="m", checkpoint=BUILTIN), listen(path))  # type: ignore[arg-type]
    thread = threading.Thread(target=server.run)
    thread.start()
    client = EncoderClient(path)
    await client.start()
    await client.wait_ready(10)
    try:
        yield client
    finally:
        encoder.go_on.set()
        await client.close()
        server.stop()
        await asyncio.to_thread(thread.join, 20)
        server.close()


LONG = "water" + " " * 25_000 + "wheel"
"""Four tokens, but enough characters to be tokenized in a thread."""


async def test_a_failure_of_the_tokenizer_is_one_requests(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with served(BrokenTokenizer(), tmp_path / "socket") as client:
        for inputs in (["panic"], ["panic", LONG]):
            with pytest.raises(RequestError, match=r"`input` cannot be tokenized \(OSError\)") as caught:
                await client.embed(inputs)
            assert "canary" not in str(caught.value) + caplog.text
        assert (await client.embed(["still here"])).num_tokens == [4]


async def test_a_long_tokenization_does_not_delay_another(tmp_path: Path) -> None:
    encoder = BrokenTokenizer()
    async with served(encoder, tmp_path / "socket") as client:
        slow = asyncio.create_task(client.embed(["slow", LONG]))
        await asyncio.to_thread(encoder.is_held.wait, 10)
        async with asyncio.timeout(60):
            assert (await client.embed([LONG])).num_tokens == [4]
        assert not slow.done()
        slow.cancel()


async def test_serves_an_encoder_of_another_architecture(tmp_path: Path) -> None:
    """The policies give it with pinned digests, a prompt, and weights that must all be pinned."""
    checkpoint = write_encoder(tmp_path / "e", "xlm-roberta")
    files = {str(path): sha256(path.read_bytes()).hexdigest() for path in checkpoint.glob("*.safetensors")}
    common = {"checkpoint": str(checkpoint), "prompt": "query: "}
    process = start(tmp_path, sha256=files, **common)
    client = EncoderClient(tmp_path / "socket")
    await client.start()
    await client.wait_ready(10)
    assert client.hello is not None
    assert (client.hello.max_tokens, client.hello.dimensions) == (MAX_TOKENS, SIZE)
    answer = await client.embed(TEXTS)
    expected = SentenceTransformer(str(checkpoint), device="cpu").encode(TEXTS, prompt="query: ")
    found = np.array([np.frombuffer(vector, dtype="<f4") for vector in answer.vectors])
    np.testing.assert_allclose(found, expected, atol=1e-5)
    await client.close()
    assert finish(process) == 0
    listed = {str(checkpoint / "config.json"): sha256((checkpoint / "config.json").read_bytes()).hexdigest()}
    wrong = dict.fromkeys(files, "0" * 64)
    for pins, message in ((listed, "is not listed in the policy's sha256"), (wrong, "0000 is expected")):
        process = start(tmp_path, sha256=pins, **common)
        assert process.stderr is not None and message in process.stderr.read()
        assert finish(process) == 2
