"""The recipe's stages exist; finished ones are skipped, and a failure stops the recipe."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from backend.pico import recipe
from backend.pico.adapters.specs import SPECS
from backend.pico.drafters.train import DRAFTERS
from backend.pico.recipe import DONE, STAGES, Stage
from tests.backend.pico.processes import wait_until_gone


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    found: list[list[str]] = []
    monkeypatch.setattr(subprocess, "run", lambda command, **_options: found.append(command))
    return found


def test_stages_call_modules_that_exist_and_cover_the_family() -> None:
    names = {stage.name for stage in STAGES}
    assert len(names) == len(STAGES)
    for stage in STAGES:
        assert callable(import_module(f"backend.pico.{stage.module}").main)
    assert {f"adapter-{name}" for name in SPECS} | {f"drafter-{name}" for name in DRAFTERS} <= names


def test_parents_come_before_their_stages() -> None:
    seen: set[str] = set()
    for stage in STAGES:
        for argument in stage.arguments:
            if argument.startswith("{runs}/"):
                assert argument.removeprefix("{runs}/") in seen, stage
        seen.add(stage.name)


def test_finished_stages_are_skipped(tmp_path: Path, commands: list[list[str]]) -> None:
    stages = (Stage("first", "train", ("--run-dir", "{own}")), Stage("second", "export", ("{runs}/first",)))
    (tmp_path / "first").mkdir()
    (tmp_path / "first" / DONE).touch()
    recipe.run(tmp_path, 2, "cpu", stages)
    assert commands == [[sys.executable, "-m", "backend.pico.export", f"{tmp_path}/first"]]
    recipe.run(tmp_path, 2, "cpu", stages)
    assert len(commands) == 1


def test_the_trainers_take_a_device_and_a_number_of_workers(
    tmp_path: Path, commands: list[list[str]]
) -> None:
    modules = ("train", "export", "drafters.train", "adapters.train", "adapters.export")
    recipe.run(tmp_path, 8, "cuda", [Stage(name, name, ()) for name in modules])
    told = ["--workers", "8", "--device", "cuda"]
    assert [command[3:] for command in commands] == [told, [], told, told, []]


def test_a_stage_ends_with_the_recipe(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text("import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(600)\n")
    script = (
        "import sys; from pathlib import Path; from backend.pico import recipe\n"
        "recipe.sys.executable = sys.argv[1]\n"
        "recipe.run(Path(sys.argv[2]), 1, 'cpu', [recipe.Stage('slow', 'train', ())])\n"
    )
    interpreter = tmp_path / "python"
    interpreter.write_text(f"#!/bin/sh\nexec {sys.executable} {tmp_path}/slow.py\n")
    interpreter.chmod(0o755)
    command = [sys.executable, "-c", script, str(interpreter), str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as killed:
        assert killed.stdout is not None
        stage = int(killed.stdout.readline())
        killed.kill()
    wait_until_gone(stage)


def test_a_failing_stage_stops_the_recipe_and_stays_unfinished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(command: list[str], **_options: object) -> None:
        raise subprocess.CalledProcessError(1, command)

    monkeypatch.setattr(subprocess, "run", fail)
    with pytest.raises(subprocess.CalledProcessError):
        recipe.run(tmp_path, 1, "cpu", (Stage("first", "train", ()),))
    assert not (tmp_path / "first" / DONE).exists()
