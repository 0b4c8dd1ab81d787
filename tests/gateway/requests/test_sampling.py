from __future__ import annotations

from typing import Any

import pytest

from backend.types import SamplingParams
from gateway.errors import InvalidRequest
from gateway.requests.sampling import base_params, check_request, choice_params, max_tokens_for
from gateway.requests.types import ChatRequest, CompletionRequest

MESSAGES: list[dict[str, Any]] = [{"role": "user", "content": "hi"}]


def chat(**fields: Any) -> ChatRequest:  # noqa: ANN401
    return ChatRequest(model="m", **{"messages": MESSAGES, **fields})


def completion(**fields: Any) -> CompletionRequest:  # noqa: ANN401
    return CompletionRequest(model="m", prompt="x", **fields)


def test_nothing_asked_is_openais_default() -> None:
    assert base_params(chat(), 100) == SamplingParams(max_tokens=0)


def test_every_dial_arrives() -> None:
    request = chat(
        temperature=0.5, top_p=0.25, top_k=7, min_p=0.125, repetition_penalty=1.5, presence_penalty=-1.0,
        frequency_penalty=2.0, logit_bias={"5": -100.0}, min_tokens=3, ignore_eos=True, stop_token_ids=[9],
        logprobs=True, top_logprobs=4, seed=11,
    )  # fmt: skip
    assert choice_params(base_params(request, 100), request, 2, 50) == SamplingParams(
        max_tokens=50, temperature=0.5, top_p=0.25, top_k=7, min_p=0.125, repetition_penalty=1.5,
        presence_penalty=-1.0, frequency_penalty=2.0, logit_bias={5: -100.0}, min_tokens=3, ignore_eos=True,
        stop_token_ids=(9,), logprobs=4, seed=13,
    )  # fmt: skip


@pytest.mark.parametrize(("asked", "given"), [(-1, 0), (0, 0), (5, 5)])
def test_top_k_off_is_zero(asked: int, given: int) -> None:
    assert base_params(chat(top_k=asked), 100).top_k == given


def test_top_p_zero_is_greedy() -> None:
    params = base_params(chat(top_p=0.0), 100)
    assert params.is_greedy and params.top_p == 1.0


def test_seeds_of_choices_differ_and_stay_in_range() -> None:
    request = chat(seed=2**63 - 1)
    seeds = [choice_params(base_params(request, 9), request, i, 1).seed for i in range(3)]
    assert seeds == [2**63 - 1, -(2**63), -(2**63) + 1]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"logit_bias": {"x": 1.0}}, "logit_bias"),
        ({"logit_bias": {"-1": 1.0}}, "logit_bias"),
        ({"logit_bias": {"٣": 1.0}}, "logit_bias"),
        ({"logit_bias": {"9" * 5000: 1.0}}, "logit_bias"),
        ({"logit_bias": {"100": 1.0}}, "logit_bias"),
        ({"stop_token_ids": [100]}, "stop_token_ids"),
    ],
)
def test_tokens_outside_the_vocabulary_are_refused(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        base_params(chat(**fields), 100)
    assert refused.value.param == param


@pytest.mark.parametrize(("key", "shown"), [("x", "'x'"), ("a secret of some length", "of 23 characters")])
def test_a_key_of_logit_bias_that_is_no_token_id_is_named(key: str, shown: str) -> None:
    with pytest.raises(InvalidRequest, match=f"The key {shown} of 'logit_bias' is no token id"):
        base_params(chat(logit_bias={key: 1.0}), 100)


@pytest.mark.parametrize(
    ("asked", "prompt", "limit"), [(None, 10, 90), (5, 10, 5), (90, 10, 90), (0, 100, 0)]
)
def test_what_fits_the_context(asked: int | None, prompt: int, limit: int) -> None:
    assert max_tokens_for(asked, prompt, 100, "prompt") == limit


@pytest.mark.parametrize(("asked", "prompt"), [(None, 100), (None, 101), (91, 10), (1, 100), (0, 101)])
def test_what_does_not_fit_says_so_in_openais_words(asked: int | None, prompt: int) -> None:
    with pytest.raises(InvalidRequest, match="maximum context length is 100 tokens") as refused:
        max_tokens_for(asked, prompt, 100, "messages")
    assert (refused.value.code, refused.value.param) == ("context_length_exceeded", "messages")


ANSWERED = [*MESSAGES, {"role": "assistant", "content": "so"}]


@pytest.mark.parametrize(
    ("request_", "param"),
    [
        (chat(top_logprobs=2), "top_logprobs"),
        (chat(max_tokens=1, max_completion_tokens=1), "max_tokens"),
        (chat(max_tokens=1, min_tokens=2), "min_tokens"),
        (completion(min_tokens=17), "min_tokens"),
        (chat(stream_options={}), "stream_options"),
        (chat(continue_final_message=True), "continue_final_message"),
        (
            chat(messages=ANSWERED, continue_final_message=True, add_generation_prompt=True),
            "continue_final_message",
        ),
        (completion(best_of=3), "best_of"),
        (completion(best_of=1, n=2), "best_of"),
    ],
)
def test_fields_that_contradict_each_other(request_: ChatRequest | CompletionRequest, param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        check_request(request_)
    assert refused.value.param == param


def test_fields_that_agree() -> None:
    check_request(chat(messages=ANSWERED, continue_final_message=True, add_generation_prompt=False))
    check_request(completion(best_of=2, n=2, min_tokens=16))
    check_request(chat(logprobs=True, top_logprobs=0, stream=True, stream_options={}))
