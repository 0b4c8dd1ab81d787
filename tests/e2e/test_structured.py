"""Structured output through the official client: schemas, choices, refusals, hostile schemas."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jsonschema
import openai
import pytest
from pydantic import BaseModel

from tests.backend.structured.schemas import closed, huge_enum
from tests.e2e.conftest import MODEL
from tests.e2e.test_openai_sdk import ask, text_of

SCHEMA = closed({"name": {"type": "string"}, "age": {"type": "integer"}})
QUESTION = ask("Anna is 31 years old. Give name and age as JSON.")


def as_format(schema: object, **more: object) -> Any:  # noqa: ANN401 - the client's type is a union of dicts
    return {"type": "json_schema", "json_schema": {"name": "data", "schema": schema, **more}}


@pytest.mark.parametrize("temperature", [0, 2])
def test_a_strict_schema(client: openai.OpenAI, temperature: float) -> None:
    fields: dict[str, Any] = {
        "model": MODEL,
        "messages": QUESTION,
        "response_format": as_format(SCHEMA, strict=True),
        "temperature": temperature,
        "seed": 5,
        "n": 2,
        "max_tokens": 200,
    }
    whole = client.chat.completions.create(**fields)
    chunks = list(client.chat.completions.create(**fields, stream=True))
    finished = [choice for choice in whole.choices if choice.finish_reason == "stop"]
    assert finished
    for choice in finished:
        jsonschema.validate(json.loads(choice.message.content or ""), SCHEMA)
    for choice in whole.choices:
        assert text_of(chunks, choice.index) == choice.message.content


def test_a_schema_applies_to_an_adapter_too(client: openai.OpenAI) -> None:
    """The adapter `json` writes `answer` by itself; the base model runs in the same batch and schema."""
    fields: dict[str, Any] = {"messages": ask("Convert 5 km to m."), "temperature": 0, "max_tokens": 60}
    free = client.chat.completions.create(model="json", **fields)
    assert list(json.loads(free.choices[0].message.content or "")) == ["answer"]
    schema = closed({"result": {"type": "string", "maxLength": 20}})
    fields |= {"response_format": as_format(schema, strict=True), "logprobs": True}

    def answer(model: str) -> str:
        choice = client.chat.completions.create(model=model, **fields).choices[0]
        text = choice.message.content or ""
        assert choice.finish_reason == "stop" and choice.logprobs and choice.logprobs.content
        assert "".join(token.token for token in choice.logprobs.content) == text
        jsonschema.validate(json.loads(text), schema)
        return text

    models = ["json", MODEL, f"{MODEL}:codewords", "json"]
    with ThreadPoolExecutor(len(models)) as pool:
        texts = list(pool.map(answer, models))
    assert texts[0] == texts[3] and texts[2] not in texts[:2], "each writes with its own weights"
    chunks = list(client.chat.completions.create(model=f"{MODEL}:codewords", stream=True, **fields))
    assert text_of(chunks) == texts[2]


class Person(BaseModel):
    name: str
    age: int


def test_a_parsed_answer(client: openai.OpenAI) -> None:
    answer = client.chat.completions.parse(
        model=MODEL, messages=QUESTION, response_format=Person, temperature=0, max_tokens=200
    )
    assert isinstance(answer.choices[0].message.parsed, Person)


def test_choices_in_a_completion(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model=MODEL, prompt="3 + 4 =", max_tokens=20, extra_body={"guided_choice": ["seven", "eleven"]}
    )
    assert answer.choices[0].text in ("seven", "eleven") and answer.choices[0].finish_reason == "stop"


@pytest.mark.parametrize("stream", [False, True])
def test_an_invalid_grammar_is_a_400(client: openai.OpenAI, stream: bool) -> None:
    schema = closed({"a": {"type": "string", "minLength": 5, "maxLength": 2}})
    with pytest.raises(openai.BadRequestError, match="nsatisfiable") as refused:
        client.chat.completions.create(
            model=MODEL, messages=QUESTION, response_format=as_format(schema, strict=True), stream=stream
        )
    assert refused.value.param == "response_format"


def test_a_hostile_schema_delays_no_other(client: openai.OpenAI) -> None:
    def hostile() -> None:
        client.chat.completions.create(
            model=MODEL, messages=QUESTION, response_format=as_format(huge_enum(9000))
        )

    with ThreadPoolExecutor(1) as pool:
        refused = pool.submit(hostile)
        answers = 0
        while not refused.done():
            answer = client.chat.completions.create(
                model=MODEL, messages=ask("What is 17 + 25?"), temperature=0
            )
            answers += "42" in (answer.choices[0].message.content or "")
    assert answers > 0
    # Which limit it exceeds first depends on the speed of the machine.
    with pytest.raises(openai.BadRequestError, match="takes longer|too complex") as error:
        refused.result()
    assert error.value.param == "response_format"
