"""What rules change in a request, and in how its model is used."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec

from gateway.exchange.exchange import Exchange
from gateway.exchange.model_table import ServedModel
from gateway.requests.parse import typed
from gateway.requests.types import ChatRequest
from gateway.web.deadlines import TimeLimits
from policies.routes import Action, Bounds, Parameters, Timeouts

_OF_CHATS = {"reasoning_effort", "thinking_token_budget"}
_SYSTEM_ROLES = ("system", "developer")


def change_request(exchange: Exchange, changes: Sequence[Action]) -> None:
    """Apply parameters and system texts, in order, to `exchange.body` and `exchange.request`."""
    body = dict(exchange.body)
    is_chat = isinstance(exchange.request, ChatRequest)
    for change in changes:
        if change.parameters is not None:
            _change_parameters(body, change.parameters, is_chat=is_chat)
        if change.system is not None and is_chat:
            body["messages"] = _with_system(body["messages"], change.system)
    if body != exchange.body:
        exchange.body = body
        exchange.request = typed(body, type(exchange.request))


def adapted(model: ServedModel, changes: Sequence[Action]) -> ServedModel:
    """The model with the time limits, cache rules and guardrails of rules."""
    limits, cache, guardrails = model.limits, model.cache, model.guardrails
    for change in changes:
        if change.timeouts is not None:
            limits = _with_timeouts(limits, change.timeouts)
        if change.cache is not None and cache is not None:
            cache = cache.with_rules(change.cache)
        if change.guardrails is not None:
            guardrails = change.guardrails
    if limits is model.limits and cache is model.cache and guardrails == model.guardrails:
        return model
    return replace(model, limits=limits, cache=cache, guardrails=guardrails)


def _with_timeouts(limits: TimeLimits, timeouts: Timeouts) -> TimeLimits:
    return TimeLimits(
        timeouts.first_token_s or limits.first_token_s,
        timeouts.idle_s or limits.idle_s,
        timeouts.total_s or limits.total_s,
    )


def _change_parameters(body: dict[str, Any], parameters: Parameters, *, is_chat: bool) -> None:
    for stripped in parameters.strip:
        body.pop(stripped, None)
    if parameters.set is not None:
        for name, value in msgspec.structs.asdict(parameters.set).items():
            if value is not None and (is_chat or name not in _OF_CHATS):
                body[name] = value
                if name == "max_tokens":
                    body.pop("max_completion_tokens", None)
    if parameters.clamp is not None:
        for name, bounds in msgspec.structs.asdict(parameters.clamp).items():
            if bounds is not None and (is_chat or name not in _OF_CHATS):
                _clamp(body, name, bounds)


def _clamp(body: dict[str, Any], name: str, bounds: Bounds) -> None:
    if name == "max_tokens" and body.get("max_completion_tokens") is not None:
        name = "max_completion_tokens"
    value = body.get(name)
    if value is None and name in ("max_tokens", "thinking_token_budget"):
        value = bounds.max
    if value is None:
        return
    value = value if bounds.min is None else max(value, bounds.min)
    value = value if bounds.max is None else min(value, bounds.max)
    body[name] = int(value) if name != "temperature" and name != "top_p" else value


def _with_system(messages: list[dict[str, Any]], text: str) -> list[dict[str, Any]]:
    """`text` follows the client's system message, or becomes the first message."""
    first = messages[0]
    if first.get("role") not in _SYSTEM_ROLES:
        return [{"role": "system", "content": text}, *messages]
    content = first.get("content")
    if isinstance(content, list):
        joined: object = [*content, {"type": "text", "text": text}]
    else:
        joined = f"{content}\n\n{text}" if content else text
    return [{**first, "content": joined}, *messages[1:]]
