"""One cell of the matrix: what is asked for, in which order, and that every answer is the plain one."""

from __future__ import annotations

import msgspec
import pytest

from backend.engine.engine import Engine
from backend.types import Request, StepOutput, TokenLogprobs
from tests.backend.engine.pairs.features import (
    CANCEL,
    CANCELLED_AFTER_TOKENS,
    PREFIX_HIT,
    VICTIM,
    Feature,
    Scene,
    scenes,
    with_params,
)
from tests.backend.engine.pairs.stage import Record, Stage, check_nothing_is_left, play

OTHER_SEED = 1


def check(stage: Stage, features: tuple[Feature, ...], *, is_ahead: bool = False) -> None:
    """All answers are the plain ones whatever is tried, and all features were at work on one of them.

    `is_ahead`: steps are launched before the last one has been read, as on a GPU.
    """
    tried: list[dict[str, set[str]]] = []
    for scene, settings in scenes(stage, features):
        engine = stage.engine(scene.record, is_ahead=is_ahead, **settings)  # type: ignore[arg-type]
        perform(scene, engine)
        for name in scene.asked:
            assert_equal(scene, scene.record, name)
        check_nothing_is_left(engine)
        at_work = {feature.name: feature.happened(scene) for feature in features}
        if set.intersection(*at_work.values()):
            return
        tried.append(at_work)
    pytest.fail(f"no request had all features at work: {tried}")


def perform(scene: Scene, engine: Engine) -> None:
    """Ask for everything, as the features want it."""
    asked = list(scene.asked.values())
    if PREFIX_HIT in scene.features:
        before = [known_before(request) for request in asked]
        play(engine, Record(), [other_weights(scene.stage, request) for request in before])
        play(engine, Record(), before)
    if any(feature.knows_others for feature in scene.features):
        play(engine, Record(), [with_params(request, seed=OTHER_SEED) for request in asked])
    scene.record.begin()
    if CANCEL not in scene.features:
        play(engine, scene.record, asked)
        return
    play(engine, scene.record, asked, lambda record, name: is_enough(scene, record, name))
    again = Record()
    cancelled = CANCEL.happened(scene)
    play(engine, again, [scene.asked[name] for name in cancelled])
    for name in cancelled:
        assert_equal(scene, again, name)


def known_before(request: Request) -> Request:
    """What was asked before: the whole of it, answer and all, or one with the same beginning."""
    if request.request_id.startswith("b"):
        return request
    params = msgspec.structs.replace(request.params, max_tokens=1, min_tokens=0, prompt_logprobs=None)
    return msgspec.structs.replace(request, prompt_token_ids=request.prompt_token_ids[:20], params=params)


def other_weights(stage: Stage, request: Request) -> Request:
    """The same with an adapter in place of none, or none in place of one."""
    return msgspec.structs.replace(request, adapter="" if request.adapter else stage.adapters[0])


def is_enough(scene: Scene, record: Record, name: str) -> bool:
    """Whether a victim is to be cancelled now."""
    sequence = record.sequences[name]
    if name not in (VICTIM, f"{VICTIM}/0") or sequence.finish_reason is not None:
        return False
    moments = [f.is_under_way for f in scene.features if f.is_under_way is not None]
    if moments:
        return all(moment(record, name) for moment in moments)
    return sequence.num_output_tokens >= CANCELLED_AFTER_TOKENS


def assert_equal(scene: Scene, found: Record, name: str) -> None:
    """The request was answered as the plain path answers it; a cancelled one, as far as it came."""
    want, sequence = scene.stage.plain(scene.asked[name]), found.sequences[name]
    tokens = want.tokens("plain")
    if sequence.finish_reason == "abort":
        tokens = tokens[: sequence.num_output_tokens]
    else:
        last, end = found.outputs[name][-1], want.outputs["plain"][-1]
        assert (last.finish_reason, last.stop_token_id) == (end.finish_reason, end.stop_token_id)
    assert found.tokens(name) == tokens
    have, should = scores(found.outputs[name]), scores(want.outputs["plain"])
    assert len(have) == len(should) or sequence.finish_reason == "abort"
    for mine, plain in zip(have, should, strict=False):
        assert (mine.token_id, mine.rank) == (plain.token_id, plain.rank)
        assert mine.logprob == pytest.approx(plain.logprob, abs=1e-4)
        assert [p for _, p in mine.top] == pytest.approx([p for _, p in plain.top], abs=1e-4)


def scores(outputs: list[StepOutput]) -> list[TokenLogprobs]:
    """Log-probabilities of the prompt, then those of the output."""
    found = [record for output in outputs for record in output.prompt_logprobs or [] if record is not None]
    return found + [record for output in outputs for record in output.logprobs or []]
