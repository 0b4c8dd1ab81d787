"""Encoders of one's own over HTTP, asked with the OpenAI SDK: the vectors are the library's.

One runs in the library, whose import takes ten seconds of CPU time in each process; BERT's run in ours.
`tests/backend/encoder` compares all architectures.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from openai import BadRequestError, OpenAI
from sentence_transformers import SentenceTransformer

from tests.backend.encoder.checkpoints import SIZE, TEXTS, write_encoder, write_transformer
from tests.e2e.conftest import StartServer
from tests.e2e.server import START_TIMEOUT_S, Server, wait_until

POLICIES = """\
models:
  plain: {encoder: {checkpoint: xlm, languages: [de, fr], num_threads: 1}}
  queries: {encoder: {checkpoint: prompted, languages: [de, fr], num_threads: 1, prompt_name: query}}
  raw: {encoder: {checkpoint: raw, num_threads: 1}}
  first: {encoder: {checkpoint: bert, num_threads: 1}}
  bare: {encoder: {checkpoint: bare, num_threads: 1, pooling: mean}}
"""
FOLDERS = {"plain": "xlm", "queries": "prompted", "raw": "raw", "first": "bert", "bare": "bare"}
Vectors = NDArray[np.float32]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("encoders")
    write_encoder(root / "xlm", "xlm-roberta")
    write_encoder(root / "prompted", "bert", prompts={"query": "query: "})
    write_encoder(root / "raw", "bert", normalize=False)
    write_encoder(root / "bert", "bert", pooling="cls")
    write_transformer(root / "bare", "bert")
    (root / "models.yaml").write_text(POLICIES)
    return root


@pytest.fixture(scope="module")
def server(start_module_server: StartServer, root: Path) -> Server:
    return start_module_server("--policies", str(root))


@pytest.fixture
def client(server: Server) -> Iterator[OpenAI]:
    with OpenAI(base_url=server.base_url, api_key="none", max_retries=0) as client:
        yield client


def vectors(client: OpenAI, model: str, texts: list[str]) -> Vectors:
    found = client.embeddings.create(model=model, input=texts)
    assert [each.index for each in found.data] == list(range(len(texts)))
    return np.array([each.embedding for each in found.data], np.float32)


@pytest.mark.parametrize("model", FOLDERS)
def test_vectors_are_the_librarys(client: OpenAI, root: Path, model: str) -> None:
    library = SentenceTransformer(str(root / FOLDERS[model]), device="cpu", local_files_only=True)
    expected = library.encode(TEXTS, prompt_name="query" if model == "queries" else None)
    np.testing.assert_allclose(vectors(client, model, TEXTS), expected, atol=1e-5)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("", "empty"),
        ([], "length >= 1"),
        (["fine", ""], "empty"),
        ("word " * 200, "the model reads at most 56: split the text"),
        (["fine", "word " * 200], r"input\[1\]` has \d+ tokens"),
        ("x" * 40_000, "has 40000 characters; the model reads at most 56 tokens"),
        ([10**6], "token id 1000000; ids are 0 to"),
        (["x"] * 2049, "2049 entries"),
    ],
)
def test_named_refusals(client: OpenAI, given: str | list[str], message: str) -> None:
    with pytest.raises(BadRequestError, match=message):
        client.embeddings.create(model="plain", input=given)
    assert vectors(client, "plain", ["after it"]).shape == (1, SIZE)


def test_token_ids_have_no_prompt(client: OpenAI) -> None:
    with pytest.raises(BadRequestError, match="after the prompt 'query: ': send text"):
        client.embeddings.create(model="queries", input=[5, 6, 7])


def test_dimensions_are_the_encoders(client: OpenAI) -> None:
    assert len(client.embeddings.create(model="raw", input="x", dimensions=SIZE).data[0].embedding) == SIZE
    with pytest.raises(BadRequestError, match="'raw' makes 32 numbers"):
        client.embeddings.create(model="raw", input="x", dimensions=384)


def test_concurrent_requests_get_their_own_vectors(client: OpenAI) -> None:
    expected = {model: vectors(client, model, TEXTS) for model in ("plain", "raw")}

    def one(number: int) -> None:
        model, place = ("plain", "raw")[number % 2], number % len(TEXTS)
        np.testing.assert_allclose(vectors(client, model, TEXTS[place:]), expected[model][place:], atol=1e-5)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(one, range(60)))


def test_kill_nine_recovers(client: OpenAI, server: Server) -> None:
    expected = {model: vectors(client, model, TEXTS) for model in FOLDERS}
    before = server.backend_pids()
    os.kill(before[-1], signal.SIGKILL)

    def is_back() -> bool:
        now = server.backend_pids()
        return len(now) == len(before) and before[-1] not in now and server.is_ready()

    wait_until(is_back, START_TIMEOUT_S, lambda: server.log)
    assert set(before[:-1]) < set(server.backend_pids()), "the others go on"
    for model in FOLDERS:
        np.testing.assert_allclose(vectors(client, model, TEXTS), expected[model], atol=1e-6)


def test_weights_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    """`check` opens no weights, so the encoder's process finds out; the server does not start without it."""
    write_encoder(tmp_path / "e", "mpnet")
    weights = tmp_path / "e" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:100])
    (tmp_path / "models.yaml").write_text("models:\n  e: {encoder: {checkpoint: e}}\n")
    server = Server(tmp_path / "log", "--policies", str(tmp_path))
    try:
        assert server.process.wait(START_TIMEOUT_S) != 0
        assert f"sentence-transformers cannot load {str(tmp_path / 'e')!r} (SafetensorError" in server.log
        assert "Traceback" not in server.log
    finally:
        server.close()


def test_without_the_extra_check_names_it(root: Path) -> None:
    script = (
        "import sys; sys.modules['sentence_transformers'] = None\n"
        "from gateway.cli.main import main; sys.exit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", script, "check", str(root)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode != 0
    assert "models.yaml:2" in done.stderr and "pip install 'penstock[encoders]'" in done.stderr
    assert "models.first" not in done.stderr, "BERT needs no extra"


@pytest.mark.parametrize("model", ["plain", "queries"])
def test_documents_are_ranked_by_the_cosines_of_the_vectors(client: OpenAI, model: str) -> None:
    query, *documents = TEXTS
    found = vectors(client, model, [query, *documents])
    units = found / np.linalg.norm(found, axis=1, keepdims=True)
    asked = {"model": model, "query": query, "documents": documents, "top_n": 3}
    answer = client.post("/rerank", body=asked, cast_to=dict[str, Any])
    cosines = units[1:] @ units[0]
    assert [each["index"] for each in answer["results"]] == [*np.argsort(-cosines, kind="stable")[:3]]
    for each in answer["results"]:
        assert each["relevance_score"] == pytest.approx(cosines[each["index"]], abs=1e-4)
        assert each["document"] == {"text": documents[each["index"]]}
    with pytest.raises(BadRequestError, match="documents\\[1\\]` has") as raised:
        client.post("/rerank", body={**asked, "documents": ["a", "word " * 9999]}, cast_to=dict[str, Any])
    assert raised.value.param == "documents[1]"
