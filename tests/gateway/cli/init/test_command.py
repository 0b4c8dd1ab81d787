"""Every combination of flags gives a folder that passes `check`; keys are in no file, no file is lost."""

from __future__ import annotations

import io
import itertools
import os
import sys
from pathlib import Path

import pytest

from gateway.admin.policy_check import load_checked
from gateway.auth import KeyRing
from gateway.cli.init.plan import CACHES, GUARDS
from gateway.cli.main import main
from policies.load import load_folder

MODELS = (
    [],
    ["--model", "own=builtin:pico-small"],
    ["--upstream", "gpt=openai#gpt-4o-mini"],
    [
        "--upstream",
        "123=http://127.0.0.1:9/v1",
        "--upstream",
        "yes=anthropic#claude",
        "--key-env",
        "yes=MY_KEY",
    ],
    [
        "--embedded",
        "--upstream",
        "team/gpt=https://h.example/v1#org/model:free",
        "--model",
        "a=builtin:pico-draft",
    ],
)
TENANTS = ([], ["--tenant", "research", "--tenant", "null=key-0a1b2c3d"])


@pytest.mark.parametrize(("cache", "guardrails"), [*itertools.product(CACHES, GUARDS)])
def test_every_combination_passes_check(cache: str, guardrails: str, tmp_path: Path) -> None:
    combinations = [*itertools.product(MODELS, TENANTS)]
    if guardrails == "strict":  # each check loads the encoder: all models and tenants once, over the caches
        combinations = combinations[3 * CACHES.index(cache) :: 5]
    for number, (models, tenants) in enumerate(combinations):
        folder = tmp_path / str(number)
        flags = [*models, *tenants, "--cache", cache, "--guardrails", guardrails]
        assert main(["init", str(folder), *flags]) == 0, flags
        loaded = load_folder(folder)  # `init` has checked it
        assert loaded.policies.probes and not loaded.warnings, flags
        assert loaded.policies.cache.mode == cache and set(loaded.policies.routes) == {"auto"}
        assert all(path.stat().st_mode & 0o777 == 0o644 for path in folder.iterdir())
    if guardrails != "strict":
        load_checked(folder)


def test_keys_are_shown_and_written_nowhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "new" / "policies"
    assert main(["init", str(folder), "--tenant", "research", "--upstream", "gpt=openai"]) == 0
    out = capsys.readouterr().out
    key = next(word for word in out.split() if word.startswith("sk-"))
    written = "".join(path.read_text() for path in folder.iterdir())
    assert key not in written and "sk-" not in written and "api_key_env: OPENAI_API_KEY" in written
    tenants = load_checked(folder).policies.tenants
    ids = {each: name for name, tenant in tenants.items() for each in tenant.keys}
    assert KeyRing([key], ids).identify(f"Bearer {key}").tenant == "research"
    assert f"penstock serve --policies {folder}" in out and "export OPENAI_API_KEY=" in out


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--model", "x=/nowhere"], "models.x.engine.checkpoint: checkpoint '/nowhere' is not a folder"),
        (["--model", "x"], "--model must have the form NAME=CHECKPOINT_DIR"),
        (["--model", "a b=/x"], "the name must be of letters"),
        (["--upstream", "x=https://me:SECRET@h/v1"], "without user, password or query"),
        (["--upstream", "x=https://h/v1?key=SECRET"], "without user, password or query"),
        (["--upstream", "x=SECRET"], "neither a URL nor the name of a known service"),
        (["--upstream", "x=opnai"], "did you mean 'openai'?"),
        (["--upstream", "x=https://h:0/v1"], "has a port that is not"),
        (["--upstream", "x=openai", "--key-env", "x=sk-SECRET"], "never the key itself"),
        (
            ["--upstream", "x=openai", "--key-env", "SECRET"],
            "names 'SECRET', which is the name of no --upstream",
        ),
        (["--upstream", "x=openai", "--key-env", "y=A"], "names 'y', which is the name of no --upstream"),
        (["--tenant", "sk-SECRET"], "never a key"),
        (["--tenant", "a=sk-SECRET"], "=key-XXXXXXXX"),
        (["--tenant", "a", "--tenant", "a"], "two of the tenant 'a'"),
        (["--tenant", "a=key-00000000", "--tenant", "b=key-00000000"], "two of the key"),
        (["--no-embedded"], "there is no model"),
        (["--model", "auto=builtin:pico-small"], "two of the model 'auto'"),
        (["--embedded", "--model", "pico-small=builtin:pico-small"], "two of the model 'pico-small'"),
    ],
)
def test_refused_without_a_trace(
    flags: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["init", str(tmp_path / "new"), *flags]) == 2
    said = capsys.readouterr().err
    assert said.startswith("penstock: ") and words in said
    assert "SECRET" not in said.replace("names 'SECRET', which", "")
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine")
    (tmp_path / "file").write_text("mine")
    os.symlink(tmp_path / "nowhere", tmp_path / "link")
    for name in ("full", "file", "link"):
        assert main(["init", str(tmp_path / name), "--yes"]) == 2
        assert f"{name}'" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "full", "link", "mine.txt"]
    (tmp_path / "empty").mkdir()
    assert main(["init", str(tmp_path / "empty"), "--yes"]) == 0
    assert main(["init", str(tmp_path / "file" / "x"), "--yes"]) == 2
    assert "cannot be made: " in capsys.readouterr().err


class Person(io.StringIO):
    """Types these lines on a terminal."""

    def isatty(self) -> bool:
        return True


def test_questions_on_a_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = (
        "maybe\nno\nx=/nowhere\n\ngpt=opnai\ngpt=openai#gpt-4o-mini\nsk-SECRET\nMY_KEY\n\n\nall\nsemantic\n\n"
    )
    monkeypatch.setattr(sys, "stdin", Person(lines))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert main(["init", str(tmp_path / "a")]) == 0
    shown = capsys.readouterr().out
    for words in (
        "answer yes or no",
        "not a folder",
        "did you mean 'openai'?",
        "never the key",
        "answer one of",
    ):
        assert words in shown
    assert "SECRET" not in shown
    policies = load_checked(tmp_path / "a").policies
    assert set(policies.models) == {"gpt", "all-minilm-l6-v2"} and policies.cache.mode == "semantic"
    gpt = policies.models["gpt"].upstream
    assert gpt is not None and gpt.api_key_env == "MY_KEY"
    monkeypatch.setattr(sys, "stdin", Person("yes\n"))
    assert main(["init", str(tmp_path / "b")]) == 1
    assert "nothing is written" in capsys.readouterr().err and not (tmp_path / "b").exists()
