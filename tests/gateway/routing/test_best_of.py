"""Several answers at once: which one is sent, what it costs, and what happens when some fail."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.answer import Generated
from gateway.errors import ApiError, Unavailable
from gateway.exchange.exchange import Exchange
from gateway.exchange.model_table import ModelState, ModelTable, ServedModel
from gateway.pipeline.stages.call_model import CallModel
from gateway.pipeline.stages.choose_model import ChooseModel
from gateway.pipeline.stages.read_request import ReadRequest
from gateway.providers.fake import FakeProvider, Script
from gateway.routing.other_models import OtherModels
from policies.choose import BestOf
from policies.document import Policies
from policies.routes import Route, RoutingSection
from tests.gateway.pipeline.exchanges import exchange_with
from tests.gateway.routing.test_cascade import LIMITS, failing, saying


class Trial:
    """Models with scripts, each asked once unless `counts` says otherwise."""

    def __init__(
        self,
        scripts: dict[str, Script],
        counts: dict[str, int] | None = None,
        down: str = "",
        scorer: str = "",
    ) -> None:
        self.providers = {name: FakeProvider(script) for name, script in scripts.items()}
        self.table = ModelTable(
            [
                ServedModel(
                    name, "engine", provider, LIMITS, lambda name=name: ModelState(ready=name != down)  # type: ignore[misc]
                )
                for name, provider in self.providers.items()
            ],
            {},
        )  # fmt: skip
        rules = BestOf(models=counts or dict.fromkeys(scripts, 1), scorer=scorer or "confidence")  # type: ignore[arg-type]
        self.policies = Policies(routes={"auto": Route(best_of=rules)}, routing=RoutingSection(expose=True))

    async def ask(self, **fields: Any) -> tuple[str, Exchange]:  # noqa: ANN401
        messages = [{"role": "user", "content": "hi"}]
        exchange = exchange_with({"model": "auto", "messages": messages, **fields})
        await ReadRequest().enter(exchange)
        await ChooseModel(self.table, self.policies).enter(exchange)
        await CallModel(OtherModels(self.table, 3)).enter(exchange)
        assert isinstance(exchange.answer, Generated)
        self.deltas = [delta async for delta in exchange.answer.deltas]
        return "".join(delta.text for delta in self.deltas), exchange


async def test_the_most_confident_answer_is_sent_and_all_are_paid() -> None:
    trial = Trial({"a": saying(("maybe", 0.4)), "b": saying(("surely", 0.9)), "c": saying(("well", 0.5))})
    text, exchange = await trial.ask()
    assert text == "surely" and exchange.model is not None and exchange.model.name == "b"
    assert exchange.reason == "route auto, default, best of 3: confidence 0.90"
    assert exchange.response_headers["x-penstock-model"] == "b"
    assert [model.name for model, _ in exchange.rejected_usage] == ["a", "c"]
    assert all(not delta.tokens for delta in trial.deltas)  # the client has not asked for them


async def test_a_vote_counts_equal_answers() -> None:
    said = {"a": saying(("42", 0.4)), "b": saying(("Forty", 0.9)), "c": saying(("42.", 0.5))}
    text, exchange = await Trial(said, scorer="vote").ask()
    assert text == "42." and exchange.reason.endswith("best of 3: confidence 0.50, 2 agree")


async def test_a_model_may_answer_several_times_with_different_seeds() -> None:
    trial = Trial({"a": saying(("x", 0.5))}, {"a": 3})
    await trial.ask(seed=7, logprobs=True)
    requests = [call.request for call in trial.providers["a"].asked]
    assert [getattr(request, "seed", None) for request in requests] == [7, 8, 9]
    assert trial.deltas[0].tokens


async def test_failures_are_left_out_unless_all_fail() -> None:
    text, _ = await Trial({"a": failing(Unavailable("no")), "b": saying(("yes", 0.2))}).ask()
    assert text == "yes"
    with pytest.raises(ApiError, match="no"):
        await Trial({"a": failing(Unavailable("no")), "b": failing(Unavailable("no"))}).ask()


async def test_a_model_that_is_down_and_requests_for_several_choices() -> None:
    text, exchange = await Trial({"a": saying(("x", 0.9)), "b": saying(("y", 0.2))}, down="a").ask()
    assert text == "y" and exchange.decided.cascade is None
    trial = Trial({"a": saying(("x", 0.9))}, {"a": 3})
    _, exchange = await trial.ask(n=2)
    assert len(trial.providers["a"].asked) == 1 and "several choices" in exchange.reason


async def test_other_rules_are_another_partition_of_the_cache() -> None:
    scripts = {"a": saying(("x", 0.9)), "b": saying(("y", 0.2))}
    _, first = await Trial(scripts).ask()
    _, second = await Trial(scripts, scorer="vote").ask()
    assert first.decided.cascade is not None and second.decided.cascade is not None
    assert first.decided.cascade.revision != second.decided.cascade.revision
