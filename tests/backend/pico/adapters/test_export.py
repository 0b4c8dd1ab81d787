"""Export writes all files, and refuses adapters that are too large."""

from __future__ import annotations

from pathlib import Path

import pytest

from backend.pico.adapters import export
from backend.pico.adapters.train import open_run

# PEFT reads a transformers property by its deprecated name.
pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing.:FutureWarning")


def test_export_writes_a_folder(tiny_small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = open_run(tmp_path, "formal", tiny_small, 0)
    weights = export.export(run, tmp_path / "formal")
    names = {path.name for path in weights.parent.iterdir()}
    assert names == {"adapter_config.json", "adapter_model.safetensors", "README.md"}
    assert "rank 4" in (weights.parent / "README.md").read_text().lower()
    monkeypatch.setattr(export, "MAX_BYTES", 10)
    with pytest.raises(ValueError, match="more than 10; choose a smaller rank"):
        export.export(run, tmp_path / "formal")
