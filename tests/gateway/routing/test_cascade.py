"""A cascade holds the first model's answer back, and asks the next one where it is not good enough."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from gateway.answer import Delta, Generated, TokenInfo
from gateway.errors import ApiError, InvalidRequest, ServerError, Unavailable
from gateway.exchange.exchange import Exchange
from gateway.exchange.model_table import ModelState, ModelTable, ServedModel
from gateway.pipeline.stages.call_model import CallModel
from gateway.pipeline.stages.choose_model import ChooseModel
from gateway.pipeline.stages.read_request import ReadRequest
from gateway.providers.fake import FakeProvider, Script, TextCall
from gateway.requests.types import ChatRequest
from gateway.routing.other_models import OtherModels
from gateway.web.deadlines import TimeLimits
from policies.choose import Cascade
from policies.document import Policies, Price
from policies.routes import Route, RoutingSection
from tests.gateway.pipeline.exchanges import exchange_with

LIMITS = TimeLimits(None, None, 60)
JSON = {"type": "json_object"}


def saying(*tokens: tuple[str, float], finish: str = "stop") -> Script:
    """One delta per (text, probability)."""

    async def script(call: TextCall) -> AsyncIterator[Delta]:
        wanted = call.request.num_logprobs is not None
        for text, probability in tokens:
            info = TokenInfo(text, text.encode(), math.log(probability))
            yield Delta(0, text, [info] if wanted else [])
        yield Delta(0, finish_reason=finish)  # type: ignore[arg-type]

    return script


def failing(error: ApiError) -> Script:
    async def script(call: TextCall) -> AsyncIterator[Delta]:
        raise error
        yield Delta(0)

    return script


class Trial:
    """Two models, the first with a script."""

    def __init__(self, script: Script, down: str = "", **rules: Any) -> None:  # noqa: ANN401
        self.small, self.large = FakeProvider(script), FakeProvider(saying(("large", 1.0)))
        providers = {"small": self.small, "large": self.large}
        self.table = ModelTable(
            [
                ServedModel(
                    name, "engine", provider, LIMITS, lambda name=name: ModelState(ready=name != down)  # type: ignore[misc]
                )
                for name, provider in providers.items()
            ],
            {},
        )  # fmt: skip
        section = Cascade(models=["small", "large"], **{"hold_back_tokens": 3, **rules})
        self.policies = Policies(routes={"auto": Route(cascade=section)}, routing=RoutingSection(expose=True))

    async def ask(self, **fields: Any) -> tuple[str, Exchange]:  # noqa: ANN401
        messages = [{"role": "user", "content": "hi"}]
        exchange = exchange_with({"model": "auto", "messages": messages, **fields})
        await ReadRequest().enter(exchange)
        await ChooseModel(self.table, self.policies).enter(exchange)
        await CallModel(OtherModels(self.table, 3)).enter(exchange)
        assert isinstance(exchange.answer, Generated)
        self.deltas = [delta async for delta in exchange.answer.deltas]
        return "".join(delta.text for delta in self.deltas), exchange


async def test_a_certain_answer_is_kept_whole_and_without_records_of_tokens() -> None:
    trial = Trial(saying(*((letter, 0.9) for letter in "abcdef")))
    text, exchange = await trial.ask()
    assert text == "abcdef" and trial.large.asked == []
    assert all(delta.tokens == [] for delta in trial.deltas)
    assert exchange.response_headers["x-penstock-model"] == "small"
    assert exchange.response_headers["x-penstock-reason"] == "route auto, default, small: confidence 0.90"


async def test_the_client_gets_the_log_probabilities_that_it_asked_for() -> None:
    trial = Trial(saying(("a", 0.9)))
    await trial.ask(logprobs=True)
    assert [token.token for delta in trial.deltas for token in delta.tokens] == ["a"]


async def test_an_uncertain_answer_is_replaced_and_its_call_cancelled() -> None:
    trial = Trial(saying(("a", 0.9), ("b", 0.3), ("c", 0.9)))
    text, exchange = await trial.ask(stream=True)
    assert text == "large" and trial.small.num_ended == 1
    assert [model.name for model, _ in exchange.rejected_usage] == ["small"]
    assert exchange.response_headers["x-penstock-model"] == "large"
    assert exchange.reason == "route auto, default, small: confidence 0.30"
    (asked,) = trial.large.asked
    assert isinstance(asked.request, ChatRequest) and asked.request.logprobs is None


async def test_the_error_of_a_model_in_the_middle_names_it() -> None:
    scripts = {"small": saying(("a", 0.1)), "middle": failing(ServerError("broken")), "large": saying()}
    table = ModelTable(
        [ServedModel(name, "engine", FakeProvider(script), LIMITS) for name, script in scripts.items()], {}
    )
    route = Route(cascade=Cascade(models=list(scripts), escalate_on=["low_confidence"]))
    exchange = exchange_with({"model": "auto", "messages": [{"role": "user", "content": "hi"}]})
    await ReadRequest().enter(exchange)
    policies = Policies(routes={"auto": route}, routing=RoutingSection(expose=True))
    await ChooseModel(table, policies).enter(exchange)
    with pytest.raises(ServerError):
        await CallModel(OtherModels(table, 3)).enter(exchange)
    assert exchange.response_headers["x-penstock-model"] == "middle"
    assert exchange.response_headers["x-penstock-reason"].endswith("small: confidence 0.10")


async def test_a_stream_is_not_judged_after_the_window_and_a_whole_answer_is() -> None:
    trial = Trial(saying(*(("a", 0.9),) * 3, ("b", 0.01)))
    assert (await trial.ask(stream=True))[0] == "aaab"
    text, exchange = await trial.ask()
    assert text == "large" and exchange.reason.endswith("small: confidence 0.01")


OWN = "Mein Wissen reicht dafür nicht."


@pytest.mark.parametrize(
    ("said", "model"),
    [
        (f"mein  WISSEN reicht\ndafür nicht. {'Also frag anders. ' * 20}", "large"),
        ("Mein Wissen reicht.", "small"),
    ],
)
async def test_the_models_own_refusals_are_known(said: str, model: str) -> None:
    _, exchange = await Trial(saying((said, 1.0)), refusals=[OWN]).ask()
    assert exchange.response_headers["x-penstock-model"] == model
    _, exchange = await Trial(saying((said, 1.0))).ask()
    assert exchange.response_headers["x-penstock-model"] == "small"


async def test_a_refusal_stands_where_no_more_is_expected_of_the_next_model() -> None:
    trial = Trial(saying(("I'm sorry, but no", 1.0)), estimate="builtin:pico")
    easy = [{"role": "user", "content": "Hello!"}]
    assert (await trial.ask(messages=easy))[0] == "I'm sorry, but no"
    unknown = [{"role": "user", "content": "Wie heißt der längste Fluss Bayerns?"}]
    assert (await trial.ask(messages=unknown))[0] == "large"


@pytest.mark.parametrize(
    ("small", "large", "model"),
    [(0.9, 1.0, "small"), (4.0, 1.0, "large"), (0.0, 0.0, "small")],
)
async def test_a_cascade_begins_only_where_it_is_expected_to_save(
    small: float, large: float, model: str
) -> None:
    trial = Trial(saying(("a", 0.9)), estimate="builtin:pico", skip_above=1.0)
    for name, usd in (("small", small), ("large", large)):
        price = Price(input_usd_per_million_tokens=usd, output_usd_per_million_tokens=4 * usd)
        trial.table.models[name] = replace(trial.table.models[name], price=price)
    unsure = [{"role": "user", "content": "Wie viel Uhr ist es in Rom?"}]  # kept in about half of all cases
    text, exchange = await trial.ask(messages=unsure)
    assert exchange.response_headers["x-penstock-model"] == model
    assert (text == "a") == (model == "small") and ", kept 0." in exchange.reason


async def test_a_cascade_begins_only_where_its_first_answer_is_kept_often_enough() -> None:
    unsure = [{"role": "user", "content": "Wie viel Uhr ist es in Rom?"}]
    for least, text in ((0.3, "a"), (0.9, "large")):
        trial = Trial(saying(("a", 0.9)), estimate="builtin:pico", min_kept=least)
        assert (await trial.ask(messages=unsure))[0] == text


@pytest.mark.parametrize(
    ("script", "fields", "cause"),
    [
        (saying(("I'm sorry, but no", 1.0)), {}, "refusal"),
        (saying(("half", 1.0), finish="length"), {}, "truncated"),
        (saying(("not json", 1.0)), {"response_format": JSON}, "invalid JSON"),
        (failing(Unavailable("away")), {}, "error"),
    ],
)
async def test_other_causes(script: Script, fields: dict[str, Any], cause: str) -> None:
    text, exchange = await Trial(script).ask(**fields)
    assert text == "large" and exchange.reason.endswith(f"small: {cause}")


async def test_json_is_judged_when_it_is_complete() -> None:
    trial = Trial(saying(*((letter, 1.0) for letter in '{"a": 1}')))
    assert (await trial.ask(response_format=JSON))[0] == '{"a": 1}'


async def test_causes_that_the_rules_leave_out_do_not_count() -> None:
    trial = Trial(saying(("I cannot", 0.1)), escalate_on=["error"])
    assert (await trial.ask())[0] == "I cannot"
    with pytest.raises(Unavailable):
        await Trial(failing(Unavailable("away")), escalate_on=["refusal"]).ask()


async def test_an_error_of_the_client_reaches_it_when_the_model_refuses_the_request() -> None:
    class Refusing(FakeProvider):
        async def chat(self, call: Any) -> Generated:  # noqa: ANN401
            raise InvalidRequest("no", param="stop")

    trial = Trial(saying())
    trial.table.models["small"] = ServedModel("small", "engine", Refusing(), LIMITS)
    with pytest.raises(InvalidRequest):
        await trial.ask()


async def test_several_choices_go_to_the_last_model_and_so_does_what_finds_the_first_away() -> None:
    trial = Trial(saying(("a", 0.9)))
    _, exchange = await trial.ask(n=2)
    assert trial.small.asked == [] and "several choices" in exchange.reason
    assert (await Trial(saying(("a", 0.9)), down="small").ask())[0] == "large"
    assert (await Trial(saying(("a", 0.1)), down="large").ask())[0] == "a"


async def test_a_request_of_much_gain_goes_to_the_last_model_at_once() -> None:
    hard = "Tom has 14 apples, gives away 3, then doubles what is left and sells 5. How many apples remain?"
    trial = Trial(saying(("a", 0.9)), estimate="builtin:pico")
    _, exchange = await trial.ask(messages=[{"role": "user", "content": hard}])
    assert trial.small.asked == [] and "cascade: gain 0." in exchange.reason
    assert (await trial.ask(messages=[{"role": "user", "content": "What is 1 + 1?"}]))[0] == "a"


async def test_a_completion_is_judged_too() -> None:
    trial = Trial(saying(("a", 0.3)))
    exchange = exchange_with({"model": "auto", "prompt": "hi"}, endpoint="completions")
    await ReadRequest().enter(exchange)
    await ChooseModel(trial.table, trial.policies).enter(exchange)
    await CallModel(OtherModels(trial.table, 3)).enter(exchange)
    assert exchange.model is not None and exchange.model.name == "large"
