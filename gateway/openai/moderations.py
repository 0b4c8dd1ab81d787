"""POST /v1/moderations, in OpenAI's shape, by the classifiers of the guardrails."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gateway.accounting.admission import Admission
from gateway.auth import KeyRing
from gateway.errors import InvalidRequest, Unavailable, retry_after
from gateway.exchange.shape import encode
from gateway.extras import lack_of
from gateway.requests.parse import decode_body, typed
from gateway.requests.types import ModerationRequest
from gateway.web.deadlines import Deadlines
from gateway.web.http_call import HttpCall
from guardrails.checks.classifier import Plan, judge_categories, plan, score
from guardrails.screen.guard import EncoderFailed, Guard, Vectors
from guardrails.screen.threads import Threads, is_long
from guardrails.text.normalise import read
from policies.guardrails import ModerationsSection

MODEL = "penstock-guardrails"
MAX_INPUTS = 128
MAX_INPUT_CHARS = 100_000
RETRY_S = 2.0
NO_VECTORS = np.zeros((0, 0), np.float32)

CATEGORIES = {
    "harassment": "harassment",
    "harassment/threatening": None,
    "hate": "hate",
    "hate/threatening": None,
    "illicit": "illicit",
    "illicit/violent": None,
    "self-harm": "self_harm",
    "self-harm/intent": None,
    "self-harm/instructions": None,
    "sexual": "sexual",
    "sexual/minors": None,
    "violence": "violence",
    "violence/graphic": None,
}
"""OpenAI's categories → ours. Those without one are never flagged: no data teaches them."""


class ModerationsEndpoint:
    """Judges texts; asks no model."""

    def __init__(
        self,
        keys: KeyRing,
        guard: Guard,
        admission: Admission,
        rules: ModerationsSection,
        *,
        max_body_bytes: int,
        total_timeout_s: float,
    ) -> None:
        self._keys = keys
        self._guard = guard
        self._admission = admission
        self._rules = rules
        self._max_body_bytes = max_body_bytes
        self._total_timeout_s = total_timeout_s

    async def create(self, call: HttpCall) -> None:
        """`input` → a result for each text.

        Raises InvalidRequest, RateLimited by the tenant's limits, Unavailable without an encoder, TimedOut,
        or ClientGone.
        """
        principal = self._keys.caller(call.authorization, call.internal_caller)
        body = decode_body(await call.read_json_bytes(self._max_body_bytes))
        texts = _inputs(typed(body, ModerationRequest).input, self._rules.max_chars)
        admitted = await self._admission.enter(principal)
        deadlines = Deadlines(self._total_timeout_s)
        deadlines.watch_disconnect(call.receive)
        try:
            results = await self._results(texts, self._guard.threads.of(principal.tenant))
        except asyncio.CancelledError:
            if deadlines.cancel_reason is None:
                raise
            raise deadlines.error() from None
        finally:
            deadlines.close()
            self._admission.settle(admitted)
        answer = {"id": f"modr-{secrets.token_hex(12)}", "model": MODEL, "results": results}
        await call.respond(encode(answer), headers={**admitted.headers})

    async def _results(self, texts: Sequence[str], threads: Threads) -> list[dict[str, object]]:
        in_thread = is_long(texts)
        plans = await threads.run(lambda: [plan(read(text)) for text in texts], in_thread)
        distinct = list(
            dict.fromkeys(piece for each in plans for piece in each.embedded(self._guard.classifier))
        )
        try:
            found = await self._guard.vectors(distinct, threads.encoder_turn) if distinct else ()
        except EncoderFailed:
            if lack := lack_of("semantic"):
                raise Unavailable(f"Moderation {lack}, and an encoder in the policies.") from None
            raise Unavailable(
                "Moderation needs an encoder, and none answered: the policies have none, it is starting or "
                "busy, or the classifier was trained with another one.",
                headers=retry_after(RETRY_S),
            ) from None
        vectors = dict(zip(distinct, found, strict=True))
        return await threads.run(lambda: [self._result(each, vectors) for each in plans], in_thread)

    def _result(self, each: Plan, vectors: Mapping[str, Vectors]) -> dict[str, object]:
        stacked = each.stacked(vectors) if each.pieces else NO_VECTORS
        classifier = self._guard.classifier
        judged = judge_categories(
            score(each, stacked, classifier), self._rules.false_positive_rate, classifier
        )
        found = {name: judged[own] if own else (0.0, False) for name, own in CATEGORIES.items()}
        return {
            "flagged": any(flagged for _, flagged in found.values()),
            "categories": {name: flagged for name, (_, flagged) in found.items()},
            "category_scores": {name: value for name, (value, _) in found.items()},
            "category_applied_input_types": {name: ["text"] * bool(own) for name, own in CATEGORIES.items()},
        }


def _inputs(given: str | list[str] | list[dict[str, Any]], max_chars: int) -> list[str]:
    """The texts: one, several, or the text parts of one input."""
    if isinstance(given, str):
        texts = [given]
    elif all(isinstance(each, str) for each in given):
        texts = [str(each) for each in given]
    else:
        texts = ["\n".join(_part(number, each) for number, each in enumerate(given))]
    if not texts or len(texts) > MAX_INPUTS:
        raise InvalidRequest(f"'input' has {len(texts)} texts: send 1 to {MAX_INPUTS}.", param="input")
    for number, text in enumerate(texts):
        if len(text) > MAX_INPUT_CHARS:
            raise InvalidRequest(
                f"'input[{number}]' has {len(text)} characters: send at most {MAX_INPUT_CHARS} in one text.",
                param="input",
            )
    if (num_chars := sum(map(len, texts))) > max_chars:
        raise InvalidRequest(
            f"'input' has {num_chars} characters in all: send at most {max_chars} in one request "
            "(guardrails.moderations.max_chars).",
            param="input",
        )
    return texts


def _part(number: int, part: object) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind == "text" and isinstance(part, dict) and isinstance(part.get("text"), str):
        return str(part["text"])
    if kind == "image_url":
        raise InvalidRequest(
            f"'input[{number}]' is an image: these classifiers read text only. Leave it out, or pass "
            "/v1/moderations through to an upstream in the policies.",
            param="input",
            code="unsupported_parameter",
        )
    raise InvalidRequest(
        f"'input[{number}]' must be a part of type 'text' with a 'text', when parts are given.", param="input"
    )
