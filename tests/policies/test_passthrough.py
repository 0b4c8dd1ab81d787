"""The `passthrough` section: only upstreams, only paths that Penstock does not serve itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.settings import Settings
from gateway.wiring.app import build_app
from policies.document import Policies
from policies.endpoints import ENDPOINTS
from policies.errors import PolicyError
from policies.load import load_policies
from policies.passthrough import OWN_PATHS, PassthroughRule

MODELS = """
models:
  gpt: {upstream: {base_url: "https://host/v1"}}
  claude: {upstream: {service: anthropic}}
  own: {engine: {checkpoint: "builtin:pico-small"}}
passthrough:
"""


def load(folder: Path, line: str) -> Policies:
    (folder / "a.yaml").write_text(f"{MODELS}  {line}\n")
    return load_policies(folder)


def test_a_path_leads_to_an_upstream(tmp_path: Path) -> None:
    policies = load(tmp_path, "/v1/audio: {model: gpt, tenants: [key-0123abcd]}")
    assert policies.passthrough == {"/v1/audio": PassthroughRule(model="gpt", tenants=["key-0123abcd"])}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "/v1/audio: {model: nope}",
            r"a\.yaml:7:15: passthrough\./v1/audio\.model: 'nope' is not an upstream",
        ),
        ("/v1/audio: {model: own}", "'own' is not an upstream"),
        ("/v1/audio: {model: claude}", "'claude' is not an upstream model with the openai API"),
        ("/v1/files: {model: gpt}", r"a\.yaml:7:3: passthrough\./v1/files is served by Penstock itself"),
        ("/v1/chat/completions: {model: gpt}", r"served by Penstock itself \(/v1/chat\)"),
        ("/v1: {model: gpt}", r"a\.yaml:7"),
        ("/v1/a/../b: {model: gpt}", r"a\.yaml:7"),
        ("/v1/audio: {}", "model"),
    ],
)
def test_what_cannot_be_passed_on_is_reported_with_its_line(tmp_path: Path, line: str, message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        load(tmp_path, line)


async def test_own_paths_are_those_of_the_application() -> None:
    app = build_app(Settings(), Policies())
    paths = [route.path for route in app.routes if route.path.startswith("/v1/")]  # type: ignore[attr-defined]
    own = {"/".join(path.split("/")[:3]) for path in paths}
    giving_way = {path for each in ENDPOINTS.values() if each.gives_way for path in each.paths}
    assert own - {"/v1/moderations", *giving_way} == set(OWN_PATHS)
