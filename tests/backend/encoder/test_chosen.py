from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from backend.encoder.checkpoint import BUILTIN, Reading
from backend.encoder.chosen import SHIPPED, ChosenEncoder, chosen_encoder, parse_with_encoder
from backend.errors import CheckpointError
from tests.backend.encoder.checkpoints import TEXTS, write_encoder


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("own") / "e"
    return str(write_encoder(folder, "xlm-roberta", normalize=False, prompts={"query": "query: "}))


def parsed(*arguments: str) -> ChosenEncoder:
    return parse_with_encoder(argparse.ArgumentParser(), arguments)[1]


def test_by_default_it_is_the_one_that_ships(tmp_path: Path) -> None:
    assert parsed() == SHIPPED and SHIPPED.is_builtin
    assert SHIPPED.card()["name"] == BUILTIN
    assert SHIPPED.folder(tmp_path) == tmp_path and SHIPPED.folder(None) is None


def test_vectors_are_the_librarys_of_length_1(own: str) -> None:
    chosen = parsed("--encoder", own, "--prompt-name", "query")
    expected = SentenceTransformer(own, device="cpu").encode(TEXTS, prompt_name="query")
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(chosen.embed(TEXTS), expected, atol=1e-5)


def test_the_beginning_stands_for_a_text_that_is_too_long(own: str) -> None:
    long, short = parsed("--encoder", own).embed(["word " * 200, "word " * 6])
    assert float(long @ short) > 0.8


def test_the_card_and_the_folder_are_its_own(own: str, tmp_path: Path) -> None:
    plain = parsed("--encoder", own, "--languages", "de,fr")
    asked = parsed("--encoder", own, "--prompt", "query: ")
    card = plain.card()
    assert (card["name"], card["languages"]) == ("e", ["de", "fr"])
    folders = [each.folder(tmp_path) for each in (plain, asked)]
    assert all(each is not None and each.is_dir() and each.parent == tmp_path for each in folders)
    assert folders[0] != folders[1]
    assert not ChosenEncoder(BUILTIN, Reading(prompt="x")).is_builtin


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--encoder", "/none"], "is not a folder"),
        (["--languages", "de,english"], "must be codes of ISO 639-1, such as en,de"),
        (["--languages", ""], "must be codes of ISO 639-1"),
        (["--prompt", "a", "--prompt-name", "b"], "exclude each other"),
        (["--pooling", "mean"], "leave `pooling` out"),
    ],
)
def test_what_cannot_be_used(flags: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parsed(*flags)
    assert message in capsys.readouterr().err
    options = {"encoder": BUILTIN, "languages": "en", "prompt": None, "prompt_name": None, "pooling": None}
    given = dict(zip((flag[2:].replace("-", "_") for flag in flags[::2]), flags[1::2], strict=True))
    with pytest.raises(CheckpointError, match=message):
        chosen_encoder(argparse.Namespace(**{**options, **given}))
