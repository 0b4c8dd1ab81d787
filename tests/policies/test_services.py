"""A known service fills in what an upstream does not say, also in the loader and on the command line."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import msgspec
import pytest

from gateway.cli.flag_models import with_flag_models
from policies.document import Policies
from policies.errors import PolicyError
from policies.load import load_policies
from policies.services import SERVICES, ServiceName
from policies.upstream import UpstreamModel
from policies.urls import url_fault


def test_every_service_is_a_valid_upstream() -> None:
    assert set(SERVICES) == set(get_args(ServiceName))
    for name, service in SERVICES.items():
        found = UpstreamModel(service=name)
        assert (found.base_url, found.api) == (service.base_url, service.api)
        assert found.drop_message_fields == service.drop_message_fields
        assert found.drop_fields == service.drop_fields
        assert not url_fault(found.base_url)
        assert msgspec.json.decode(msgspec.json.encode(found), type=UpstreamModel) == found


def test_what_the_upstream_says_wins() -> None:
    found = UpstreamModel(service="mistral", base_url="http://127.0.0.1:1/v1")
    assert found.base_url == "http://127.0.0.1:1/v1" and found.rename_fields["seed"] == "random_seed"


def test_an_upstream_without_a_url_is_reported_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "models.yaml").write_text("models:\n  a:\n    upstream: {service: groq}\n")
    assert load_policies(tmp_path).models["a"].upstream == UpstreamModel(service="groq")
    (tmp_path / "models.yaml").write_text("models:\n  a:\n    upstream:\n      model: x\n")
    with pytest.raises(PolicyError, match=r"models\.yaml:3:5: models\.a\.upstream needs a base_url"):
        load_policies(tmp_path)


def test_a_flag_may_name_a_service() -> None:
    entry = with_flag_models(Policies(), [], ["local=ollama#llama3"]).models["local"]
    assert entry.upstream == UpstreamModel(service="ollama", model="llama3")
