from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file
from transformers import AutoModel

from backend.encoder import onnx_network
from backend.encoder.checkpoint import BUILTIN, resolve
from backend.encoder.model import MAX_INPUTS, SentenceEncoder
from backend.errors import CheckpointError, RequestError
from tests.backend.encoder.checkpoints import write_encoder

PARAPHRASES = [
    ("How do I reset my password?", "I forgot my password and need a new one."),
    ("The cat is sleeping on the sofa.", "A kitten naps on the couch."),
    ("Interest rates were raised by the central bank.", "The central bank increased its key rate."),
    ("Boil the pasta for ten minutes.", "Cook the noodles in hot water for ten minutes."),
]
MIXED = [
    "Hi.",
    "naïve café 🎉",
    "word " * 120,
    "雨が降る",
    "The water runs down the pipe and turns the wheel.",
]


@pytest.fixture(scope="module")
def encoder() -> SentenceEncoder:
    return SentenceEncoder.from_checkpoint(BUILTIN, num_threads=1)


def vectors(encoder: SentenceEncoder, texts: list[str]) -> NDArray[np.float32]:
    return encoder.embed(encoder.tokenize(texts))


def test_equals_the_definition_of_sentence_transformers(encoder: SentenceEncoder) -> None:
    """The reference is the normalised mean of the last hidden states, computed by transformers."""
    model = AutoModel.from_pretrained(resolve(BUILTIN), dtype=torch.float32).eval()
    for ids in encoder.tokenize(MIXED):
        with torch.no_grad():
            hidden = model(torch.tensor([ids])).last_hidden_state[0]
        expected = torch.nn.functional.normalize(hidden.mean(dim=0), dim=0).numpy()
        np.testing.assert_allclose(encoder.embed([ids])[0], expected, atol=2e-6)


def test_batch_equals_single(encoder: SentenceEncoder) -> None:
    ids = encoder.tokenize(MIXED)
    together = encoder.embed(ids)
    for row, one in zip(together, ids, strict=True):
        np.testing.assert_allclose(row, encoder.embed([one])[0], atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(together, axis=1), 1.0, atol=1e-5)
    assert together.dtype == np.float32 and together.shape == (len(MIXED), encoder.dimensions)


def test_paraphrases_are_closer_than_unrelated_sentences(encoder: SentenceEncoder) -> None:
    left = vectors(encoder, [a for a, _ in PARAPHRASES])
    right = vectors(encoder, [b for _, b in PARAPHRASES])
    similarity = left @ right.T
    unrelated = similarity[~np.eye(len(PARAPHRASES), dtype=bool)]
    assert np.diag(similarity).min() > unrelated.max() + 0.2


def test_token_ids_equal_text(encoder: SentenceEncoder) -> None:
    (ids,) = encoder.tokenize(["The water runs down."])
    assert encoder.tokenize([ids]) == encoder.tokenize([ids[1:-1]]) == [ids]


def test_the_longest_input_passes_and_one_more_token_does_not(encoder: SentenceEncoder) -> None:
    assert encoder.max_tokens == 256
    fits = "water " * 254
    assert [len(ids) for ids in encoder.tokenize([fits])] == [256]
    with pytest.raises(
        RequestError, match=r"input\[1\]` has 257 tokens; the model reads at most 256"
    ) as caught:
        encoder.tokenize(["fine", fits + "water"])
    assert caught.value.param == "input"
    with pytest.raises(RequestError, match="has 32769 characters; the model reads at most 256 tokens"):
        encoder.tokenize(["x" * 32_769])
    with pytest.raises(RequestError, match="has 300 tokens; the model reads at most 256"):
        encoder.tokenize([[2000] * 298])


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ([], "empty"),
        (["ok", ""], r"input\[1\]` is empty"),
        ([[]], r"input\[0\]` is empty"),
        (["x"] * (MAX_INPUTS + 1), f"{MAX_INPUTS + 1} items; the limit is {MAX_INPUTS}"),
        ([[2000] * 200] * 2000, "the limit is 300000 per request"),
        (["x" * 9_000_000], "over 8000000 characters"),
        (["\ud800"], "not valid Unicode"),
        ([[5, 30_522]], "token id 30522; ids are 0 to 30521"),
        ([[-1]], "token id -1"),
    ],
)
def test_refusals(encoder: SentenceEncoder, inputs: list[str | list[int]], message: str) -> None:
    with pytest.raises(RequestError, match=message) as caught:
        encoder.tokenize(inputs)
    assert caught.value.param == "input"


