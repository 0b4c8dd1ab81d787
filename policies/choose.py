"""The destinations `choose`, one of several models for each request, and `cascade`, one after the other."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

import msgspec
from msgspec import Meta

from policies.names import FilePath, Name
from policies.releases import Capabilities

StrategyName = Literal["quality_per_cost", "cheapest", "fastest", "bandit"]
Share = Annotated[float, Meta(ge=0.0, le=1.0)]
EscalationCause = Literal["low_confidence", "refusal", "invalid_json", "truncated", "error"]
ESCALATION_CAUSES: tuple[EscalationCause, ...] = get_args(EscalationCause)
Weight = Annotated[float, Meta(ge=0.0, le=1000.0)]


class ChoiceCandidate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model to choose, as compared with the others."""

    quality: Annotated[
        Share, Meta(description="Mean score on usual requests, as `penstock eval models` measures it.")
    ] = 0.5
    cost: Annotated[
        Weight | None,
        Meta(
            description="Of a usual request, relative to the other candidates. Default: the model's `price`, "
            "for as many input as output tokens."
        ),
    ] = None
    max_tokens: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        Meta(description="Prompts of more tokens, at 4 characters each, go to other candidates."),
    ] = None
    can_reason: Annotated[
        bool | None,
        Meta(
            description="False: requests with a `reasoning_effort` go to other candidates. Default of this "
            "and the next: the model's `capabilities`."
        ),
    ] = None
    can_call_tools: Annotated[bool | None, Meta(description="False: requests with tools go elsewhere.")] = (
        None
    )

    def can_answer(
        self, model: Capabilities, num_tokens: int, *, wants_tools: bool, wants_reasoning: bool
    ) -> bool:
        """Whether the model of these capabilities can answer such a request, as far as is known."""
        calls_tools = model.tools if self.can_call_tools is None else self.can_call_tools
        reasons = model.reasoning if self.can_reason is None else self.can_reason
        return (
            num_tokens <= (self.max_tokens or model.context_tokens or num_tokens)
            and (calls_tools or not wants_tools)
            and (reasons or not wants_reasoning)
        )


class Choose(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One model of several for each request, by what is known about it."""

    candidates: Annotated[dict[Name, ChoiceCandidate], Meta(min_length=1)]
    strategy: Annotated[
        StrategyName,
        Meta(
            description="`quality_per_cost`: most quality - cost_weight x cost - latency_weight x seconds, "
            "where the dearest candidate's cost is 1. `cheapest`: the least cost with at least "
            "`min_quality`. `fastest`: the least expected time to the first token, of two drawn. `bandit`: "
            "Thompson sampling from /v1/feedback of the last week, less cost_weight x cost."
        ),
    ] = "quality_per_cost"
    estimate: Annotated[
        FilePath | None,
        Meta(
            description="What predicts how much better the best candidate answers than the worst: "
            "`builtin:pico`, `builtin:general` (needs an encoder), or a file of `penstock router train`. "
            "Default: each candidate has its usual `quality`."
        ),
    ] = None
    cost_by: Annotated[
        Literal["price", "machine_seconds"],
        Meta(
            description="What a candidate costs, unless it says so: its `price`, or the machine's seconds "
            "that its engine quotes for the prompt: work, which a busy machine does not lengthen."
        ),
    ] = "price"
    cost_weight: Annotated[Weight, Meta(description="Quality that the dearest candidate must add.")] = 0.1
    strong_share: Annotated[
        Share | None,
        Meta(
            description="In place of `cost_weight`: the share of recent requests that the best candidate "
            "should get; needs an `estimate`."
        ),
    ] = None
    budget_usd_per_day: Annotated[
        Annotated[float, Meta(gt=0)] | None,
        Meta(
            description="Likewise in place of `cost_weight`: what all candidates together should cost until "
            "midnight UTC, spread over the requests to come; needs `price`s. Beyond it the cheapest answers."
        ),
    ] = None
    latency_weight: Annotated[Weight, Meta(description="Quality that a second is worth.")] = 0.0
    min_quality: Annotated[Share, Meta(description="For `cheapest`.")] = 0.0
    default: Annotated[
        Name | None,
        Meta(description="The candidate for what is far from the estimate's data. Default: none."),
    ] = None
    min_familiarity: Annotated[
        Share, Meta(description="What is less familiar to the estimate goes to `default`.")
    ] = 0.2


class BestOf(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Several answers at the same time, of which the best one is sent. The tenant pays for all."""

    models: Annotated[
        dict[Name, Annotated[int, Meta(ge=1, le=16)]],
        Meta(min_length=1, max_length=8, description="Model → number of its answers."),
    ]
    scorer: Annotated[
        Literal["confidence", "vote"],
        Meta(
            description="`confidence`: the mean probability of the tokens, where the model tells it. `vote`: "
            "the answer that most agree on (self-consistency), then confidence."
        ),
    ] = "confidence"


class Cascade(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The first model answers; where the beginning of its answer is not good enough, the next one does."""

    models: Annotated[
        list[Name], Meta(min_length=2, max_length=4, description="From the cheapest to the best.")
    ]
    min_confidence: Annotated[Share, Meta(description="Least probability of any token that is judged.")] = 0.6
    hold_back_tokens: Annotated[
        int,
        Meta(
            ge=1,
            le=4096,
            description="A stream begins when this many tokens, or all of them, are good enough. An answer "
            "that is not streamed is judged as a whole.",
        ),
    ] = 64
    escalate_on: Annotated[
        list[EscalationCause],
        Meta(
            description="`low_confidence`: needs log-probabilities, as our engine and most upstreams give. "
            "`refusal`: the answer begins with words of refusal in English or with one of `refusals`; it "
            "stands where the `estimate` expects no more of the next model. `invalid_json`: JSON was asked "
            "for; such an answer is held back until it is complete. `truncated`: it ends at the token limit."
        ),
    ] = msgspec.field(default_factory=lambda: list(ESCALATION_CAUSES))
    refusals: Annotated[
        list[Annotated[str, Meta(min_length=3, max_length=500)]],
        Meta(
            max_length=100,
            description="How the models decline, in any language: the beginnings of such answers. Case and "
            "spaces do not count.",
        ),
    ] = []
    prediction: Annotated[
        bool,
        Meta(description="An engine of ours gets rejected words as `prediction`: right ones cost no step."),
    ] = True
    estimate: Annotated[
        FilePath | None,
        Meta(
            description="As in `choose`. With it, requests of much gain go to the last model at once, and "
            "those whose first answer is too rarely kept: where its `price` for the expected tokens, divided "
            "by the last one's, is not below the probability that it is kept."
        ),
    ] = None
    skip_above: Annotated[Share, Meta(description="The predicted gain from which on they do.")] = 0.5
    min_kept: Annotated[
        Share,
        Meta(description="Least probability that the first model's answer is kept, whatever the prices."),
    ] = 0.0
