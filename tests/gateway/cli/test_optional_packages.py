"""A missing package of an extra is named, a broken import of our own is not hidden."""

from __future__ import annotations

import sys

import pytest

from gateway.cli.main import main


@pytest.mark.parametrize("missing", ["openai", "rich", "httpx2"])
def test_eval_without_its_packages_names_the_extra(
    missing: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for module in list(sys.modules):
        if module.startswith("gateway.evaluation.") or module.partition(".")[0] == missing:
            package, _, name = module.rpartition(".")
            if hasattr(sys.modules.get(package), name):  # a second import would replace it there for good
                monkeypatch.setattr(sys.modules[package], name, sys.modules[module])
            monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, missing, None)
    assert main(["eval", "models"]) == 2
    assert f"`penstock eval` needs {missing}: pip install 'penstock[eval]'" in capsys.readouterr().err


@pytest.mark.parametrize("broken", ["gateway.evaluation.runner", "backend.pico.tasks.gone"])
def test_a_broken_import_of_our_own_is_not_a_missing_package(
    broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Finder:
        def find_spec(self, name: str, path: object = None, target: object = None) -> None:
            if name == "gateway.evaluation.command":
                raise ModuleNotFoundError(f"No module named {broken!r}", name=broken)

    monkeypatch.delitem(sys.modules, "gateway.evaluation.command", raising=False)
    monkeypatch.delattr("gateway.evaluation.command", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Finder(), *sys.meta_path])
    with pytest.raises(ModuleNotFoundError, match=broken):
        main(["eval", "models"])
