"""An upstream's targets: what they take from it, and what they must say themselves."""

from __future__ import annotations

from pathlib import Path

import pytest

from policies.errors import PolicyError
from policies.load import load_policies
from policies.upstream import UpstreamModel, UpstreamTarget, target_faults

URL = "http://h/v1"


def test_an_upstream_without_targets_is_one_place() -> None:
    upstream = UpstreamModel(base_url=URL)
    assert upstream.places() == {"": upstream}


def test_a_target_takes_over_what_it_does_not_say() -> None:
    targets = [UpstreamTarget(), UpstreamTarget(api_key_env="B"), UpstreamTarget(base_url="http://o/v1")]
    upstream = UpstreamModel(base_url=URL, model="far", targets=targets)
    places = upstream.places()
    assert {name: (each.base_url, each.api_key_env) for name, each in places.items()} == {
        ".targets[0]": (URL, None),
        ".targets[1]": (URL, "B"),
        ".targets[2]": ("http://o/v1", None),
    }
    assert all(each.model == "far" and not each.targets for each in places.values())


def test_a_key_is_not_sent_from_a_service_to_another_host() -> None:
    targets = [{}, {"base_url": "https://api.openai.com/v1"}, {"base_url": "http://o/v1"}]
    (fault,) = target_faults({"service": "openai", "api_key_env": "A", "targets": targets})
    assert "[2] is at another host" in fault


def test_targets_with_urls_of_their_own_need_no_other(tmp_path: Path) -> None:
    path = tmp_path / "all.yaml"
    targets = "{base_url: 'http://one/v1', api_key_env: A}, {base_url: 'http://two/v1'}"
    path.write_text(f"models: {{m: {{upstream: {{targets: [{targets}]}}}}}}\n")
    upstream = load_policies(path).models["m"].upstream
    assert upstream is not None
    assert [each.base_url for each in upstream.places().values()] == ["http://one/v1", "http://two/v1"]
    assert load_policies(path).metric_names() == ["m", "m at http://one/v1 with A", "m at http://two/v1"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("targets: [{base_url: 'http://o/v1'}, {weight: 2}]", "or a base_url in each of its targets"),
        (
            "api_key_env: A, targets: [{base_url: 'http://o/v1'}, {base_url: 'http://p/v1'}]",
            r"targets\[1\] is at another host",
        ),
        ("targets: []", "needs a base_url, or the name of a known service as `service`"),
    ],
)
def test_targets_without_a_url(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "all.yaml"
    path.write_text(f"models: {{m: {{upstream: {{model: x, {text}}}}}}}\n")
    with pytest.raises(PolicyError, match=message):
        load_policies(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("api_key_env: A, targets: [{base_url: 'http://o/v1'}]", "is not sent there"),
        ("targets: [{base_url: 'http://o/v1'}, {base_url: 'http://o/v1'}]", r"targets\[1\] is the same"),
        ("unix_socket: /s, targets: [{}]", "unix_socket is one"),
        ("targets: [{}, {base_url: 'http://o/v1/chat/completions'}]", r"targets\[1\].base_url ends in"),
        ("targets: [{max_concurrent: 0}]", "max_concurrent"),
        ("targets: [{wieght: 1}]", "wieght"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "all.yaml"
    path.write_text(f"models: {{m: {{upstream: {{base_url: '{URL}', {text}}}}}}}\n")
    with pytest.raises(PolicyError, match=message):
        load_policies(path)
