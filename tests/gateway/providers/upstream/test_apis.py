"""The table of APIs: complete, registered, imported lazily; what packages add fails with their name."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from gateway.providers.upstream.apis import APIS, open_api
from gateway.providers.upstream.translated import TranslatingProvider
from gateway.settings import SettingsError
from policies import services
from policies.upstream import UpstreamModel
from tests.plugins.install import write_metadata

ROOT = Path(__file__).parents[4]
UPSTREAM = UpstreamModel(base_url="http://127.0.0.1:1/v1")


def test_every_api_is_known_to_the_policies_and_registered() -> None:
    assert APIS.keys() == services.APIS.keys()
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    entries = groups["penstock.providers"]
    assert {name: EntryPoint(name, value, "").load() for name, value in entries.items()} == APIS


@pytest.mark.parametrize(
    ("name", "span_name"),
    [("openai", "openai"), ("anthropic", "anthropic"), ("gemini", "gcp.gemini"), ("bedrock", "aws.bedrock")],
)
async def test_an_api_has_its_provider_and_the_name_for_spans(name: str, span_name: str) -> None:
    api = open_api("m", name)
    provider = api.provider("m", UPSTREAM, "key", "")
    assert isinstance(provider, TranslatingProvider) == (name != "openai")
    assert api.span_name == span_name
    await provider.close()


def test_nothing_of_an_api_is_imported_before_it_is_used() -> None:
    code = (
        "import sys, gateway.wiring.app\n"
        "print([name for name in sys.modules if name.startswith('gateway.providers.upstream.') and "
        "name.split('.')[3] in ('anthropic', 'bedrock', 'gemini') or name in ('torch', 'botocore')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "botocore", None)
    for name in [name for name in sys.modules if "upstream.bedrock" in name or name.startswith("botocore.")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(SettingsError, match=r"model 'm' needs botocore: pip install 'penstock\[bedrock\]'"):
        open_api("m", "bedrock")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("API = 3", "is not of the type gateway.providers.upstream.apis.ApiSpec"),
        ("API = ApiSpec('acme_gone:X')", "ModuleNotFoundError"),
        ("def make(*_): raise OSError('no key-of-acme')\nAPI = ApiSpec(make)", r"OSError: no \*\*\*;"),
    ],
)
def test_a_broken_package_is_named_without_the_key(
    source: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_metadata(tmp_path, "acme", "1.2", {"penstock.providers": {"acme": "acme_api:API"}})
    head = "from gateway.providers.upstream.apis import ApiSpec\n"
    (tmp_path / "acme_api.py").write_text(head + source + "\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "acme_api", raising=False)
    with pytest.raises(SettingsError, match=rf"model 'm': the package acme 1\.2, .*{message}"):
        open_api("m", "acme").provider("m", UPSTREAM, "key-of-acme", "")
