"""`python -m tests`: what failed runs once more, and only what passes alone is forgiven, by name."""

from __future__ import annotations

from pathlib import Path

import pytest

import tests.__main__ as run

UNSTEADY = """
from pathlib import Path

def test_passes(): pass

def test_unsteady():
    mark = Path(__file__).with_name("has_run")
    has_run = mark.exists()
    mark.write_text("")
    assert has_run
"""
BROKEN = "def test_broken(): assert False\n"


def verdict(folder: Path, monkeypatch: pytest.MonkeyPatch, *texts: str) -> tuple[int, str]:
    """The exit code and the first log of a half with these test files."""
    for number, text in enumerate(texts):
        (folder / f"test_{number}.py").write_text(text)
    monkeypatch.setattr(run, "CACHE", folder / "cache")
    half = run.Half("half", ["-q", str(folder)], folder / "log")
    half.process.wait(60)
    return half.verdict(), (folder / "log").read_text()


def test_one_that_passes_alone_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    code, log = verdict(tmp_path, monkeypatch, UNSTEADY)
    shown = capfd.readouterr().out
    assert "1 failed, 1 passed" in log and "1 passed" in shown and code == 0
    assert "UNSTEADY test_0.py::test_unsteady: failed beside other work, passed alone" in shown


def test_one_that_fails_again_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    code, _ = verdict(tmp_path, monkeypatch, UNSTEADY, BROKEN)
    shown = capfd.readouterr().out
    assert code == 1 and "::test_broken" in shown
    assert shown.count("UNSTEADY") == 1


@pytest.mark.parametrize("text", [BROKEN.replace("broken", "{}") * 6, "import not_there\n" * 2, "def"])
def test_many_failures_and_broken_files_are_no_chance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    code, _ = verdict(tmp_path, monkeypatch, text.format(*"abcdef"))
    assert code != 0