def tiny(folder: Path) -> Path:
    """Write the built-in encoder with only its first layer."""
    for path in resolve(BUILTIN).rglob("*.json"):
        target = folder / path.relative_to(resolve(BUILTIN))
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 1}))
    tensors = load_file(resolve(BUILTIN) / "model.safetensors")
    kept = {k: v for k, v in tensors.items() if "encoder.layer." not in k or "encoder.layer.0." in k}
    save_file(kept, folder / "model.safetensors")
    return folder


def test_an_encoder_from_a_folder(tmp_path: Path) -> None:
    encoder = SentenceEncoder.from_checkpoint(str(tiny(tmp_path)), num_threads=1)
    assert vectors(encoder, ["one layer"]).shape == (1, 384)


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("config.json", {"num_hidden_layers": 2}, "have no 'encoder.layer.1."),
        ("config.json", {"vocab_size": 7}, "has shape"),
        ("config.json", {"hidden_size": "wide"}, "has hidden_size 'wide'"),
        ("config.json", {"layer_norm_eps": None}, "lacks a usable"),
        ("1_Pooling/config.json", {"pooling_mode": "median"}, "names the pooling 'median'"),
        ("config.json", None, "missing or not JSON"),
        ("tokenizer.json", None, "missing or broken"),
        ("model.safetensors", None, "missing or broken"),
    ],
)
def test_errors_of_broken_folders(
    tmp_path: Path, file: str, change: dict[str, object] | None, message: str
) -> None:
    path = tiny(tmp_path) / file
    if change is None:
        path.write_bytes(b"broken")
    else:
        path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(CheckpointError, match=message):
        SentenceEncoder.from_checkpoint(str(tmp_path))


def test_onnxruntime_sends_no_telemetry_of_its_own() -> None:
    """Only its switch can be tested: what it would send goes to a host outside."""
    script = (
        "import onnxruntime; calls = []; onnxruntime.disable_telemetry_events = lambda: calls.append(1);"
        "import backend.encoder.model; print(len(calls))"
    )
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stdout == "1\n"


def test_int8_vectors_are_close_and_the_same_in_every_batch(encoder: SentenceEncoder) -> None:
    quantised = SentenceEncoder.from_checkpoint(BUILTIN, num_threads=1, is_int8=True)
    texts = [*MIXED, *(text for pair in PARAPHRASES for text in pair)]
    ids = quantised.tokenize(texts)
    alone = np.concatenate([quantised.embed([each]) for each in ids])
    cosines = (alone * vectors(encoder, texts)).sum(axis=1)
    assert cosines.min() > 0.998
    for size in (2, 3, 5, len(ids)):
        for start in range(0, len(ids) - size + 1):
            assert np.array_equal(quantised.embed(ids[start : start + size]), alone[start : start + size])


def test_int8_needs_sizes_that_fit_its_blocks(tmp_path: Path) -> None:
    folder = write_encoder(tmp_path / "e", "bert")
    with pytest.raises(CheckpointError, match="a layer of 48 inputs, no multiple of 32.*leave `dtype` out"):
        SentenceEncoder.from_checkpoint(str(folder), is_int8=True)


@pytest.mark.parametrize(("num_threads", "quota", "started"), [(None, 5, 4), (3, 5, 2)])
def test_threads_keep_to_the_containers_quota(
    monkeypatch: pytest.MonkeyPatch, num_threads: int | None, quota: int, started: int
) -> None:
    """The calling thread works too."""
    monkeypatch.setattr(onnx_network, "cpu_quota", lambda: quota)
    before = len(os.listdir("/proc/self/task"))
    loaded = SentenceEncoder.from_checkpoint(BUILTIN, num_threads)
    assert len(os.listdir("/proc/self/task")) - before == started
    del loaded
