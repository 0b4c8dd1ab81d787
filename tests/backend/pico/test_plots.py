"""Every plot is drawn from the results, small and reproducible."""

from __future__ import annotations

from pathlib import Path

from backend.pico.plots import DRAWN, write_plots
from tests.backend.pico.report_data import results

MAX_BYTES = 60_000


def test_plots_are_small_and_reproducible(tmp_path: Path) -> None:
    written = write_plots(results(), tmp_path / "a")
    assert [path.stem for path in written] == list(DRAWN)
    again = write_plots(results(), tmp_path / "b")
    for first, second in zip(written, again, strict=True):
        assert first.read_bytes() == second.read_bytes()
        assert first.stat().st_size < MAX_BYTES
    text = written[0].read_text(encoding="utf-8")
    assert "pico-large, thinking" in text and "right answers, %" in text


def test_what_was_not_measured_is_not_drawn(tmp_path: Path) -> None:
    found = results()
    del found["acceptance"], found["small"]
    assert [path.stem for path in write_plots(found, tmp_path)] == ["load"]
