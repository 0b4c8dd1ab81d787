"""Asks the models of a cascade in turn, holding each answer back until its beginning is good enough."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from backend.errors import EngineError
from gateway.answer import Answer, Delta, Following, Generated, Relayed, close_answer
from gateway.errors import ApiError, to_api_error
from gateway.exchange.exchange import Exchange
from gateway.exchange.model_table import ServedModel
from gateway.providers.upstream.generated import in_deltas
from gateway.requests.parse import typed
from gateway.requests.types import ChatRequest, GenerationRequest
from gateway.routing.fallback import error_class
from gateway.telemetry import spans
from gateway.telemetry.request import CallResult
from policies.choose import Cascade
from router.cascade import STANDING_GAIN, confidence, is_json, is_refusal


@dataclass(slots=True)
class _HeldBack:
    """The beginning of an answer."""

    deltas: list[Delta] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish_reason: str = ""

    @property
    def text(self) -> str:
        return "".join(delta.text for delta in self.deltas)

    def add(self, delta: Delta) -> None:
        self.deltas.append(delta)
        self.logprobs += [token.logprob for token in delta.tokens if token.logprob is not None]
        self.finish_reason = delta.finish_reason or self.finish_reason


async def ask_with_doubt(exchange: Exchange, model: ServedModel, rules: Cascade) -> Answer | None:
    """The model's answer, or None where the next model has to answer; the exchange says why.

    Raises the ApiError of a request that no other model would answer either.
    """
    client_request, client_body = exchange.request, exchange.body
    assert isinstance(client_request, GenerationRequest)
    shows_logprobs = client_request.num_logprobs is not None
    if not shows_logprobs and "low_confidence" in rules.escalate_on and model.upstream_api == "openai":
        _change(exchange, {"logprobs": True if isinstance(client_request, ChatRequest) else 0})
    try:
        exchange.start_call(model)
        answer = await exchange.ask(model, exchange.asked.telemetry)
    except (ApiError, EngineError) as failure:
        error = to_api_error(failure)
        if "error" not in rules.escalate_on or error_class(error) is None:
            raise
        _give_up(exchange, model, str(error_class(error)), None)
        return None
    finally:
        exchange.request, exchange.body = client_request, client_body
    assert isinstance(answer, Generated | Relayed)
    neutral = in_deltas(answer)
    held = _HeldBack()
    try:
        judge = _Judge(rules, exchange.decided.gain, _wants_json(client_request), client_request.is_stream)
        cause = await judge.cause(neutral, held)
    except BaseException as failure:
        await close_answer(neutral)
        if not isinstance(failure, ApiError | EngineError) or "error" not in rules.escalate_on:
            raise
        cause = "error"
    if cause:
        await close_answer(neutral)
        _give_up(exchange, model, cause, neutral)
        _predict_with(exchange, held, rules)
        return None
    lowest = confidence(held.logprobs)
    exchange.reason += f", {model.name}: " + ("unjudged" if lowest is None else f"confidence {lowest:.2f}")
    neutral.deltas = _Replayed(held.deltas, neutral.deltas, keeps_tokens=shows_logprobs)
    return neutral


@dataclass(frozen=True, slots=True)
class _Judge:
    """Whether an answer is kept."""

    rules: Cascade
    gain: float | None  # predicted, where the rules have an estimate
    wants_json: bool
    is_stream: bool  # else the client waits for the whole anyway

    async def cause(self, answer: Generated, held: _HeldBack) -> str:
        """Read until the answer is certain to be kept, "", or not, the cause."""
        rules = self.rules
        async for delta in answer.deltas:
            held.add(delta)
            lowest = confidence(held.logprobs)
            if "low_confidence" in rules.escalate_on and lowest is not None and lowest < rules.min_confidence:
                return f"confidence {lowest:.2f}"
            num_held = max(len(held.logprobs), len(held.deltas))
            if num_held >= rules.hold_back_tokens and self.is_stream and not self.wants_json:
                break
        return self._cause_in_text(held)

    def _cause_in_text(self, held: _HeldBack) -> str:
        rules, text = self.rules, held.text
        stands = self.gain is not None and self.gain < STANDING_GAIN
        if "refusal" in rules.escalate_on and not stands and is_refusal(text, rules.refusals):
            return "refusal"
        if "truncated" in rules.escalate_on and held.finish_reason == "length":
            return "truncated"
        has_calls = any(delta.tool_calls for delta in held.deltas)
        if "invalid_json" in rules.escalate_on and self.wants_json and not has_calls and not is_json(text):
            return "invalid JSON"
        return ""


def _give_up(exchange: Exchange, model: ServedModel, cause: str, answer: Generated | None) -> None:
    """Account for a model's call whose answer is dropped."""
    exchange.reason += f", {model.name}: {cause}"
    usage = None if answer is None else answer.usage
    if usage is not None:
        exchange.rejected_usage.append((model, usage))
    exchange.asked.telemetry.call_ended(CallResult(usage=usage, response_model=model.name))
    exchange.asked.telemetry.annotate({spans.REASON: exchange.reason})


def _predict_with(exchange: Exchange, held: _HeldBack, rules: Cascade) -> None:
    """Keep the rejected words for the next model's drafts."""
    if rules.prediction and held.text and isinstance(exchange.request, ChatRequest):
        exchange.rejected_text = held.text


def predicting(exchange: Exchange, model: ServedModel) -> None:
    """Give an engine of ours the rejected words, unless the client predicts something itself."""
    request = exchange.request
    if not exchange.rejected_text or model.engine is None or not isinstance(request, ChatRequest):
        return
    if request.prediction is None and not request.tools:
        _change(exchange, {"prediction": {"type": "content", "content": exchange.rejected_text}})


def _change(exchange: Exchange, fields: dict[str, Any]) -> None:
    exchange.body = {**exchange.body, **fields}
    exchange.request = typed(exchange.body, type(exchange.request))


def _wants_json(request: object) -> bool:
    kind = (getattr(request, "response_format", None) or {}).get("type")
    return kind in ("json_object", "json_schema")


class _Replayed(Following[Delta]):
    """What was held back, then the rest; without the tokens' records unless the client asked for them."""

    def __init__(self, held: list[Delta], rest: AsyncIterator[Delta], *, keeps_tokens: bool) -> None:
        super().__init__(rest)
        self._held = held[::-1]
        self._keeps_tokens = keeps_tokens

    async def __anext__(self) -> Delta:
        delta = self._held.pop() if self._held else await super().__anext__()
        if not self._keeps_tokens and delta.tokens:
            delta.tokens = []
        return delta

    async def aclose(self) -> None:
        """Close what is read from."""
        self._held.clear()
        await super().aclose()
