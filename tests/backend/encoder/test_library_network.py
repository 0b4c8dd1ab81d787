"""Encoders that run on sentence-transformers: the same vectors as the library's, and named refusals."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from transformers import AutoModel, AutoTokenizer

from backend.encoder.checkpoint import Reading, read_checkpoint
from backend.encoder.model import SentenceEncoder
from backend.errors import CheckpointError, RequestError
from tests.backend.encoder.checkpoints import (
    MAX_TOKENS,
    SIZE,
    TEXTS,
    change_json,
    write_encoder,
    write_transformer,
)

LIBRARY = ("xlm-roberta", "modernbert", "mpnet")
Vectors = NDArray[np.float32]


def ours(folder: Path, texts: list[str] = TEXTS, **reading: str) -> Vectors:
    encoder = SentenceEncoder.from_checkpoint(str(folder), 1, reading=Reading(**reading))
    return encoder.embed(encoder.tokenize(texts))


def librarys(folder: Path, **arguments: object) -> Vectors:
    model = SentenceTransformer(str(folder), device="cpu", local_files_only=True)
    found: Vectors = model.encode(TEXTS, batch_size=5, **cast(Any, arguments))
    return found


@pytest.fixture(scope="module")
def xlm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("xlm") / "encoder"
    return write_encoder(folder, "xlm-roberta", prompts={"query": "query: ", "passage": "passage: "})


@pytest.mark.parametrize("pooling", ["mean", "cls"])
@pytest.mark.parametrize("architecture", ["bert", *LIBRARY])
def test_vectors_equal_the_librarys(tmp_path: Path, architecture: str, pooling: str) -> None:
    folder = write_encoder(tmp_path / "e", architecture, pooling=pooling)
    expected = "sentence-transformers" if architecture in LIBRARY else "onnx"
    assert read_checkpoint(str(folder)).runtime == expected
    np.testing.assert_allclose(ours(folder), librarys(folder), atol=1e-5)


@pytest.mark.parametrize(
    ("architecture", "options"),
    [
        ("bert", {"normalize": False}),
        ("xlm-roberta", {"normalize": False}),
        ("bert", {"pooling": "max"}),
        ("mpnet", {"pooling": "lasttoken"}),
        ("xlm-roberta", {"pooling": "weightedmean"}),
        ("xlm-roberta", {"pooling": "mean_sqrt_len_tokens", "normalize": False}),
        ("bert", {"pooling": ("cls", "mean")}),
        ("bert", {"dense": 8}),
        ("mpnet", {"dense": 8, "normalize": False}),
        ("modernbert", {"truncate_dim": 12}),
        ("bert", {"truncate_dim": 12}),
    ],
)
def test_other_modules_equal_the_librarys(tmp_path: Path, architecture: str, options: dict[str, Any]) -> None:
    folder = write_encoder(tmp_path / "e", architecture, **options)
    expected = librarys(folder)
    assert read_checkpoint(str(folder)).output_size == expected.shape[1]
    np.testing.assert_allclose(ours(folder), expected, atol=1e-5)


def test_a_batch_gives_what_one_text_alone_gives(xlm: Path) -> None:
    together = ours(xlm)
    for text, row in zip(TEXTS, together, strict=True):
        np.testing.assert_allclose(ours(xlm, [text])[0], row, atol=1e-5)


@pytest.mark.parametrize("architecture", ["bert", "xlm-roberta"])
def test_prompts_are_honoured_as_in_encode(tmp_path: Path, architecture: str) -> None:
    folder = write_encoder(tmp_path / "e", architecture, prompts={"query": "query: ", "ask": "Ask: "})
    plain = librarys(folder)
    np.testing.assert_allclose(ours(folder), plain, atol=1e-5)
    asked = librarys(folder, prompt_name="query")
    assert np.abs(asked - plain).max() > 1e-3
    np.testing.assert_allclose(ours(folder, prompt_name="query"), asked, atol=1e-5)
    np.testing.assert_allclose(ours(folder, prompt="query: "), asked, atol=1e-5)
    change_json(folder / "config_sentence_transformers.json", default_prompt_name="ask")
    np.testing.assert_allclose(ours(folder), librarys(folder), atol=1e-5)
    assert np.abs(ours(folder) - plain).max() > 1e-3
    np.testing.assert_allclose(ours(folder, prompt=""), plain, atol=1e-5)


@pytest.mark.parametrize("architecture", ["bert", "mpnet"])
def test_a_prompt_that_pooling_leaves_out(tmp_path: Path, architecture: str) -> None:
    folder = write_encoder(tmp_path / "e", architecture, prompts={"query": "query: "})
    change_json(folder / "1_Pooling" / "config.json", include_prompt=False)
    with_prompt = librarys(folder, prompt_name="query")
    np.testing.assert_allclose(ours(folder, prompt_name="query"), with_prompt, atol=1e-5)
    np.testing.assert_allclose(ours(folder), librarys(folder), atol=1e-5)


def test_a_prompt_counts_and_excludes_token_ids(xlm: Path) -> None:
    encoder = SentenceEncoder.from_checkpoint(str(xlm), 1, reading=Reading(prompt_name="query"))
    plain = SentenceEncoder.from_checkpoint(str(xlm), 1)
    assert len(encoder.tokenize(["x"])[0]) > len(plain.tokenize(["x"])[0])
    with pytest.raises(RequestError, match="after the prompt 'query: ': send text"):
        encoder.tokenize([[5, 6]])


@pytest.mark.parametrize("architecture", LIBRARY)
def test_token_ids_equal_text(tmp_path: Path, architecture: str) -> None:
    encoder = SentenceEncoder.from_checkpoint(str(write_encoder(tmp_path / "e", architecture)), 1)
    (ids,) = encoder.tokenize(["Where is the station?"])
    assert encoder.tokenize([ids]) == encoder.tokenize([ids[1:-1]]) == [ids]
    with pytest.raises(RequestError, match=r"has token id \d+; ids are 0 to"):
        encoder.tokenize([[10**6]])


@pytest.mark.parametrize("architecture", LIBRARY)
def test_the_longest_input_passes_and_one_more_token_does_not(tmp_path: Path, architecture: str) -> None:
    encoder = SentenceEncoder.from_checkpoint(str(write_encoder(tmp_path / "e", architecture)), 1)
    assert encoder.max_tokens == MAX_TOKENS
    longest = [7] * (MAX_TOKENS - 2)
    assert encoder.embed(encoder.tokenize([longest])).shape == (1, SIZE)
    with pytest.raises(RequestError, match=f"has {MAX_TOKENS + 1} tokens; the model reads at most 56: split"):
        encoder.tokenize([[*longest, 7]])


@pytest.mark.parametrize("architecture", ["xlm-roberta", "mpnet"])
def test_positions_bound_the_length_whatever_the_settings_say(tmp_path: Path, architecture: str) -> None:
    """These begin behind the padding's position: 65 usable ones, though the configuration names more."""
    folder = write_encoder(tmp_path / "e", architecture)
    change_json(folder / "sentence_bert_config.json", max_seq_length=500)
    encoder = SentenceEncoder.from_checkpoint(str(folder), 1)
    assert encoder.max_tokens == 64
    assert np.isfinite(encoder.embed(encoder.tokenize([[7] * 62]))).all()


