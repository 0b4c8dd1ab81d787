"""Files and batches with the official client, strictly validated, and a batch through kill -9."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types import Batch

from tests.e2e.conftest import MODEL, StartServer
from tests.e2e.server import Server, wait_until
from tests.e2e.upstream import Upstream

CHAT = "/v1/chat/completions"
DONE = ("completed", "failed", "expired", "cancelled")
END_TIMEOUT_S = 120.0


def strict_client(server: Server) -> openai.OpenAI:
    key = server.api_key or "none"
    return openai.OpenAI(
        base_url=server.base_url, api_key=key, max_retries=0, timeout=60, _strict_response_validation=True
    )


@pytest.fixture
def strict(server: Server) -> Iterator[openai.OpenAI]:
    with strict_client(server) as client:
        yield client


def requests(endpoint: str, bodies: list[dict[str, Any]]) -> bytes:
    return b"\n".join(
        json.dumps({"custom_id": f"id-{number}", "method": "POST", "url": endpoint, "body": body}).encode()
        for number, body in enumerate(bodies)
    )


def lines(texts: list[str], model: str = MODEL) -> bytes:
    return requests(
        CHAT, [{"model": model, "messages": [{"role": "user", "content": text}]} for text in texts]
    )


def create(client: openai.OpenAI, content: bytes, endpoint: Any = CHAT) -> Batch:  # noqa: ANN401
    file = client.files.create(file=("questions.jsonl", content), purpose="batch")
    assert client.files.content(file.id).content == content
    return client.batches.create(input_file_id=file.id, endpoint=endpoint, completion_window="24h")


def ended(client: openai.OpenAI, batch: Batch) -> Batch:
    def found() -> Batch:
        return client.batches.retrieve(batch.id)

    wait_until(lambda: found().status in DONE, END_TIMEOUT_S, lambda: repr(found()))
    return found()


def answers(client: openai.OpenAI, file_id: str | None) -> dict[str, Any]:
    assert file_id is not None
    found = [json.loads(line) for line in client.files.content(file_id).text.splitlines()]
    assert len({line["custom_id"] for line in found}) == len(found)
    return {line["custom_id"]: line for line in found}


def policy(folder: Path, upstream: Upstream) -> Path:
    """One model, the upstream, and a batch's lines two at a time."""
    remote = f"{{upstream: {{base_url: {upstream.base_url!r}}}}}"
    text = f"models: {{remote: {remote}}}\nbatches: {{max_concurrency: 2}}\n"
    (folder / "policies.yaml").write_text(text)
    return folder


def test_a_batch_on_our_engine(strict: openai.OpenAI) -> None:
    batch = ended(strict, create(strict, lines([f"What is {number} + 1?" for number in range(12)])))
    assert batch.status == "completed" and batch.error_file_id is None
    assert batch.request_counts is not None and batch.request_counts.completed == 12
    assert batch.usage is not None and batch.usage.output_tokens > 0
    found = answers(strict, batch.output_file_id)
    assert "8" in found["id-7"]["response"]["body"]["choices"][0]["message"]["content"]
    assert batch in list(strict.batches.list())
    assert batch.output_file_id in [file.id for file in strict.files.list(purpose="batch_output")]
    strict.files.delete(batch.input_file_id)
    with pytest.raises(openai.NotFoundError):
        strict.files.retrieve(batch.input_file_id)


def test_moderations_in_a_batch(client: openai.OpenAI) -> None:
    endpoint = "/v1/moderations"
    batch = ended(client, create(client, requests(endpoint, [{"input": "Hello."}]), endpoint))
    found = answers(client, batch.output_file_id)
    assert found["id-0"]["response"]["body"]["results"][0]["flagged"] is False


def test_documents_are_ranked_in_a_batch(client: openai.OpenAI) -> None:
    endpoint = "/v1/rerank"
    asked = {"model": "all-minilm-l6-v2", "query": "a bird", "documents": ["A lorry.", "A sparrow."]}
    created = create(client, requests(endpoint, [asked]), endpoint)
    found = answers(client, ended(client, created).output_file_id)
    assert [each["index"] for each in found["id-0"]["response"]["body"]["results"]] == [1, 0]


