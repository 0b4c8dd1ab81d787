from __future__ import annotations

import asyncio
from typing import Any, cast

import numpy as np
import pytest

from backend.errors import EngineError
from gateway.exchange import prompt_embedding
from gateway.exchange.prompt_embedding import Meaning, embed_texts_with, embed_with


class _Encoder:
    """Counts calls; hangs, fails or answers."""

    def __init__(self) -> None:
        self.num_asked = 0
        self.hangs = False
        self.error: Exception | None = None

    async def embed(self, texts: list[str]) -> Any:  # noqa: ANN401
        self.num_asked += 1
        if self.hangs:
            await asyncio.Event().wait()
        if self.error is not None:
            raise self.error
        return type("Embedded", (), {"vectors": [np.ones(3, np.float32).tobytes()]})


async def test_a_text_is_encoded_once_also_for_those_who_give_up() -> None:
    encoder = _Encoder()
    found = Meaning("a", embed_with(cast(Any, encoder)))
    impatient = asyncio.create_task(found.vector())
    patient = asyncio.create_task(found.vector())
    await asyncio.sleep(0)
    impatient.cancel()
    vector = await patient
    assert vector is not None
    np.testing.assert_allclose(vector, [3**-0.5] * 3, rtol=1e-6)  # of length 1, whatever the encoder gives
    assert encoder.num_asked == 1


async def test_an_encoder_that_hangs_is_not_waited_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt_embedding, "WAIT_LIMIT_S", 0.01)
    encoder = _Encoder()
    encoder.hangs = True
    embed = embed_with(cast(Any, encoder))
    assert [await embed("a") for _ in range(10)] == [None] * 10
    assert encoder.num_asked == 1


async def test_a_refused_text_is_no_failure_of_the_encoder() -> None:
    encoder = _Encoder()
    encoder.error = EngineError("too long")
    embed = embed_with(cast(Any, encoder))
    assert [await embed("a") for _ in range(3)] == [None] * 3
    assert encoder.num_asked == 3


async def test_a_caller_that_leaves_says_nothing_about_the_encoder(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = _Encoder()
    encoder.hangs = True
    embed = embed_texts_with(cast(Any, encoder))
    for _ in range(3):
        asking = asyncio.create_task(embed(["a"]))
        await asyncio.sleep(0)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
    assert encoder.num_asked == 3
    monkeypatch.setattr(prompt_embedding, "WAIT_LIMIT_S", 0.0)  # now each has waited long enough to tell
    asking = asyncio.create_task(embed(["a"]))
    await asyncio.sleep(0)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert await embed(["a"]) is None and encoder.num_asked == 4