@pytest.mark.parametrize(
    "text", [" ", "\u200b", "\x00", "\ufeff", "\ud83c\udf89", "a" * 20, "\u202eabc", "é́́"]
)
@pytest.mark.parametrize("architecture", ["xlm-roberta", "modernbert"])
def test_odd_texts_have_a_vector(odd: dict[str, SentenceEncoder], architecture: str, text: str) -> None:
    encoder = odd[architecture]
    text = text.encode("utf-16", "surrogatepass").decode("utf-16")
    assert np.isfinite(encoder.embed(encoder.tokenize([text]))).all()


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> dict[str, SentenceEncoder]:
    root = tmp_path_factory.mktemp("odd")
    return {
        name: SentenceEncoder.from_checkpoint(str(write_encoder(root / name, name)), 1)
        for name in ("xlm-roberta", "modernbert")
    }


def test_a_lone_surrogate_is_refused(odd: dict[str, SentenceEncoder]) -> None:
    with pytest.raises(RequestError, match="not valid Unicode"):
        odd["xlm-roberta"].tokenize(["\ud800"])


def test_tokenizes_in_several_threads(odd: dict[str, SentenceEncoder]) -> None:
    encoder = odd["modernbert"]
    expected = encoder.tokenize(TEXTS)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: encoder.tokenize(TEXTS), range(40)))
    assert all(each == expected for each in found)


@pytest.mark.parametrize("pooling", ["mean", "cls", "lasttoken"])
def test_a_folder_without_modules_pools_as_it_is_told(tmp_path: Path, pooling: str) -> None:
    folder = write_transformer(tmp_path / "bare", "xlm-roberta")
    found = ours(folder, pooling=pooling)
    model, tokenizer = AutoModel.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    for text, vector in zip(TEXTS, found, strict=True):
        with torch.no_grad():
            (hidden,) = model(**tokenizer(text, return_tensors="pt")).last_hidden_state
        expected = {"mean": hidden.mean(0), "cls": hidden[0], "lasttoken": hidden[-1]}[pooling]
        np.testing.assert_allclose(vector, expected.numpy(), atol=1e-5)


def test_a_folder_without_modules_needs_a_pooling(tmp_path: Path) -> None:
    folder = write_transformer(tmp_path / "bare", "mpnet")
    with pytest.raises(CheckpointError, match="has no modules.json.* give `pooling`, such as mean"):
        SentenceEncoder.from_checkpoint(str(folder))


def test_half_precision_is_computed_in_float32(tmp_path: Path) -> None:
    folder = write_encoder(tmp_path / "e", "mpnet")
    path = folder / "model.safetensors"
    save_file({name: value.half() for name, value in load_file(path).items()}, path, {"format": "pt"})
    change_json(folder / "config.json", dtype="float16")
    expected = librarys(folder, convert_to_numpy=False)
    exact = SentenceTransformer(str(folder), device="cpu", model_kwargs={"dtype": torch.float32}).encode(
        TEXTS
    )
    np.testing.assert_allclose(ours(folder), exact, atol=1e-5)
    np.testing.assert_allclose(ours(folder), torch.stack(expected).float().numpy(), atol=1e-2)


