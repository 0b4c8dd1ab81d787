from __future__ import annotations

from dataclasses import replace

import pytest

from backend.encoder.checkpoint import BUILTIN, read_checkpoint
from backend.encoder.shape import shape_of
from backend.errors import CheckpointError


def test_reads_the_dimensions_of_the_encoder_that_ships() -> None:
    found = shape_of(read_checkpoint(BUILTIN))
    assert (found.num_layers, found.num_heads, found.hidden_size) == (6, 12, 384)
    assert found.vocab_size == 30522 and found.layer_norm_eps == 1e-12


@pytest.mark.parametrize("broken", [{}, {"num_hidden_layers": None}, {"num_hidden_layers": "many"}])
def test_names_the_file_that_lacks_one(broken: dict[str, object]) -> None:
    checkpoint = read_checkpoint(BUILTIN)
    with pytest.raises(CheckpointError, match=r"config\.json.*fetch it again"):
        shape_of(replace(checkpoint, config=broken))
