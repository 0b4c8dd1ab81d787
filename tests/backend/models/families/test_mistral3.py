"""Mistral Small 3 and Ministral 3 with images: the two decoders that they have."""

from __future__ import annotations

from pathlib import Path

import pytest

from backend.errors import CheckpointError
from tests.backend.models.families.configs import SHAPE, read

NAME = "Mistral3ForConditionalGeneration"


@pytest.mark.parametrize(("model_type", "grows"), [("mistral", False), ("ministral3", True), (None, False)])
def test_decoders(tmp_path: Path, model_type: str | None, grows: bool) -> None:
    given = {} if model_type is None else {"model_type": model_type}
    config = read(tmp_path, NAME, text_config={**SHAPE, **given})
    assert (config.attention.query_growth is not None) == grows


def test_another_decoder(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="'mistral' and 'ministral3'"):
        read(tmp_path, NAME, text_config={**SHAPE, "model_type": "llama"})
