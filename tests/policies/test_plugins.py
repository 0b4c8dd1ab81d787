"""Names that packages add: found by their metadata, imported when used, broken ones named with a remedy."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from policies.errors import PolicyError
from policies.load import load_policies
from policies.plugins import Names, PluginError, load
from tests.plugins.install import write_metadata

PROVIDERS = "penstock.providers"
Add = Callable[..., None]


@pytest.fixture
def add(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Add:
    """Installs a package with one entry point, whose module `name` has this source."""

    def add(package: str, entry: str, value: str, source: str | None = None) -> None:
        folder = tmp_path / "site" / package
        write_metadata(folder, package, "1.2", {PROVIDERS: {entry: value}})
        module = value.partition(":")[0]
        if source is not None:
            (folder / f"{module}.py").write_text(source)
        monkeypatch.syspath_prepend(str(folder))
        monkeypatch.delitem(sys.modules, module, raising=False)

    return add


def test_what_a_package_adds_is_loaded_when_it_is_used(add: Add) -> None:
    add("acme", "acme", "acme_plugin:NAME", "NAME = 'hello'\n")
    assert Names(PROVIDERS, ("openai",)).fault("acme") == ""
    assert "acme_plugin" not in sys.modules
    assert load(PROVIDERS, "acme", str) == "hello"


def test_built_in_names_need_no_look_at_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("policies.plugins.entry_points", None)
    assert Names(PROVIDERS, ("openai",)).fault("openai") == ""


def test_the_entry_points_of_this_package_add_nothing(add: Add) -> None:
    add("penstock", "old", "nothing:here")
    assert Names(PROVIDERS, ("openai",)).all() == ["openai"]


def test_a_misspelt_name_gives_the_nearest_also_of_packages(add: Add, tmp_path: Path) -> None:
    add("acme", "acme", "acme_plugin:NAME")
    (tmp_path / "a.yaml").write_text("models:\n  a: {upstream: {api: acmee, base_url: 'http://h/v1'}}\n")
    with pytest.raises(PolicyError) as caught:
        load_policies(tmp_path)
    (problem,) = caught.value.problems
    assert problem.place.line == 2
    assert problem.message == (
        "models.a.upstream.api must be one of anthropic, bedrock, gemini, openai, acme, not 'acmee'; "
        "did you mean 'acme'?"
    )


@pytest.mark.parametrize(
    ("value", "source", "message"),
    [
        ("acme_gone:NAME", None, r"acme 1.2, which adds .*'acme', cannot be used: ModuleNotFoundError: .*"),
        ("acme_none:NAME", "", r"AttributeError: .*; install a version of it that works, or remove 'acme'"),
        ("acme_raises:NAME", "raise OSError('no disk')", r"cannot be used: OSError: no disk"),
        ("acme_type:NAME", "NAME = 3", r"acme_type:NAME is not of the type builtins.str"),
    ],
)
def test_a_broken_package_is_named(add: Add, value: str, source: str | None, message: str) -> None:
    add("acme", "acme", value, source)
    with pytest.raises(PluginError, match=message):
        load(PROVIDERS, "acme", str)


def test_a_name_that_no_or_two_packages_add(add: Add) -> None:
    with pytest.raises(PluginError, match="'acme' is no provider API; no installed package adds one"):
        load(PROVIDERS, "acme", str)
    add("acme", "acme", "acme_plugin:NAME")
    add("other", "acme", "other_plugin:NAME")
    with pytest.raises(PluginError, match=r"acme 1\.2 and other 1\.2 both add .* 'acme'; uninstall one"):
        load(PROVIDERS, "acme", str)
