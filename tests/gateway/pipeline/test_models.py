from __future__ import annotations

import pytest

from gateway.errors import NotFound
from gateway.pipeline.models import ModelTable, ServedModel
from gateway.providers.engine.provider import EngineProvider
from gateway.providers.fake import FakeProvider
from gateway.web.deadlines import Limits

LIMITS = Limits(1, 1, 1)


def test_names_and_routes_lead_to_models() -> None:
    small = ServedModel("small", "engine", FakeProvider(), LIMITS)
    table = ModelTable([small], {"auto": "small"})
    assert table.resolve("small") is table.resolve("auto") is small
    assert (small.owned_by, small.state().ready) == ("penstock", True)


@pytest.mark.parametrize(
    ("name", "hint"), [("smal", "'small'"), ("auot", "'auto'"), ("x" * 9999, "/v1/models")]
)
def test_the_nearest_name_is_offered(name: str, hint: str) -> None:
    table = ModelTable([ServedModel("small", "engine", FakeProvider(), LIMITS)], {"auto": "small"})
    with pytest.raises(NotFound, match=hint) as refused:
        table.resolve(name)
    assert (refused.value.code, refused.value.param) == ("model_not_found", "model")
    assert len(refused.value.message) < 300


def test_only_engine(provider: EngineProvider) -> None:
    ours = [ServedModel(name, "engine", provider, LIMITS, engine=provider) for name in ("a", "b")]
    theirs = ServedModel("c", "upstream", FakeProvider(), LIMITS)
    assert ModelTable([ours[0], theirs], {}).only_engine() is ours[0]
    assert ModelTable(ours, {}).only_engine() is None
    assert ModelTable([theirs], {}).only_engine() is None
