"""Whether a chat thinks and shows it: by the request's word, else the policy's, else the model's habit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args

from backend.tokenizer.thinking import CLOSE_TAG, OPEN_TAG, SWITCHES, ThinkingMode
from gateway.errors import InvalidRequest
from gateway.requests.field_support import unknown_field
from gateway.requests.messages import content_text
from gateway.requests.types import ChatRequest
from policies.document import Effort, Reasoning

EFFORTS = get_args(Effort)


@dataclass(frozen=True, slots=True)
class Thinking:
    """What was decided for one chat."""

    thinks: bool
    variables: Mapping[str, Any]  # for the chat template
    is_shown: bool = True


def decide(request: ChatRequest, mode: ThinkingMode, policy: Reasoning) -> Thinking:
    """Raises InvalidRequest, naming the field, for what this model cannot do or its policy forbids."""
    if request.include_reasoning and not policy.expose:
        raise InvalidRequest(
            "The policy of this model keeps its reasoning to itself. Leave 'include_reasoning' out.",
            param="include_reasoning",
            code="unsupported_value",
        )
    found = choose(request.reasoning_effort, request.chat_template_kwargs, mode, policy)
    is_shown = policy.expose and request.include_reasoning is not False
    return Thinking(found.thinks, found.variables, is_shown=is_shown)


def choose(
    effort: str | None, template_kwargs: Mapping[str, Any] | None, mode: ThinkingMode, policy: Reasoning
) -> Thinking:
    """`decide` without a word on what is shown; errors as there."""
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
    thinks = switch if wanted is None else wanted
    if thinks is None:
        return Thinking(mode.is_default, {})
    _check_possible(thinks, mode, "reasoning_effort" if effort is not None else "chat_template_kwargs")
    variables: dict[str, Any] = dict(mode.variables(thinks))
    if thinks and effort is not None:
        variables["reasoning_effort"] = effort  # for the templates that know levels
    return Thinking(thinks, variables)


def fault_of_default(mode: ThinkingMode, policy: Reasoning) -> str:
    """What is wrong with a policy's default for this model; "" when nothing is."""
    try:
        choose(None, None, mode, policy)
    except InvalidRequest as error:
        return error.message
    return ""


def is_inside_thought(message: dict[str, Any]) -> bool:
    """True when a final message, a valid one that is to be continued, ends in the middle of a thought."""
    text = content_text(message, "messages[-1]")
    return text.rfind(OPEN_TAG) > text.rfind(CLOSE_TAG)


def _check_effort(effort: str | None) -> None:
    if effort is not None and effort not in EFFORTS:
        shown = f" (got {effort!r})" if len(effort) <= 16 else ""
        raise InvalidRequest(
            f"Invalid value for 'reasoning_effort'{shown}: expected one of {', '.join(EFFORTS)}.",
            param="reasoning_effort",
            code="invalid_value",
        )


def _switch(template_kwargs: Mapping[str, Any]) -> bool | None:
    """What `chat_template_kwargs` says about thinking."""
    found: set[bool] = set()
    for name, value in template_kwargs.items():
        where = f"chat_template_kwargs.{name}"
        if name not in SWITCHES:
            raise unknown_field(name, SWITCHES, "chat_template_kwargs.")
        if not isinstance(value, bool):
            raise InvalidRequest(
                f"Invalid type for '{where}': expected a boolean.", param=where, code="invalid_type"
            )
        found.add(value)
    if len(found) > 1:
        raise InvalidRequest(
            f"{' and '.join(map(repr, SWITCHES))} in 'chat_template_kwargs' contradict each other. Send one.",
            param="chat_template_kwargs",
            code="invalid_value",
        )
    return found.pop() if found else None


def _check_possible(thinks: bool, mode: ThinkingMode, param: str) -> None:
    if thinks and not mode.can_think:
        what, remedy = "has no reasoning mode: its chat template has no switch for it", "'none'"
    elif not thinks and mode.is_default and not mode.switches:
        what, remedy = "always reasons: its chat template has no switch that turns it off", "another effort"
    else:
        return
    raise InvalidRequest(
        f"'{param}' asks for something that this model cannot do. It {what}. Leave it out"
        + (f", or send {remedy}." if param == "reasoning_effort" else "."),
        param=param,
        code="unsupported_value",
    )
