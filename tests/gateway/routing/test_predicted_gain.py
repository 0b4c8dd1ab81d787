"""Which texts are encoded for the prediction: the part that asks, where the encoder reads its language."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gateway.pipeline.stages.read_request import ReadRequest
from gateway.routing.predicted_gain import predict_gain
from router.estimate import load_estimate
from tests.gateway.pipeline.exchanges import exchange_with


async def encoded(*turns: str, estimate: str = "builtin:general") -> list[str]:
    asked: list[str] = []

    async def embed(text: str) -> Any:  # noqa: ANN401
        asked.append(text)
        return np.zeros(384, np.float32)

    messages = [{"role": "user", "content": turn} for turn in turns]
    exchange = exchange_with({"model": "auto", "messages": messages})
    await ReadRequest().enter(exchange)
    await predict_gain(exchange, load_estimate(estimate), embed, {"en"})
    return asked


@pytest.mark.parametrize(
    ("turns", "texts"),
    [
        (["Who rules the capital of Norway?"], ["Who rules the capital of Norway?"]),
        (["Hello! The sun is out. What is 17 + 25?"], ["What is 17 + 25?"]),
        (["Wie viele Menschen leben eigentlich in der Hauptstadt von Norwegen?"], []),
        (["¿Cuántas personas viven hoy en la capital de Noruega?"], []),
        (["Erkläre mir bitte den Unterschied zwischen Wetter und Klima.", "Why does it rain in Bergen?"],
         ["Why does it rain in Bergen?"]),
        ([""], []),
    ],
)  # fmt: skip
async def test_the_part_that_asks_is_encoded_where_the_encoder_reads_it(
    turns: list[str], texts: list[str]
) -> None:
    assert await encoded(*turns) == texts


async def test_an_estimate_of_words_alone_encodes_nothing() -> None:
    assert await encoded("What is the capital of Norway?", estimate="builtin:pico") == []