def test_sharded_weights(tmp_path: Path) -> None:
    folder = write_encoder(tmp_path / "e", "mpnet")
    expected = librarys(folder)
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    halves = {"model-1.safetensors": names[::2], "model-2.safetensors": names[1::2]}
    for file, part in halves.items():
        save_file({name: tensors[name] for name in part}, folder / file, {"format": "pt"})
    index = {name: file for file, part in halves.items() for name in part}
    change_json(folder / "model.safetensors.index.json", metadata={"total_size": 1}, weight_map=index)
    np.testing.assert_allclose(ours(folder), expected, atol=1e-5)
    (folder / "model-2.safetensors").unlink()
    with pytest.raises(CheckpointError, match="names 'model-2.safetensors', which is missing"):
        ours(folder)


def _drop_a_layer(folder: Path) -> None:
    path = folder / "model.safetensors"
    kept = {name: value for name, value in load_file(path).items() if "layer.1." not in name}
    save_file(kept, path, {"format": "pt"})


def _put_nan(folder: Path) -> None:
    path = folder / "model.safetensors"
    tensors = load_file(path)
    name = next(name for name in tensors if name.endswith("word_embeddings.weight"))
    save_file({**tensors, name: torch.full_like(tensors[name], float("nan"))}, path, {"format": "pt"})


def _cut(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:200])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_drop_a_layer, r"have no 'encoder.layer.1.*missing\): fetch the encoder again"),
        (_put_nan, "give no numbers: fetch them again"),
        (_cut, r"cannot load .*SafetensorError"),
        (lambda folder: change_json(folder / "config.json", vocab_size=7), "cannot load .*[Mm]ismatch"),
        (lambda folder: change_json(folder / "config.json", model_type="no-such"), "cannot load .*no-such"),
        (lambda folder: (folder / "tokenizer.json").write_text("{}"), "cannot load"),
    ],
)
def test_what_the_library_loads_only_in_part_is_refused(
    tmp_path: Path, damage: Callable[[Path], object], message: str
) -> None:
    folder = write_encoder(tmp_path / "e", "xlm-roberta")
    damage(folder)
    with pytest.raises(CheckpointError, match=message):
        SentenceEncoder.from_checkpoint(str(folder), 1)


def test_a_tokenizer_of_another_model_is_refused(tmp_path: Path) -> None:
    folder = write_encoder(tmp_path / "e", "xlm-roberta")
    other = write_encoder(tmp_path / "o", "modernbert")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((other / name).read_bytes())
    with pytest.raises(CheckpointError, match="has ids up to 299, but the weights have 1"):
        SentenceEncoder.from_checkpoint(str(folder), 1)


def test_int8_is_refused(xlm: Path) -> None:
    with pytest.raises(CheckpointError, match=r"\(xlm-roberta\) runs on .* in float32: leave `dtype` out"):
        SentenceEncoder.from_checkpoint(str(xlm), is_int8=True)


def test_without_the_extra_the_refusal_names_it(xlm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with pytest.raises(CheckpointError, match=r"\(xlm-roberta\) needs .*pip install 'penstock\[encoders\]'"):
        SentenceEncoder.from_checkpoint(str(xlm))


def test_without_the_extra_bert_is_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_encoder(tmp_path / "e", "bert", pooling="cls")
    expected = librarys(folder)
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    np.testing.assert_allclose(ours(folder), expected, atol=1e-5)


SCRIPT = """
import socket, sys
def refuse(*args, **kwargs): raise SystemExit("touched the network")
socket.socket.connect = socket.getaddrinfo = refuse
from backend.encoder.model import SentenceEncoder
assert "torch" not in sys.modules
encoder = SentenceEncoder.from_checkpoint(sys.argv[1], 1)
print(encoder.embed(encoder.tokenize(["Hallo"])).shape, "torch" in sys.modules)
"""


@pytest.mark.parametrize("architecture", ["bert", "mpnet"])
def test_loads_without_network_and_torch_only_where_needed(tmp_path: Path, architecture: str) -> None:
    folder = write_encoder(tmp_path / "e", architecture)
    environment = {
        key: value for key, value in os.environ.items() if not key.startswith(("HF_", "TRANSFORMERS_"))
    }
    command = [sys.executable, "-c", SCRIPT, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=100)
    assert done.stdout == f"(1, {SIZE}) {architecture != 'bert'}\n", done.stderr


def test_code_of_a_checkpoint_is_never_run(tmp_path: Path) -> None:
    folder = write_encoder(tmp_path / "e", "mpnet")
    (folder / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Evil: pass\n")
    modules = json.loads((folder / "modules.json").read_text())
    modules[0]["type"] = "evil.Evil"
    (folder / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(CheckpointError, match="names the module 'evil.Evil'.*never run"):
        SentenceEncoder.from_checkpoint(str(folder))
    assert not (tmp_path / "ran").exists()
