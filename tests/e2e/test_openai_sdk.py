"""The official client, with only its base_url changed, against OpenAI's reference."""

from __future__ import annotations

import asyncio
import base64
import math
from array import array
from typing import Any

import openai
import pytest
from openai.types.chat import (
    ChatCompletionChunk,
    ChatCompletionPredictionContentParam,
    ChatCompletionUserMessageParam,
)

from tests.e2e.conftest import MODEL

ENCODER = "all-minilm-l6-v2"


def ask(text: str) -> list[ChatCompletionUserMessageParam]:
    return [{"role": "user", "content": text}]


QUESTION = ask("What is 17 + 25?")


def text_of(chunks: list[ChatCompletionChunk], index: int = 0) -> str:
    return "".join(c.delta.content or "" for chunk in chunks for c in chunk.choices if c.index == index)


def test_an_answer(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=QUESTION, temperature=0)
    assert answer.object == "chat.completion" and answer.id.startswith("chatcmpl-")
    (choice,) = answer.choices
    assert choice.message.role == "assistant" and choice.finish_reason == "stop"
    assert "42" in (choice.message.content or "")
    assert answer.usage is not None and answer.usage.prompt_tokens > 0 and answer.usage.completion_tokens > 0
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_a_stream_has_openais_shape(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(model=MODEL, messages=QUESTION, temperature=0)
    stream = client.chat.completions.create(
        model=MODEL, messages=QUESTION, temperature=0, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    first, last, usage = chunks[0], chunks[-2], chunks[-1]
    assert first.choices[0].delta.role == "assistant"
    assert last.choices[0].finish_reason == "stop" and not last.choices[0].delta.content
    assert [c.choices[0].finish_reason for c in chunks[:-2]] == [None] * (len(chunks) - 2)
    assert usage.choices == [] and usage.usage is not None and whole.usage is not None
    assert usage.usage.prompt_tokens == whole.usage.prompt_tokens
    assert usage.usage.completion_tokens == whole.usage.completion_tokens
    assert len({chunk.id for chunk in chunks}) == 1 and {c.object for c in chunks} == {
        "chat.completion.chunk"
    }
    assert text_of(chunks) == whole.choices[0].message.content


def test_a_prediction_changes_only_the_speed(client: openai.OpenAI) -> None:
    question = ask("Write the words apple, river and stone in alphabetical order, separated by commas.")
    plain = client.chat.completions.create(model=MODEL, messages=question, temperature=0.7, seed=4)
    text = plain.choices[0].message.content or ""
    predictions: list[ChatCompletionPredictionContentParam] = [
        {"type": "content", "content": text},
        {"type": "content", "content": "something else entirely, which nobody would answer"},
        {"type": "content", "content": [{"type": "text", "text": text}]},
    ]
    for prediction in predictions:
        answer = client.chat.completions.create(
            model=MODEL, messages=question, temperature=0.7, seed=4, prediction=prediction
        )
        assert answer.choices[0].message.content == text
        assert answer.usage is not None and plain.usage is not None
        assert answer.usage.completion_tokens == plain.usage.completion_tokens
        details = answer.usage.completion_tokens_details
        assert details is not None and details.accepted_prediction_tokens is not None
    for options in ({"drafter": "ngram", "max_tokens": 4}, {"drafter": "none"}):
        answer = client.chat.completions.create(
            model=MODEL, messages=question, temperature=0.7, seed=4, extra_body={"speculative": options}
        )
        assert answer.choices[0].message.content == text
    with pytest.raises(openai.BadRequestError, match="oracle") as caught:
        client.chat.completions.create(
            model=MODEL, messages=question, extra_body={"speculative": {"drafter": "oracle"}}
        )
    assert caught.value.param == "speculative.drafter"


def test_no_usage_chunk_unless_asked_for(client: openai.OpenAI) -> None:
    chunks = list(client.chat.completions.create(model=MODEL, messages=QUESTION, max_tokens=4, stream=True))
    assert all(chunk.usage is None and chunk.choices for chunk in chunks)


def test_n_and_seed(client: openai.OpenAI) -> None:
    def draw() -> list[str | None]:
        answer = client.chat.completions.create(
            model=MODEL,
            messages=ask("hello"),
            n=3,
            seed=11,
            temperature=2.0,
            max_tokens=16,
            extra_body={
                "min_tokens": 16
            },  # after the end of its answer the model is unsure, so samples differ
        )
        assert [choice.index for choice in answer.choices] == [0, 1, 2]
        return [choice.message.content for choice in answer.choices]

    first = draw()
    assert draw() == first
    assert len(set(first)) > 1


def test_streamed_choices_are_those_of_the_whole_answer(client: openai.OpenAI) -> None:
    options: dict[str, Any] = {"n": 2, "seed": 5, "temperature": 1.2, "max_tokens": 12}
    whole = client.chat.completions.create(model=MODEL, messages=QUESTION, **options)
    chunks = list(client.chat.completions.create(model=MODEL, messages=QUESTION, stream=True, **options))
    assert [text_of(chunks, i) for i in range(2)] == [choice.message.content for choice in whole.choices]


def test_a_stop_string_ends_and_is_left_out(client: openai.OpenAI) -> None:
    free = client.chat.completions.create(model=MODEL, messages=QUESTION, temperature=0)
    text = free.choices[0].message.content or ""
    stop = text[1:3]
    held = client.chat.completions.create(model=MODEL, messages=QUESTION, temperature=0, stop=[stop, "never"])
    assert held.choices[0].message.content == text[: text.index(stop)]
    assert held.choices[0].finish_reason == "stop"
    stream = client.chat.completions.create(
        model=MODEL, messages=QUESTION, temperature=0, stop=stop, stream=True
    )
    assert text_of(list(stream)) == text[: text.index(stop)]


def test_max_tokens_ends_with_length(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL, messages=QUESTION, max_completion_tokens=5, extra_body={"ignore_eos": True}
    )
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None and answer.usage.completion_tokens == 5


def test_logprobs(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL, messages=QUESTION, temperature=0, max_tokens=3, logprobs=True, top_logprobs=4
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None and logprobs.content is not None and 1 <= len(logprobs.content) <= 3
    for token in logprobs.content:
        assert token.logprob <= 0 and len(token.top_logprobs) == 4
        assert token.logprob == token.top_logprobs[0].logprob  # greedy: the most likely token is chosen
        assert sum(math.exp(top.logprob) for top in token.top_logprobs) <= 1 + 1e-4
        assert token.bytes is not None
    said = b"".join(bytes(token.bytes or []) for token in logprobs.content).decode(errors="replace")
    assert said.startswith(answer.choices[0].message.content or "")


def test_completions(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model=MODEL, prompt=["2 + 2 =", "1 + 1 ="], max_tokens=4, temperature=0, echo=True, logprobs=2
    )
    assert [choice.index for choice in answer.choices] == [0, 1]
    for choice, prompt in zip(answer.choices, ("2 + 2 =", "1 + 1 ="), strict=True):
        assert choice.text.startswith(prompt)
        assert choice.logprobs is not None and choice.logprobs.tokens is not None
        assert choice.logprobs.token_logprobs is not None and choice.logprobs.token_logprobs[0] is None
    stream = client.completions.create(
        model=MODEL, prompt="2 + 2 =", max_tokens=4, temperature=0, stream=True
    )
    streamed = "".join(chunk.choices[0].text for chunk in stream)
    assert "2 + 2 =" + streamed == answer.choices[0].text


def test_embeddings(client: openai.OpenAI) -> None:
    texts = ["a cat sat on the mat", "a kitten rests on a rug", "interest rates rose"]
    floats = client.embeddings.create(model=ENCODER, input=texts, encoding_format="float")
    vectors = [item.embedding for item in floats.data]
    assert [len(vector) for vector in vectors] == [384] * 3 and floats.usage.prompt_tokens > 0
    assert all(math.isclose(sum(x * x for x in vector), 1.0, abs_tol=1e-3) for vector in vectors)

    def similarity(a: int, b: int) -> float:
        return sum(x * y for x, y in zip(vectors[a], vectors[b], strict=True))

    assert similarity(0, 1) > similarity(0, 2) + 0.2
    raw = client.embeddings.with_raw_response.create(model=ENCODER, input=texts[0], encoding_format="base64")
    encoded = raw.http_response.json()["data"][0]["embedding"]
    assert array("f", base64.b64decode(encoded)).tolist() == pytest.approx(vectors[0], abs=1e-6)


def test_models(client: openai.OpenAI) -> None:
    names = [model.id for model in client.models.list()]
    assert {MODEL, ENCODER, "auto"} <= set(names)
    assert client.models.retrieve(MODEL).id == MODEL
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("no-such-model")


def test_errors_are_the_clients_own_classes(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="no-such-model") as missing:
        client.chat.completions.create(model="no-such-model", messages=QUESTION)
    assert missing.value.param == "model"
    with pytest.raises(openai.BadRequestError) as bad:
        client.chat.completions.create(model=MODEL, messages=QUESTION, temperature=9)
    assert bad.value.param == "temperature"
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model=MODEL, messages=QUESTION, tools=[])
    assert refused.value.param == "tools"
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="sk-wrong").chat.completions.create(model=MODEL, messages=QUESTION)


async def test_async_client_runs_many_streams_at_once(client: openai.OpenAI) -> None:
    async with openai.AsyncOpenAI(
        base_url=str(client.base_url), api_key=client.api_key, max_retries=0
    ) as many:

        async def one(i: int) -> str:
            stream = await many.chat.completions.create(
                model=MODEL, messages=ask(f"What is {i} + {i}?"), temperature=0, stream=True
            )
            return "".join([c.choices[0].delta.content or "" async for c in stream])

        answers = await asyncio.gather(*(one(i) for i in range(2, 26)))
    right = sum(str(2 * i) in answer for i, answer in enumerate(answers, start=2))
    assert right >= 20
