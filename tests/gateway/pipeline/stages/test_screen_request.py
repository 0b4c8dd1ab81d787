"""The stage shares vectors with the router before it and the cache after it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy import float32
from numpy.typing import NDArray

from gateway.exchange.model_table import ModelTable, ServedModel
from gateway.exchange.prompt_embedding import Meaning
from gateway.pipeline.dry_run import exchange_for
from gateway.pipeline.stages.read_request import ReadRequest
from gateway.pipeline.stages.screen_request import ScreenRequest
from gateway.providers.fake import FakeProvider
from gateway.routing.other_models import OtherModels
from gateway.screening.guards import Guards
from gateway.web.deadlines import TimeLimits
from policies.guardrails import GuardrailProfile, GuardrailsSection, TopicRules
from tests.gateway.pipeline.exchanges import routed_to
from tests.gateway.screening.profiles import word_vectors

PROFILE = GuardrailProfile(topics={"sport": TopicRules(examples=["football"], min_similarity=0.9)})
QUESTION = "Which medicine helps best?"


@pytest.mark.parametrize("is_known", [False, True])
async def test_a_question_is_encoded_once(is_known: bool) -> None:
    encoded: list[str] = []

    async def embed(texts: Sequence[str]) -> NDArray[float32]:
        encoded.extend(texts)
        return await word_vectors(texts)

    body: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": QUESTION}]}
    exchange = exchange_for(body)
    await ReadRequest().enter(exchange)
    limits = TimeLimits(None, None, 60)
    exchange.route(routed_to(ServedModel("m", "upstream", FakeProvider(), limits, guardrails="p")))
    (vector,) = await word_vectors([QUESTION])
    if is_known:
        exchange.meaning = Meaning.known(QUESTION, vector)
    guards = Guards(GuardrailsSection(profiles={"p": PROFILE}), embed)
    await ScreenRequest(guards, OtherModels(ModelTable([], {}), 1)).enter(exchange)
    assert encoded == (["football"] if is_known else [QUESTION, "football"])
    assert exchange.meaning is not None and exchange.meaning.text == QUESTION
    found = await exchange.meaning.vector()
    assert found is not None and np.array_equal(found, vector)
