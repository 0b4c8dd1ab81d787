"""Refusals of folders that are broken, unknown, or could run code: by name, before anything is loaded."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from backend.encoder.checkpoint import Reading, read_checkpoint
from backend.encoder.identity import encoder_digest
from backend.errors import CheckpointError
from tests.backend.encoder.checkpoints import change_json, write_encoder

LIBRARY = "sentence_transformers.models."


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_encoder(tmp_path_factory.mktemp("original") / "e", "mpnet", dense=8)


@pytest.fixture
def folder(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "e"))


def modules(*entries: tuple[str, str]) -> Callable[[Path], object]:
    """Write modules.json with these types and paths."""
    listed = [
        {"idx": i, "name": str(i), "path": path, "type": kind} for i, (kind, path) in enumerate(entries)
    ]
    return lambda folder: (folder / "modules.json").write_text(json.dumps(listed))


def change(name: str, **values: object) -> Callable[[Path], object]:
    return lambda folder: change_json(folder / name, **values)


def write(name: str, text: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_text(text)


def only_pickled(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def dense_pickled(folder: Path) -> None:
    (folder / "2_Dense" / "model.safetensors").rename(folder / "2_Dense" / "pytorch_model.bin")


TRANSFORMER = (f"{LIBRARY}Transformer", "")
POOLING = (f"{LIBRARY}Pooling", "1_Pooling")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            only_pickled,
            "only as 'pytorch_model.bin', a format that can run code .*convert them to safetensors",
        ),
        (dense_pickled, "2_Dense' holds its weights only as 'pytorch_model.bin'"),
        (lambda folder: (folder / "model.safetensors").unlink(), "model.safetensors' is missing"),
        (
            lambda folder: (folder / "tokenizer.json").unlink(),
            "tokenizer.json' is missing: save the tokenizer",
        ),
        (lambda folder: (folder / "config.json").unlink(), "config.json' is missing or not JSON"),
        (lambda folder: shutil.rmtree(folder / "1_Pooling"), "1_Pooling/config.json' is missing"),
        (write("config.json", "[]"), "config.json' is not a JSON object"),
        (write("modules.json", "{}"), "modules.json' is not a JSON list"),
        (write("modules.json", "[" * 100_000), "modules.json' is missing or not JSON"),
        (write("modules.json", '["x"]'), "holds 'x', which is no module"),
        (write("modules.json", "[]"), "has the modules : Transformer and Pooling are served"),
        (write("config.json", "\x00"), "not JSON"),
        (modules(TRANSFORMER), "has the modules Transformer: Transformer and Pooling"),
        (modules(POOLING, TRANSFORMER), "has the modules Pooling, Transformer"),
        (modules(TRANSFORMER, POOLING, POOLING), "Transformer, Pooling, Pooling"),
        (modules(TRANSFORMER, (f"{LIBRARY}Pooling", "../1_Pooling")), "'../1_Pooling', which is outside"),
        (modules(TRANSFORMER, (f"{LIBRARY}Pooling", "/etc")), "names the folder '/etc', which is outside"),
        (modules(TRANSFORMER, POOLING, ("evil.Normalize", "2")), "'evil.Normalize'.*never run"),
        (
            modules(TRANSFORMER, (f"{LIBRARY}LSTM", "1")),
            "names the module 'sentence_transformers.models.LSTM'",
        ),
        (modules((f"{LIBRARY}CLIPModel", "")), "names the module 'sentence_transformers.models.CLIPModel'"),
        (
            change("1_Pooling/config.json", pooling_mode="median"),
            "names the pooling 'median': known are cls, max",
        ),
        (change("1_Pooling/config.json", pooling_mode=[]), "names no pooling"),
        (change("1_Pooling/config.json", pooling_mode={"a": 1}), "names no pooling"),
        (change("2_Dense/config.json", activation_function="os.system"), "the activation 'os.system'"),
        (change("2_Dense/config.json", out_features=0), "has out_features 0, not a whole number"),
        (
            change("3_Normalize/config.json", module_input_name="token_embeddings"),
            "normalises 'token_embeddings'",
        ),
        (change("config.json", auto_map={"AutoModel": "evil.Model"}), "needs code of its own .auto_map."),
        (change("tokenizer_config.json", auto_map={"AutoTokenizer": ["e.T", None]}), "needs code of its own"),
        (change("config.json", model_type=None), "names no model_type"),
        (change("config.json", hidden_size="wide"), None),  # the dense layer decides about the size
        (change("adapter_config.json", peft_type="LORA"), "adapters of encoders are not served"),
        (change("sentence_bert_config.json", max_seq_length=0), "has max_seq_length 0, not a whole number"),
        (change("sentence_bert_config.json", max_seq_length="8"), "has max_seq_length '8'"),
        (change("sentence_bert_config.json", model_args={"device_map": "auto"}), "sets 'model_args'"),
        (
            change("sentence_bert_config.json", transformer_task="fill-mask"),
            "not of an encoder of plain text",
        ),
        (
            change("sentence_bert_config.json", modality_config={"text": {"method": "save_pretrained"}}),
            "not of an encoder of plain text",
        ),
        (change("config_sentence_transformers.json", model_type="CrossEncoder"), "is of a CrossEncoder"),
        (change("config_sentence_transformers.json", truncate_dim=-1), "has truncate_dim -1"),
        (
            change("config_sentence_transformers.json", default_prompt_name="q"),
            "no prompt named 'q'; it has: ",
        ),
        (
            change("config_sentence_transformers.json", prompts={"q": 3}, default_prompt_name="q"),
            "is no text",
        ),
        (
            change("config_sentence_transformers.json", prompts=[], default_prompt_name="q"),
            "no prompt named 'q'",
        ),
    ],
)
def test_broken_and_hostile_folders(
    folder: Path, damage: Callable[[Path], object], message: str | None
) -> None:
    damage(folder)
    if message is None:
        assert read_checkpoint(str(folder)).output_size == 8
        return
    with pytest.raises(CheckpointError, match=message):
        read_checkpoint(str(folder))


@pytest.mark.parametrize(
    ("reading", "message"),
    [
        ({"prompt_name": "qeury"}, "has no prompt named 'qeury'; it has: "),
        ({"prompt_name": "query", "prompt": "x"}, "exclude each other"),
        ({"pooling": "mean"}, "modules.json' says how .* leave `pooling` out"),
    ],
)
def test_what_an_operator_adds_must_fit(folder: Path, reading: dict[str, str], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        read_checkpoint(str(folder), Reading(**reading))


def test_a_missing_folder_and_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for name in ("none", "file"):
        with pytest.raises(CheckpointError, match="is not a folder: give the one that holds config.json"):
            read_checkpoint(str(tmp_path / name))


@pytest.mark.parametrize(
    ("flags", "modes"),
    [
        ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}, ("mean",)),
        ({"pooling_mode_cls_token": True}, ("cls",)),
        ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True}, ("cls", "mean")),
        ({"pooling_mode_weightedmean_tokens": True}, ("weightedmean",)),
        ({"pooling_mode_lasttoken": True}, ("lasttoken",)),
        ({"pooling_mode_mean_sqrt_len_tokens": True}, ("mean_sqrt_len_tokens",)),
    ],
)
def test_older_settings_of_pooling(folder: Path, flags: dict[str, Any], modes: tuple[str, ...]) -> None:
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": 32, **flags}))
    assert read_checkpoint(str(folder)).modules.pooling == modes


def test_the_digest_is_of_what_decides_about_vectors(folder: Path) -> None:
    digest = encoder_digest(str(folder))
    (folder / "README.md").write_text("other")
    change_json(folder / "config.json", transformers_version="9")
    change_json(folder / "sentence_bert_config.json", max_seq_length=7)
    assert encoder_digest(str(folder)) == digest
    assert encoder_digest(str(folder), Reading(prompt="query: ")) != digest
    data = bytearray((folder / "2_Dense" / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (folder / "2_Dense" / "model.safetensors").write_bytes(data)
    assert encoder_digest(str(folder)) != digest
