"""The `routes` and `routing` sections: rules with conditions, and what a matching rule does to a request."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal, get_args

import msgspec
from msgspec import Meta

from policies.cache import CacheRules
from policies.choose import BestOf, Cascade, Choose
from policies.names import Effort, Name
from policies.retries import Hedge, Retry

ErrorClass = Literal[
    "context_too_long", "rate_limited", "refused", "timeout", "server_error", "unavailable"
]  # fmt: skip
ERROR_CLASSES: tuple[ErrorClass, ...] = get_args(ErrorClass)
Sticky = Literal["user", "tenant", "conversation", "none"]
Field = Literal[
    "frequency_penalty", "logit_bias", "logprobs", "max_completion_tokens", "max_tokens", "metadata",
    "min_p", "n", "parallel_tool_calls", "prediction", "presence_penalty", "prompt_cache_key",
    "reasoning_effort", "repetition_penalty", "response_format", "safety_identifier", "seed", "service_tier",
    "speculative", "stop", "store", "temperature", "thinking_token_budget", "tool_choice", "tools", "top_k",
    "top_logprobs", "top_p", "user", "verbosity", "web_search_options",
]  # fmt: skip
"""Request fields that a rule may remove."""

Condition = Annotated[
    str, Meta(min_length=1, max_length=4096, description="CEL that gives a bool.", extra={"cel": True})
]
HeaderName = Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9-]*$", max_length=64)]
Weight = Annotated[float, Meta(gt=0, le=1e6)]
Tokens = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Temperature = Annotated[float, Meta(ge=0.0, le=2.0)]
Fraction = Annotated[float, Meta(ge=0.0, le=1.0)]
SystemText = Annotated[str, Meta(min_length=1, max_length=20_000)]
LimitS = Annotated[float, Meta(gt=0, le=86400)]


class Split(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A weighted choice: A/B tests and canaries."""

    models: Annotated[
        dict[Name, Weight],
        Meta(description="Model → weight; a weight over the sum of all is the model's share."),
    ]
    sticky: Annotated[
        Sticky,
        Meta(
            description="What always gets the same model: a `user` (the request's `safety_identifier` or "
            "`user`, else the tenant), a `tenant`, a `conversation` (its first turns); `none`: chance."
        ),
    ] = "user"


