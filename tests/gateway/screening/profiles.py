"""Profiles, a scripted encoder and applications for the tests of screening."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import numpy as np
from numpy import float32
from numpy.typing import NDArray
from starlette.routing import Router

from gateway.answer import Delta
from gateway.providers.fake import FakeProvider, TextCall
from gateway.screening.hooks import HttpHook
from gateway.screening.threads import FairThreads
from gateway.settings import Settings
from gateway.wiring.app import build_app
from guardrails.screen.guard import EmbedTexts, Guard
from policies.cache import CacheSection
from policies.document import EngineModel, ModelEntry, Policies
from policies.guardrails import GuardrailProfile, GuardrailsSection

CHAT = "/v1/chat/completions"


def app_of(provider: FakeProvider, profile: GuardrailProfile, *, mode: Any = "none") -> Router:  # noqa: ANN401
    models = {"m": ModelEntry(engine=EngineModel(checkpoint="/none"))}
    section = GuardrailsSection(profiles={"strict": profile}, default="strict")
    policies = Policies(models=models, guardrails=section, cache=CacheSection(mode=mode), version="v1")
    return build_app(Settings(), policies, dict.fromkeys(models, provider))


def guard_of(profile: GuardrailProfile, embed: EmbedTexts | None = None) -> Guard:
    hooks = {name: HttpHook(rules) for name, rules in profile.hooks.items()}
    return Guard(profile, embed or word_vectors, hooks, threads=FairThreads())


def saying(*pieces: str) -> FakeProvider:
    async def script(call: TextCall) -> AsyncIterator[Delta]:
        for piece in pieces:
            yield Delta(0, piece)
        yield Delta(0, finish_reason="stop")

    return FakeProvider(script)


def body(text: str, **fields: object) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": text}], **fields}


async def word_vectors(texts: Sequence[str]) -> NDArray[float32]:
    """Texts with one word of WORDS are close to each other, and far from all others."""
    found = np.zeros((len(texts), 384), float32)
    for vector, text in zip(found, texts, strict=True):
        hits = [number for number, word in enumerate(WORDS) if word in text.lower()]
        vector[hits or [-1]] = 1
        vector /= np.linalg.norm(vector)
    return found


WORDS = ("football", "medicine", "election")


async def no_answer(texts: Sequence[str]) -> None:
    """An encoder that is away."""
