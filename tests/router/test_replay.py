"""Recorded decisions through changed policies: shares, cost and the moves between models."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from policies.choose import Cascade, ChoiceCandidate, Choose
from policies.document import EngineModel, ModelEntry, Policies, Price
from policies.releases import Capabilities, Release
from policies.routes import Refusal, Route, Rule, Split
from router.log import Record
from router.replay import REFUSED, replay, report

FACTS = {"request.model": "auto", "request.num_messages": 1, "time": "2026-03-04T11:00:00+00:00"}


def model(usd: float) -> ModelEntry:
    price = Price(input_usd_per_million_tokens=usd, output_usd_per_million_tokens=2 * usd)
    return ModelEntry(engine=EngineModel(checkpoint="/m"), price=price)


def policies(*rules: Rule) -> Policies:
    models = {"small": model(1), "large": model(10)}
    return Policies(models=models, routes={"auto": Route(rules=list(rules), model="small")})


def record(**more: Any) -> Record:  # noqa: ANN401
    facts = {**FACTS, **more.pop("facts", {})}
    return Record(facts=facts, version="v", **{"model": "small", "input_tokens": 1_000_000, **more})


def test_the_same_policies_change_nothing() -> None:
    found = replay([record(), record()], policies())
    assert found.before == found.after and not found.moves
    assert report(found).endswith("nothing changes\n")


def test_moves_and_cost() -> None:
    changed = policies(Rule(name="long", when="request.num_messages > 3", model="large"))
    found = replay([record(facts={"request.num_messages": 5}, output_tokens=1_000_000), record()], changed)
    assert found.moves == {("small", "large", "route auto, rule 1 (long)"): 1}
    assert (found.before["small"].cost_usd, found.after["small"].cost_usd) == (4.0, 1.0)
    assert found.after["large"].cost_usd == 30.0
    assert "1 small → large: route auto, rule 1 (long)\n" in report(found)


def test_a_split_moves_fractions_and_a_refusal_all() -> None:
    split = policies(Rule(split=Split(models={"large": 1, "small": 3})))
    found = replay([record()] * 4, split)
    assert found.after["large"].requests == 1 and found.after["small"].requests == 3
    found = replay([record()], policies(Rule(refuse=Refusal(message="no"))))
    assert found.after["(refused)"].requests == 1


def test_what_was_not_recorded_is_empty_and_models_are_ready() -> None:
    condition = "headers['x-a'] == '' && live.ready['small'] && live.queue['small'] == 0 && tenant.tier == ''"
    found = replay([record()], policies(Rule(when=condition, model="large")))
    assert found.after["large"].requests == 1


def test_recorded_values_are_used() -> None:
    facts = {"live.queue": {"small": 9}, "headers": {"x-a": "b"}}
    condition = "headers['x-a'] == 'b' && live.queue['small'] > 8 && time.getHours() == 11"
    found = replay([record(facts=facts)], policies(Rule(when=condition, model="large")))
    assert found.after["large"].requests == 1


def test_requests_for_models_stay_and_unknown_models_are_named() -> None:
    found = replay([record(model="gone", facts={"request.model": "gone"})], policies())
    assert found.num_unknown == 1 and not found.moves
    assert "1 were answered by models that these policies lack" in report(found)


def test_signals_that_were_not_recorded_are_empty() -> None:
    condition = "signals.has_code || signals.similarity['x'] > 0.5 || signals.language == 'de'"
    changed = policies(Rule(when=condition, model="large"))
    assert replay([record()], changed).after["small"].requests == 1
    known: list[dict[str, Any]] = [{"signals.has_code": True}, {"signals.similarity": {"x": 0.6}}]
    for facts in known:
        assert replay([record(facts=facts)], changed).after["large"].requests == 1


def chosen(*candidates: tuple[str, float], **more: Any) -> Policies:  # noqa: ANN401
    section = Choose(candidates={name: ChoiceCandidate(quality=q) for name, q in candidates}, **more)
    return Policies(models={"small": model(1), "large": model(10)}, routes={"auto": Route(choose=section)})


def test_strategies_decide_with_the_recorded_gain() -> None:
    changed = chosen(("small", 0.6), ("large", 0.9), estimate="builtin:pico", cost_weight=0.2)
    found = replay([record(gain=0.9, duration_s=1.0), record(gain=0.05, duration_s=3.0)], changed)
    assert (found.after["small"].requests, found.after["large"].requests) == (1, 1)
    assert found.after["large"].quality == pytest.approx(0.9)
    assert found.before["small"].quality == pytest.approx((0.9 - 0.9) + (0.9 - 0.05))
    text = report(found)
    row = next(line for line in text.splitlines() if line.startswith("small")).split()
    assert row[:4] == ["small", "2", "→", "1"] and row[-6:] == ["2.00", "→", "3.00", "0.42", "→", "0.85"]
    assert "1 small → large: route auto, default" in text


def limited(small: ChoiceCandidate, **can: Any) -> Policies:  # noqa: ANN401
    """Policies that choose the small model for whatever it can answer."""
    section = Choose(candidates={"small": small, "large": ChoiceCandidate()})
    small_model = msgspec.structs.replace(model(1), capabilities=Capabilities(**can))
    models = {"small": small_model, "large": model(10)}
    return Policies(models=models, routes={"auto": Route(choose=section)})


@pytest.mark.parametrize(
    ("unchanged", "facts"),
    [
        (limited(ChoiceCandidate(), tools=False), {"request.has_tools": True}),
        (limited(ChoiceCandidate(can_call_tools=False)), {"request.has_tools": True}),
        (limited(ChoiceCandidate(), context_tokens=99), {"request.num_tokens_estimate": 100}),
        (limited(ChoiceCandidate(max_tokens=99)), {"request.num_tokens_estimate": 100}),
        (limited(ChoiceCandidate(), reasoning=False), {"request.reasoning_effort": "low"}),
        (limited(ChoiceCandidate(can_reason=False)), {"request.reasoning_effort": "low"}),
        (limited(ChoiceCandidate()), {"live.ready": {"small": False, "large": True}}),
    ],
)
def test_what_a_candidate_could_not_answer_stays_with_the_other(
    unchanged: Policies, facts: dict[str, Any]
) -> None:
    usual = {
        "request.has_tools": False,
        "request.num_tokens_estimate": 99,
        "request.reasoning_effort": "none",
        "live.ready": {"small": True, "large": True},
    }
    records = [record(model="large", facts=usual | facts), record(facts=usual)]
    assert report(replay(records, unchanged)).endswith("nothing changes\n")


def test_what_no_candidate_can_answer_is_refused() -> None:
    small = Choose(candidates={"small": ChoiceCandidate(can_call_tools=False)})
    changed = Policies(models={"small": model(1)}, routes={"auto": Route(choose=small)})
    found = replay([record(facts={"request.has_tools": True})], changed)
    assert found.moves == {("small", REFUSED, "route auto, default"): 1}


def released(share: float = 0.1, **stages: str) -> Policies:
    """Policies of the model `small` with releases in these stages, and `large`."""
    releases = {
        name: msgspec.structs.replace(model(2), release=Release(of="small", stage=stage, share=share))  # type: ignore[arg-type]
        for name, stage in stages.items()
    }
    return Policies(
        models={"small": model(1), "large": model(10), **releases}, routes={"auto": Route(model="small")}
    )


@pytest.mark.parametrize(
    ("stages", "answered", "answers"),
    [
        ({"v2": "canary"}, "v2", "v2"),
        ({"v2": "canary"}, "small", "small"),
        ({"v2": "stable"}, "v2", "v2"),
        ({"v2": "stable"}, "small", "v2"),  # recorded before it was promoted
        ({"v2": "stable"}, "large", "v2"),
        ({"v2": "retired"}, "v2", "small"),
    ],
)
def test_a_release_answers_for_its_model(stages: dict[str, str], answered: str, answers: str) -> None:
    found = replay([record(model=answered)], released(**stages))
    assert set(found.after) == {answers} and bool(found.moves) == (answers != answered)
    usd = {"small": 1.0, "v2": 2.0}[answers]
    assert found.after[answers].cost_usd == usd


def test_a_candidates_stable_release_is_what_can_answer() -> None:
    base = released(v2="stable")
    section = Choose(candidates={"small": ChoiceCandidate(), "large": ChoiceCandidate()})
    v2 = msgspec.structs.replace(base.models["v2"], capabilities=Capabilities(tools=False))
    changed = Policies(models={**base.models, "v2": v2}, routes={"auto": Route(choose=section)})
    for has_tools, answers in ((True, "large"), (False, "v2")):
        found = replay([record(facts={"request.has_tools": has_tools})], changed)
        assert set(found.after) == {answers}


def test_a_model_that_took_over_answers_where_the_same_one_is_chosen() -> None:
    taken = record(model="large", chosen="small")
    assert report(replay([taken], policies())).endswith("nothing changes\n")
    changed = policies(Rule(name="all", when="true", model="large"))
    assert not replay([taken], changed).moves  # to where it went
    named = record(model="large", chosen="small", facts={"request.model": "small"})
    assert not replay([named], policies()).moves
    third = policies(Rule(when="true", model="third"))
    assert set(replay([taken], third).after) == {"third"}


@pytest.mark.parametrize(("familiarity", "model"), [(0.1, "large"), (0.25, "small"), (None, "small")])
def test_what_was_too_unfamiliar_goes_to_the_default(familiarity: float | None, model: str) -> None:
    unchanged = chosen(("small", 0.6), ("large", 0.6), estimate="builtin:pico", default="large")
    assert set(replay([record(familiarity=familiarity)], unchanged).after) == {model}


def test_candidates_cost_what_they_cost_in_choose() -> None:
    """Their prices are for as many input as output tokens, whatever the request had."""
    models = {
        name: ModelEntry(
            engine=EngineModel(checkpoint="/m"),
            price=Price(input_usd_per_million_tokens=usd, output_usd_per_million_tokens=output_usd),
        )
        for name, usd, output_usd in (("small", 2, 2), ("large", 1, 10))
    }
    section = Choose(candidates={name: ChoiceCandidate() for name in models}, strategy="cheapest")
    unchanged = Policies(models=models, routes={"auto": Route(choose=section)})
    assert not replay([record(input_tokens=1000, output_tokens=1)], unchanged).moves


def test_a_cascade_keeps_the_release_that_answered() -> None:
    rules = Cascade(models=["small", "large"])
    changed = Policies(models=released(v2="canary").models, routes={"auto": Route(cascade=rules)})
    for answered in (record(model="v2"), record(model="large", chosen="v2")):
        assert not replay([answered], changed).moves


def test_a_cascade_keeps_who_who_answered_unless_the_gain_is_high() -> None:
    rules = Cascade(models=["small", "large"], estimate="builtin:pico", skip_above=0.5)
    changed = Policies(models={"small": model(1), "large": model(10)}, routes={"auto": Route(cascade=rules)})
    found = replay([record(gain=0.6), record(gain=0.1), record(model="large", gain=0.1)], changed)
    assert (found.after["small"].requests, found.after["large"].requests) == (1, 2)