class Refusal(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An error in place of an answer."""

    message: Annotated[str, Meta(min_length=1, max_length=1000, description="What the client is told.")]
    status: Annotated[int, Meta(ge=400, le=499)] = 403


class Fallback(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Models to try next, in order, when one fails before the first content of its answer."""

    any: Annotated[list[Name], Meta(description="For every class of errors that has no list itself.")] = []
    context_too_long: list[Name] | None = None
    rate_limited: Annotated[list[Name] | None, Meta(description="429, and our engine's full queue.")] = None
    refused: Annotated[
        list[Name] | None, Meta(description="By a content filter, ours for this model or the upstream's.")
    ] = None
    timeout: list[Name] | None = None
    server_error: list[Name] | None = None
    unavailable: Annotated[
        list[Name] | None, Meta(description="Starting, restarting, 503, or it cannot be reached.")
    ] = None

    def after(self, error: ErrorClass) -> list[Name]:
        """The models to try after an error of this class."""
        own: list[Name] | None = getattr(self, error)
        return self.any if own is None else own

    def all(self) -> Iterator[tuple[str, list[Name]]]:
        """Each list that is set, with its key."""
        yield "any", self.any
        yield from ((name, models) for name in ERROR_CLASSES if (models := getattr(self, name)) is not None)


class Shadow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A copy of requests to another model. Its answer is measured, as the endpoint `shadow`, and dropped."""

    model: Name
    share: Annotated[float, Meta(gt=0, le=1, description="Of the requests.")] = 0.01
    max_per_minute: Annotated[int, Meta(ge=1, description="In each gateway worker.")] = 60
    is_right: Annotated[
        bool,
        Meta(
            description="Its answers are taken to be right: how far those that were sent agree with them is "
            "recorded in the decision log, as labels for `penstock router train --log`."
        ),
    ] = False


class SetParameters(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Values that replace those of the request."""

    temperature: Temperature | None = None
    top_p: Fraction | None = None
    top_k: Annotated[int, Meta(ge=-1)] | None = None
    min_p: Fraction | None = None
    max_tokens: Tokens | None = None
    seed: int | None = None
    frequency_penalty: Annotated[float, Meta(ge=-2.0, le=2.0)] | None = None
    presence_penalty: Annotated[float, Meta(ge=-2.0, le=2.0)] | None = None
    reasoning_effort: Effort | None = None
    thinking_token_budget: Tokens | None = None


class Bounds(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The allowed range of a number."""

    min: float | None = None
    max: float | None = None


class Clamp(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Ranges into which values of the request are moved."""

    temperature: Bounds | None = None
    top_p: Bounds | None = None
    n: Bounds | None = None
    max_tokens: Annotated[
        Bounds | None,
        Meta(description="Also of `max_completion_tokens`; `max` holds for requests that set neither."),
    ] = None
    thinking_token_budget: Annotated[
        Bounds | None,
        Meta(description="Reasoning tokens of our engines; `max` holds for requests that set none."),
    ] = None


class Parameters(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Changes to the request's fields: first `strip`, then `set`, then `clamp`."""

    strip: list[Field] = []
    set: SetParameters | None = None
    clamp: Clamp | None = None


class Timeouts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits of one model call, each in seconds. Default: the model's own."""

    first_token_s: Annotated[
        LimitS | None,
        Meta(description="Also of an upstream's answer that is not streamed, which arrives as a whole."),
    ] = None
    idle_s: LimitS | None = None
    total_s: LimitS | None = None


class Action(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One destination (`model`, `split`, `choose`, `cascade`, `best_of`, `refuse`), and changes."""

    model: Annotated[
        Name | None, Meta(description="The model or adapter (`NAME` or `BASE:NAME`) that answers.")
    ] = None
    split: Split | None = None
    choose: Choose | None = None
    cascade: Cascade | None = None
    best_of: BestOf | None = None
    refuse: Refusal | None = None
    fallback: Fallback | None = None
    retry: Annotated[Retry | None, Meta(description="Of an upstream, before a fallback.")] = None
    hedge: Hedge | None = None
    parameters: Parameters | None = None
    system: Annotated[SystemText | None, Meta(description="Added to a chat's system message.")] = None
    timeouts: Timeouts | None = None
    shadow: Shadow | None = None
    cache: Annotated[
        CacheRules | None, Meta(description="What differs from the model's `cache`, for these requests.")
    ] = None
    guardrails: Annotated[
        Name | None, Meta(description="Profile of the section `guardrails`, in place of the model's.")
    ] = None

    @property
    def destination(self) -> str:
        """The key that says where the request goes; "" when there is none."""
        return next((key for key in DESTINATIONS if getattr(self, key) is not None), "")

    def targets(self) -> list[Name]:
        """The models that may answer first."""
        if self.model is not None:
            return [self.model]
        if self.choose is not None:
            return [*self.choose.candidates]
        if self.cascade is not None:
            return self.cascade.models
        if self.best_of is not None:
            return [*self.best_of.models]
        return [*self.split.models] if self.split is not None else []

    def all_targets(self) -> list[Name]:
        """Every model that may answer, fallbacks included."""
        fallbacks = () if self.fallback is None else self.fallback.all()
        shadows = [] if self.shadow is None else [self.shadow.model]
        return [*self.targets(), *(name for _, names in fallbacks for name in names), *shadows]


DESTINATIONS = ("model", "split", "choose", "cascade", "best_of", "refuse")
CHANGES = ("fallback", "retry", "hedge", "parameters", "system", "timeouts", "shadow", "cache", "guardrails")


class Rule(Action, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An action with a condition. One without a destination changes the request and tries the next rules."""

    name: Annotated[str, Meta(max_length=128, description="For explanations. Default: its number.")] = ""
    when: Annotated[Condition | None, Meta(description="Condition in CEL. Default: always.")] = None


class Route(Action, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A name that clients can use in place of a model's.

    Its own destination follows when no rule decides; its changes hold for all of its rules, before theirs.
    """

    description: str = ""
    rules: Annotated[list[Rule], Meta(description="Tried in order; the first that matches decides.")] = []

    @property
    def usual_target(self) -> str:
        """The model of its own action, else of its last rule with one; "" when all are refused."""
        targets = [name for action in (*self.rules, self) for name in action.targets()[:1]]
        return targets[-1] if targets else ""


class RoutingSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What all routes share."""

    rules: Annotated[
        list[Rule],
        Meta(
            description="Tried before those of a route, for every request, also for one that names a model."
        ),
    ] = []
    headers: Annotated[
        list[HeaderName],
        Meta(description='Request headers that conditions may read, in lower case. A missing one is "".'),
    ] = []
    expose: Annotated[
        bool,
        Meta(
            description="Answer with the headers `x-penstock-route`, `x-penstock-model`, "
            "`x-penstock-reason`, `x-penstock-attempts`; errors after the choice have them too. The usage of "
            "our engines' answers tells `x_penstock.machine_seconds`."
        ),
    ] = False
    reserve_tokens: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        Meta(
            description="Tokens that limits set aside for an answer without `max_tokens`. Default: four "
            "times the mean of its model's answers, at most what is left of its context.",
        ),
    ] = None
    max_attempts: Annotated[
        int,
        Meta(
            ge=1,
            le=10,
            description="Most models asked for one request, fallbacks included. Retries of an upstream "
            "(`retry`) come on top.",
        ),
    ] = 3
