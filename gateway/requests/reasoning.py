"""Whether a chat reasons and shows it: as the request says, else the policy, else the model's default."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, get_args

import msgspec
from msgspec import Meta

from backend.tokenizer.thinking import SWITCHES, Tags, ThinkingMode
from gateway.errors import InvalidRequest
from gateway.requests import refusals
from gateway.requests.messages import content_text
from gateway.requests.parse import typed_at
from gateway.requests.types import ChatRequest
from policies.document import Reasoning
from policies.names import Effort

EFFORTS = get_args(Effort)
DEFAULT_EFFORT = "medium"
"""Where a request turns reasoning on and no more."""


@dataclass(frozen=True, slots=True)
class ReasoningDecision:
    """Whether one chat reasons, and whether the answer shows it."""

    is_on: bool
    variables: Mapping[str, Any]  # for the chat template
    is_shown: bool = True
    ignores_effort: bool = False  # the request asked for an effort that the model cannot do


def chat_reasoning(
    request: ChatRequest, mode: ThinkingMode, policy: Reasoning, *, is_strict: bool = False
) -> ReasoningDecision:
    """Raises InvalidRequest, naming the field, for what the model cannot do or its policy forbids.

    SDKs and agents send `reasoning_effort` to every model; one that the model cannot do is ignored unless
    `is_strict`.
    """
    if request.include_reasoning and not policy.expose:
        raise InvalidRequest(
            "The policy of this model does not expose its reasoning. Leave 'include_reasoning' out.",
            param="include_reasoning",
            code="unsupported_value",
        )
    effort = request.reasoning_effort
    _check_effort(effort)
    is_ignored = not is_strict and effort is not None and bool(_impossible(effort != "none", mode))
    found = resolve_reasoning(None if is_ignored else effort, request.chat_template_kwargs, mode, policy)
    is_shown = policy.expose and request.include_reasoning is not False
    return replace(found, is_shown=is_shown, ignores_effort=is_ignored)


class _Reasoning(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """OpenRouter's `reasoning`."""

    effort: str | None = None
    max_tokens: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    exclude: bool | None = None
    enabled: bool | None = None
    summary: str | None = None  # accepted: reasoning is shown as it is


def with_effort(request: ChatRequest) -> ChatRequest:
    """The request with what its `reasoning` says in the fields for it. Raises InvalidRequest."""
    if request.reasoning is None:
        return request
    found = typed_at(request.reasoning, _Reasoning, "reasoning")
    effort = found.effort
    if effort is None and (found.enabled is not None or found.max_tokens is not None):
        effort = "none" if found.enabled is False else DEFAULT_EFFORT
    given = {
        "reasoning_effort": effort,
        "thinking_token_budget": found.max_tokens,
        "include_reasoning": False if found.exclude else None,
    }
    changes = {name: value for name, value in given.items() if value is not None}
    for name, value in changes.items():
        if getattr(request, name) not in (None, value):
            raise refusals.wrong_value("reasoning", f"it contradicts '{name}'; send one of them")
    return msgspec.structs.replace(request, **changes)


def shows_reasoning(request: ChatRequest) -> bool:
    """Whether the answer of an upstream shows its reasoning: as asked, else where an effort is."""
    if request.include_reasoning is None:
        return request.reasoning_effort not in (None, "none")
    return request.include_reasoning


def resolve_reasoning(
    effort: str | None, template_kwargs: Mapping[str, Any] | None, mode: ThinkingMode, policy: Reasoning
) -> ReasoningDecision:
    """Decide from `reasoning_effort` and `chat_template_kwargs` alone. Raises as `chat_reasoning`."""
    _check_effort(effort)
    switch = _switch(template_kwargs or {})
    wanted = None if effort is None else effort != "none"
    if None not in (switch, wanted) and switch != wanted:
        raise InvalidRequest(
            f"'chat_template_kwargs' contradicts 'reasoning_effort' ({effort!r}). Send one of them.",
            param="chat_template_kwargs",
            code="invalid_value",
        )
    if switch is None and wanted is None and policy.default_effort is not None:
        effort, wanted = policy.default_effort, policy.default_effort != "none"
    is_on = switch if wanted is None else wanted
    if is_on is None:
        return ReasoningDecision(mode.is_default, {})
    _check_possible(is_on, mode, "reasoning_effort" if effort is not None else "chat_template_kwargs")
    variables: dict[str, Any] = dict(mode.variables(is_on))
    if is_on and effort is not None:
        variables["reasoning_effort"] = effort  # for templates with effort levels
    return ReasoningDecision(is_on, variables)


def default_effort_error(mode: ThinkingMode, policy: Reasoning) -> str:
    """Why this model cannot do the policy's default effort; "" when it can."""
    try:
        resolve_reasoning(None, None, mode, policy)
    except InvalidRequest as error:
        return error.message
    return ""


def ends_inside_reasoning(message: dict[str, Any], tags: Tags) -> bool:
    """True when a final message that is to be continued ends within its reasoning. It must be valid."""
    text = content_text(message, "messages[-1]")
    return text.rfind(tags.opening) > text.rfind(tags.closing)


def _check_effort(effort: str | None) -> None:
    if effort is not None and effort not in EFFORTS:
        raise refusals.wrong_value("reasoning_effort", f"expected one of {', '.join(EFFORTS)}", effort)


def _switch(template_kwargs: Mapping[str, Any]) -> bool | None:
    """Whether `chat_template_kwargs` switch reasoning on or off; None: neither."""
    found: set[bool] = set()
    for name, value in template_kwargs.items():
        where = f"chat_template_kwargs.{name}"
        if name not in SWITCHES:
            raise refusals.unknown_field(name, SWITCHES, "chat_template_kwargs.")
        if not isinstance(value, bool):
            raise refusals.wrong_type(where, "a boolean")
        found.add(value)
    if len(found) > 1:
        raise InvalidRequest(
            f"{' and '.join(map(repr, SWITCHES))} in 'chat_template_kwargs' contradict each other. Send one.",
            param="chat_template_kwargs",
            code="invalid_value",
        )
    return found.pop() if found else None


def _impossible(is_on: bool, mode: ThinkingMode) -> str:
    """Why the model cannot reason, or cannot answer without; "" when it can."""
    if is_on and not mode.can_think:
        return "has no reasoning mode: its chat template has no switch for it"
    if not is_on and mode.is_default and not mode.switches:
        return "always reasons: its chat template has no switch that turns it off"
    return ""


def _check_possible(is_on: bool, mode: ThinkingMode, param: str) -> None:
    what, remedy = _impossible(is_on, mode), "'none'" if is_on else "another effort"
    if not what:
        return
    raise InvalidRequest(
        f"'{param}' asks for something that this model cannot do. It {what}. Leave it out"
        + (f", or send {remedy}." if param == "reasoning_effort" else "."),
        param=param,
        code="unsupported_value",
    )
