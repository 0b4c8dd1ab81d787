"""Each extra names its packages in code and in pyproject.toml, and the gateway starts without any of them."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from gateway.extras import PACKAGES, Extra, lack_of, lacks_of, require
from gateway.settings import SettingsError
from policies.document import EngineModel, ModelEntry, Policies
from policies.load import load_policies

ROOT = Path(__file__).resolve().parents[2]
WALK = """
import importlib, pkgutil, sys

for package in ("gateway", "cache", "router", "guardrails", "policies"):
    for found in pkgutil.walk_packages(importlib.import_module(package).__path__, package + "."):
        offline = found.name in {OFFLINE}
        if not offline and ".train" not in found.name and "__main__" not in found.name:
            if not found.name.startswith(("gateway.evaluation", "gateway.cli.try_")):
                importlib.import_module(found.name)
print(sorted({name.partition(".")[0] for name in sys.modules} & set({PACKAGES})))
"""
OFFLINE = ["gateway.cli.explain_cache", "gateway.cli.train_router", "gateway.cli.releases.registry"]
"""Commands that main refuses without their extras."""


IMPORTED_LATE: tuple[Extra, ...] = ("engine", "semantic", "eval", "mlflow")
"""The others are imported by modules of one provider, which are themselves imported late."""


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_pyproject_names_the_same_packages() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    distributions = packages_distributions()

    def names(requirements: list[str]) -> set[str]:
        return {normal(re.split(r"[\[<>=!~; ]", each, maxsplit=1)[0]) for each in requirements}

    for extra, packages in PACKAGES.items():
        brought = names(project["optional-dependencies"][extra])
        for name in packages:  # mlflow-skinny brings the module mlflow
            assert brought & {normal(each) for each in distributions[name.partition(".")[0]]}, extra
        assert not names(project["dependencies"]) & brought
    assert project["optional-dependencies"]["all"] == ["penstock[engine,semantic]"]


def test_no_module_of_the_gateway_imports_a_package_of_an_extra() -> None:
    packages = [name for extra in IMPORTED_LATE for name in PACKAGES[extra]]
    walk = WALK.replace("{OFFLINE}", repr(OFFLINE)).replace("{PACKAGES}", repr(packages))
    ended = subprocess.run([sys.executable, "-c", walk], cwd=ROOT, capture_output=True, text=True)
    assert ended.stdout == "[]\n", ended.stdout + ended.stderr


def test_all_is_there_with_the_extras_of_the_tests() -> None:
    assert lack_of(*PACKAGES) == ""
    require("this", ["engine", "semantic"])
    assert lacks_of(load_policies(ROOT / "policies" / "default")) == {}


def test_what_is_missing_is_named_with_one_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("numba", "llguidance", "faiss"):
        monkeypatch.setitem(sys.modules, name, None)
    assert lack_of("engine") == "needs numba: pip install 'penstock[engine]'"
    assert lack_of("eval") == ""
    with pytest.raises(SettingsError) as refused:
        require("this command", ["eval", "engine", "semantic"])
    assert str(refused.value) == (
        "this command needs numba and faiss: pip install 'penstock[engine,semantic]'"
    )
    lacks = lacks_of(load_policies(ROOT / "policies" / "default"))
    assert {key[1]: lack.split()[1] for key, lack in lacks.items()} == {
        "pico-small": "numba:",
        "pico-large": "numba:",
        "all-minilm-l6-v2": "faiss:",
    }


def test_a_gateway_to_engines_elsewhere_needs_none_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    for addresses, lacking in ([], 1), (["tls://engine:7600"], 0):
        engine = EngineModel(checkpoint="builtin:pico-small", addresses=addresses)
        assert len(lacks_of(Policies(models={"m": ModelEntry(engine=engine)}))) == lacking
