"""OLMo 2: norms after sublayers, and over all heads."""

from __future__ import annotations

from pathlib import Path

from backend.models.families import FAMILIES
from tests.backend.models.families.configs import read


def test_norms(tmp_path: Path) -> None:
    config = read(tmp_path, "Olmo2ForCausalLM")
    assert config.attention.qk_norm == "all" and config.windows == (None,) * 4
    assert not FAMILIES["Olmo2ForCausalLM"].names.norms_inputs_alone