def test_a_file_that_is_wrong_is_a_failed_batch(strict: openai.OpenAI) -> None:
    batch = ended(strict, create(strict, lines(["a"]) + b"\n{}\n"))
    assert batch.status == "failed" and batch.errors is not None and batch.errors.data is not None
    assert [(error.line, error.code) for error in batch.errors.data] == [(2, "invalid_line")]


def test_a_batch_survives_a_kill(start_server: StartServer, tmp_path: Path) -> None:
    upstream = Upstream()
    arguments = ("--policies", str(policy(tmp_path, upstream)), "--workers", "2")
    server = start_server(*arguments)
    texts = [f"{'quick' if number < 20 else 'hold'} {number}" for number in range(40)]
    with strict_client(server) as client:
        batch = create(client, lines(texts, "remote"))

        def num_completed() -> int:
            counts = client.batches.retrieve(batch.id).request_counts
            return 0 if counts is None else counts.completed

        wait_until(lambda: num_completed() == 20, END_TIMEOUT_S, lambda: f"{num_completed()} of 20 answered")
    server.process.send_signal(signal.SIGKILL)
    server.process.wait()
    upstream.released.set()
    second = start_server(*arguments, environment={"PENSTOCK_DATA_DIR": str(server.data_dir)})
    with strict_client(second) as client:
        batch = ended(client, batch)
        found = answers(client, batch.output_file_id)
    assert batch.status == "completed" and set(found) == {f"id-{number}" for number in range(40)}
    asked = Counter(seen.body["messages"][0]["content"] for seen in upstream.seen)
    assert all(asked[text] == 1 for text in texts[:20]), "answered lines were asked again"
    assert sum(asked.values()) <= 40 + 2  # at most those in flight at the kill
    upstream.close()


def test_the_command_goes_on_where_it_was_killed(tmp_path: Path) -> None:
    upstream = Upstream()
    source, target = tmp_path / "questions.jsonl", tmp_path / "answers.jsonl"
    texts = ["quick 0", "quick 1", "hold 2", "hold 3", "status 400"]
    source.write_bytes(lines(texts, "remote"))
    (tmp_path / "policies").mkdir()
    policies = str(policy(tmp_path / "policies", upstream))
    command = [sys.executable, "-m", "gateway.cli", "batch", str(source), "-o", str(target), "--policies"]
    with subprocess.Popen([*command, policies], start_new_session=True, stderr=subprocess.DEVNULL) as killed:
        wait_until(lambda: len(upstream.seen) == 4, END_TIMEOUT_S, lambda: f"{len(upstream.seen)} asked")
        os.killpg(killed.pid, signal.SIGKILL)
    assert not target.exists()
    upstream.released.set()
    done = subprocess.run([*command, policies], stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1 and "5 of 5 lines, 1 failed" in done.stderr, done.stderr
    found = [json.loads(line) for line in target.read_bytes().splitlines()]
    assert [line["custom_id"] for line in found] == [f"id-{number}" for number in range(5)]
    asked = Counter(seen.body["messages"][0]["content"] for seen in upstream.seen)
    assert asked["quick 0"] == asked["quick 1"] == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "answers.jsonl",
        "policies",
        "questions.jsonl",
    ]
    upstream.close()


def test_a_cancelled_batch(start_server: StartServer, tmp_path: Path) -> None:
    upstream = Upstream()
    server = start_server("--policies", str(policy(tmp_path, upstream)))
    with strict_client(server) as client:
        batch = create(client, lines(["quick"] + ["hold"] * 9, "remote"))
        wait_until(lambda: len(upstream.seen) == 3, END_TIMEOUT_S, lambda: f"{len(upstream.seen)} asked")
        assert client.batches.cancel(batch.id).status == "cancelling"
        upstream.released.set()
        batch = ended(client, batch)
        assert batch.status == "cancelled" and len(answers(client, batch.output_file_id)) == 3
        assert len(answers(client, batch.error_file_id)) == 7 and len(upstream.seen) == 3
    upstream.close()
