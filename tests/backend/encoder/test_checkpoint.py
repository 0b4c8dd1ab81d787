"""The digests of the built-in encoder."""

from __future__ import annotations

from pathlib import Path

import pytest

from backend.encoder import model
from backend.encoder.checkpoint import BUILTIN, packaged_digests, resolve
from backend.encoder.model import SentenceEncoder
from backend.errors import CheckpointError


def test_the_packages_record_covers_the_weights() -> None:
    names = {Path(path).relative_to(resolve(BUILTIN)).as_posix() for path in packaged_digests()}
    assert {"model.safetensors", "tokenizer.json", "config.json", "1_Pooling/config.json"} <= names


def test_other_weights_than_recorded_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = dict.fromkeys(packaged_digests(), "0" * 64)
    monkeypatch.setattr(model, "packaged_digests", lambda: wrong)
    with pytest.raises(CheckpointError, match="has SHA-256 [0-9a-f]{64}, but 0{64} is expected"):
        SentenceEncoder.from_checkpoint(BUILTIN)
