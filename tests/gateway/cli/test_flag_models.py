"""Models of flags beside those of policies."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.cli.flag_models import with_flag_models
from gateway.settings import SettingsError
from policies.document import Policies, Route
from policies.load import load_policies


@pytest.mark.parametrize(
    ("models", "upstreams"),
    [
        (["a=builtin:pico-small", "a=builtin:pico-large"], []),
        (["a=builtin:pico-small"], ["a=openai"]),
        ([], ["a=openai", "b=groq", "a=openai"]),
    ],
)
def test_a_name_given_by_two_flags_is_refused(models: list[str], upstreams: list[str]) -> None:
    with pytest.raises(SettingsError, match=r"--\w+ a: two flags give a model this name"):
        with_flag_models(Policies(), models, upstreams)


@pytest.mark.parametrize(
    ("upstream", "words"),
    [
        ("x=opnai", "--upstream x has neither a URL nor the name of a known service; did you mean 'openai'"),
        ("x=ftp://h/v1", "has neither a URL nor"),
        ("x=https://me:hunter22@h/v1", "without user, password or query: the policies name a key's variable"),
        ("x=http://h:99999/v1", "the URL has a port that is not"),
        ("x=https://h/v1/chat/completions", "cannot be used: the URL ends in /chat/completions"),
    ],
)
def test_addresses_of_upstream_flags(upstream: str, words: str) -> None:
    with pytest.raises(SettingsError) as caught:
        with_flag_models(Policies(), [], [upstream])
    assert words in str(caught.value)
    assert not [part for part in ("hunter22", "regex", "Expected") if part in str(caught.value)]


def test_flag_models() -> None:
    policies = with_flag_models(Policies(), ["mine=/models/x"], ["gpt=https://h/v1#gpt-9", "same=http://h"])
    engine = policies.models["mine"].engine
    assert engine is not None and engine.checkpoint == "/models/x"
    gpt, same = policies.models["gpt"].upstream, policies.models["same"].upstream
    assert gpt is not None and (gpt.base_url, gpt.model) == ("https://h/v1", "gpt-9")
    assert same is not None and same.model is None
    with pytest.raises(SettingsError, match="route"):
        with_flag_models(Policies(routes={"gpt": Route(model="x")}), [], ["gpt=http://h"])


def test_flags_do_not_remove_a_routes_adapter(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text(
        "models: {small: {engine: {checkpoint: /c, adapters: {polite: {path: /p}}}}}\n"
        "routes: {kind: {model: polite}}\n"
    )
    policies = load_policies(tmp_path)
    assert with_flag_models(policies, ["other=/o"], []).routes["kind"].model == "polite"
    with pytest.raises(SettingsError, match="routes.kind leads to 'polite', an adapter of a model that"):
        with_flag_models(policies, ["small=/other"], [])
