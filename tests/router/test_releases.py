"""Which version of a model gets a request, alone and in the stage."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.exchange.model_table import ModelTable, ServedModel
from gateway.pipeline.stages.choose_model import ChooseModel
from gateway.pipeline.stages.read_request import ReadRequest
from gateway.providers.fake import FakeProvider
from gateway.web.deadlines import TimeLimits
from policies.document import EngineModel, ModelEntry, Policies
from policies.releases import Release
from policies.routes import Route
from router.releases import Released, releases_of
from tests.gateway.pipeline.exchanges import exchange_with


def policies(**stages: str) -> Policies:
    """The model `m`, and its releases `v2`, `v3` in these stages."""
    engine = EngineModel(checkpoint="/m")
    models = {"m": ModelEntry(engine=engine)} | {
        name: ModelEntry(engine=engine, release=Release(of="m", stage=stage, share=0.3))  # type: ignore[arg-type]
        for name, stage in stages.items()
    }
    return Policies(models=models, routes={"auto": Route(model="m")})


@pytest.mark.parametrize(
    ("stages", "found"),
    [
        ({}, {}),
        ({"v2": "retired"}, {}),
        ({"v2": "canary"}, {"m": Released("m", "v2", 0.3)}),
        ({"v2": "stable"}, {"m": Released("v2")}),
        ({"v3": "canary", "v2": "stable"}, {"m": Released("v2", "v3", 0.3)}),
    ],
)
def test_stages(stages: dict[str, str], found: dict[str, Released]) -> None:
    assert releases_of(policies(**stages).models) == found


async def name_and_reason(given: Policies, **fields: Any) -> tuple[str, str]:  # noqa: ANN401
    limits = TimeLimits(None, None, 60)
    table = ModelTable([ServedModel(name, "engine", FakeProvider(), limits) for name in given.models], {})
    body = {"model": "auto", "messages": [{"role": "user", "content": "hi"}], **fields}
    exchange = exchange_with(body)
    await ReadRequest().enter(exchange)
    await ChooseModel(table, given).enter(exchange)
    assert exchange.model is not None
    return exchange.model.name, exchange.reason


async def test_a_canary_gets_its_share_and_a_user_keeps_the_version() -> None:
    given = policies(v2="canary")
    names = [(await name_and_reason(given, user=str(user)))[0] for user in range(300)]
    assert 60 < names.count("v2") < 120
    assert names == [(await name_and_reason(given, user=str(user)))[0] for user in range(300)]
    by_name = [(await name_and_reason(given, model="m", user=str(user)))[0] for user in range(300)]
    assert by_name == names, "the model's own name leads to the same versions"
    user = str(names.index("v2"))
    assert await name_and_reason(given, user=user) == ("v2", "route auto, default, canary of m")


async def test_a_stable_release_gets_all_and_a_retired_one_only_what_names_it() -> None:
    assert await name_and_reason(policies(v2="stable")) == ("v2", "route auto, default, release of m")
    retired = policies(v2="retired")
    assert (await name_and_reason(retired))[0] == "m"
    assert (await name_and_reason(retired, model="v2"))[0] == "v2"
