"""The `guardrails` section of the policy language: profiles of checks, which models name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from policies.names import EnvironmentName, FilePath, Name
from policies.plugins import Names, known_names
from policies.tenants import TenantName

CHECKS: Mapping[str, str] = {
    "known_attacks": "attacks on the prompt by their patterns, without an encoder; `kinds`",
    "personal_data": "personal data and secrets, found and not masked; `kinds`",
}
"""The built-in names of `check`, which packages add to, and what each is."""

PatternKind = Literal[
    "private_key",
    "jwt",
    "api_key",
    "password",
    "email",
    "phone",
    "card",
    "iban",
    "bank_account",
    "ssn",
    "national_id",
    "passport",
    "driver_license",
    "ip",
    "mac",
    "crypto_address",
]
"""Personal data with a fixed shape, check digits or words that announce it."""
NameKind = Literal["person", "location", "organization", "address", "date_of_birth"]
"""Personal data that only its sentence tells."""
PersonalDataKind = Literal[PatternKind, NameKind]
PersonalDataAction = Literal["mask", "redact", "block", "flag"]


class PersonalDataRules(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Personal data and secrets in requests and answers."""

    kinds: Annotated[
        Annotated[list[PersonalDataKind], Meta(min_length=1)] | None,
        Meta(
            description="What to look for. Default: all but `person`, `location`, `organization`, `address` "
            "and `date_of_birth`: these need whole sentences, so an answer is held back to the end of each."
        ),
    ] = None
    action: Annotated[
        PersonalDataAction,
        Meta(
            description="`mask`: the model gets placeholders such as `[EMAIL_1]`, and the caller gets the "
            "values back in the answer; `redact`: `[EMAIL]` for good; `block`: refuse; `flag`: only say so "
            "in the trace."
        ),
    ] = "mask"
    answers: Annotated[
        bool, Meta(description="Also for what the model writes itself: masked without a way back.")
    ] = True


Segment = Literal["system", "user", "assistant", "tool"]
"""Who speaks: `system` includes developer messages, `tool` results of tools and documents."""

Segments = Annotated[list[Segment], Meta(min_length=1, description="Whose text is checked in a request.")]
BlockAction = Annotated[
    Literal["block", "flag"],
    Meta(description="`flag`: only say so in traces and metrics, and store nothing."),
]
FalsePositiveRate = Annotated[
    float,
    Meta(
        ge=0.001,
        le=0.05,
        description="Share of ordinary prompts that injection and harm together may flag: their thresholds.",
    ),
]
NonEmpty = Annotated[str, Meta(min_length=1)]
Phrase = Annotated[str, Meta(pattern=r"\S", min_length=1, max_length=400)]
Probability = Annotated[float, Meta(ge=0.0, le=1.0)]
TimeoutMs = Annotated[int, Meta(ge=1, le=60_000)]
AttackKind = Literal["override", "jailbreak", "extraction", "indirect"]
AttackKinds = Annotated[list[AttackKind], Meta(min_length=1)]
HarmCategory = Literal[
    "harmful_topic", "toxicity", "harassment", "hate", "illicit", "self_harm", "sexual", "violence"
]
FailureAction = Literal["block", "allow"]
UnreadableAction = Annotated[
    Literal["allow", "flag", "block"],
    Meta(
        description="A text in a language that the classifier does not read well (`penstock check` names "
        "those that it does): `allow` counts it in metrics and lets it pass, unless patterns or words tell."
    ),
]


class InjectionRules(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Attacks on the prompt: overridden instructions, jailbreaks, extraction, instructions in documents."""

    action: BlockAction = "block"
    kinds: Annotated[
        AttackKinds | None,
        Meta(description="Which attacks. Default: all."),
    ] = None
    segments: Segments = msgspec.field(default_factory=lambda: ["user", "tool"])
    classifier: Annotated[
        bool,
        Meta(
            description="Also ask the trained classifier, which needs an encoder among the models; false: "
            "only patterns of known attacks."
        ),
    ] = True
    false_positive_rate: FalsePositiveRate = 0.01
    unreadable: UnreadableAction = "allow"
    session_limit: Annotated[
        Annotated[float, Meta(gt=0)] | None,
        Meta(
            description="Refuse a conversation when the risk of its turns adds up to this; each turn back "
            "counts less. Default: every turn is judged alone.",
        ),
    ] = None


class HarmRules(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Harmful or toxic content, by a trained classifier; needs an encoder among the models."""

    action: BlockAction = "block"
    categories: Annotated[
        list[HarmCategory],
        Meta(
            description="`harmful_topic`: requests for harm; `toxicity`: tone; the others as in OpenAI's "
            "moderation. Default: `harmful_topic` and `toxicity`.",
            min_length=1,
        ),
    ] = msgspec.field(default_factory=lambda: ["harmful_topic", "toxicity"])
    segments: Segments = msgspec.field(default_factory=lambda: ["user"])
    false_positive_rate: FalsePositiveRate = 0.01
    unreadable: UnreadableAction = "allow"
    answers: Annotated[
        bool,
        Meta(description="Also each sentence of an answer, and each tool call in it, before it is sent."),
    ] = True


class PatternRules(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Words or an expression of your own. Give one of `words` and `regex`."""

    words: Annotated[
        Annotated[list[Phrase], Meta(min_length=1, max_length=2000)] | None,
        Meta(description="Whole words or phrases, in any case, with any white space between words."),
    ] = None
    regex: Annotated[
        Annotated[str, Meta(min_length=1, max_length=2000)] | None,
        Meta(
            description="In RE2's syntax, without anchors; linear time. Give repetitions an upper bound: a "
            "stream is held back while a match may go on.",
        ),
    ] = None
    action: Annotated[
        Literal["redact", "block", "flag"],
        Meta(description="`redact`: `[NAME]` in its place; `block`: refuse; `flag`: only say so."),
    ] = "block"
    segments: Segments = msgspec.field(default_factory=lambda: ["system", "user", "assistant", "tool"])
    requests: bool = True
    answers: bool = True


class TopicRules(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A topic by examples: a sentence that is close to one is about it. Needs an encoder."""

    examples: Annotated[list[Phrase], Meta(min_length=1, max_length=200)]
    min_similarity: Annotated[
        Probability,
        Meta(description="Cosine to the nearest example; `penstock eval guardrails` shows yours."),
    ] = 0.6
    action: BlockAction = "block"
    segments: Segments = msgspec.field(default_factory=lambda: ["user"])
    answers: bool = False


class GroundednessRules(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whether the documents in a request support each sentence of the answer. Without documents: no check."""

    documents: Annotated[list[Segment], Meta(description="Where the documents are.", min_length=1)] = (
        msgspec.field(default_factory=lambda: ["tool"])
    )
    action: Annotated[
        Literal["block", "note", "flag"],
        Meta(
            description="`block`: stop before the sentence, which holds a stream back by a sentence; `note`: "
            "append `note` to the answer, unless that is to be JSON; `flag`: only say so."
        ),
    ] = "note"
    min_support: Annotated[Probability, Meta(description="Below this a sentence is not supported.")] = 0.35
    note: Annotated[
        str, Meta(min_length=1, description="`{count}` and `{total}` are the numbers of sentences.")
    ] = "\n\n[{count} of {total} statements above are not supported by the given documents.]"


class HookRules(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A check of your own, over HTTP. It gets text after masking."""

    url: Annotated[
        str,
        Meta(pattern=r"^https?://[^\s?#@]+$", description="POST; `moderations`: the URL of that endpoint."),
    ]
    format: Annotated[
        Literal["penstock", "moderations"],
        Meta(
            description="`penstock`: sends `{direction, texts: [{segment, text}]}`, expects "
            "`{flagged, reason}`; `moderations`: OpenAI's `/v1/moderations`."
        ),
    ] = "penstock"
    model: Annotated[NonEmpty | None, Meta(description="For `moderations`.")] = None
    api_key_env: EnvironmentName | None = None
    action: BlockAction = "block"
    timeout_ms: TimeoutMs = 500
    on_failure: Annotated[
        FailureAction, Meta(description="When it does not answer, or not as expected; counted in metrics.")
    ] = "block"
    segments: Segments = msgspec.field(default_factory=lambda: ["user", "tool"])
    requests: bool = True
    answers: Annotated[
        bool,
        Meta(description="Also whole answers and tool calls: a stream is held back to the end of each."),
    ] = False


class CheckRules(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A check by its name: a built-in one, or an installed package's. It gets text after masking."""

    check: Annotated[
        str,
        known_names(
            Names("penstock.checks", tuple(CHECKS)),
            f"Which one: {', '.join(f'`{name}` ({about})' for name, about in CHECKS.items())}.",
        ),
    ]
    options: Annotated[
        dict[str, Any], Meta(description="As the check defines them; `penstock check` names a slip.")
    ] = {}
    action: BlockAction = "block"
    timeout_ms: Annotated[TimeoutMs, Meta(description="For all texts of a request, or of an answer.")] = 500
    on_failure: Annotated[
        FailureAction, Meta(description="When it fails, or takes longer; counted in metrics.")
    ] = "block"
    segments: Segments = msgspec.field(default_factory=lambda: ["user", "tool"])
    requests: bool = True
    answers: Annotated[
        bool,
        Meta(description="Also whole answers and tool calls: a stream is held back to the end of each."),
    ] = False


class GuardrailProfile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Checks that belong together."""

    personal_data: PersonalDataRules | None = None
    injection: InjectionRules | None = None
    harm: HarmRules | None = None
    patterns: Annotated[dict[Name, PatternRules], Meta(description="By a name that verdicts show.")] = {}
    topics: Annotated[dict[Name, TopicRules], Meta(description="By a name that verdicts show.")] = {}
    groundedness: GroundednessRules | None = None
    hooks: Annotated[dict[Name, HookRules], Meta(description="By a name that verdicts show.")] = {}
    checks: Annotated[dict[Name, CheckRules], Meta(description="By a name that verdicts show.")] = {}
    max_chars: Annotated[
        int,
        Meta(
            ge=1_000,
            description="Characters in all texts of a request; one with more is a 400, as it would not be "
            "checked. Long texts of earlier turns count, but are not checked again.",
        ),
    ] = 1_000_000
    timeout_ms: Annotated[
        TimeoutMs,
        Meta(
            description="For each answer of the encoder, which classifiers and topics need: it is asked for "
            "64 sentences at a time."
        ),
    ] = 2000
    on_failure: Annotated[
        FailureAction,
        Meta(description="When the encoder does not answer in that time; counted in metrics. `block`: 503."),
    ] = "block"
    refusal: Annotated[
        NonEmpty | None,
        Meta(
            description="Answer blocked requests with this text and `finish_reason: content_filter`, and end "
            "blocked answers with it. Default: blocked requests are a 400, blocked answers just end.",
        ),
    ] = None
    expose: Annotated[
        bool, Meta(description="Name what was found in a request in the header `x-penstock-guardrails`.")
    ] = False
    exempt_tenants: Annotated[list[TenantName], Meta(description="Their requests are not checked.")] = []
    dry_run: Annotated[
        bool, Meta(description="Change and refuse nothing: only say in the trace what was found.")
    ] = False

    @property
    def needs_encoder(self) -> bool:
        """Whether a check compares meanings."""
        return self.needs_language or bool(self.topics)

    @property
    def needs_language(self) -> bool:
        """Whether a check reads some languages only."""
        return (self.injection is not None and self.injection.classifier) or self.harm is not None


class ModerationsSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What `/v1/moderations` answers, unless `passthrough` names that path."""

    false_positive_rate: FalsePositiveRate = 0.01
    max_chars: Annotated[int, Meta(ge=1_000, description="Characters in all texts of a request.")] = 1_000_000


class GuardrailsSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Profiles by name, and what serves `/v1/moderations`."""

    profiles: dict[Name, GuardrailProfile] = {}
    default: Annotated[
        Name | None, Meta(description="The profile of models that name none. Default: no checks.")
    ] = None
    moderations: ModerationsSection = ModerationsSection()
    classifier: Annotated[
        FilePath | None,
        Meta(
            description="Weights of the classifiers, for another encoder than the one that ships: what "
            "`python -m guardrails.train --encoder FOLDER --out FILE` wrote. Those of another encoder are "
            "refused; `/v1/moderations` answers 503 without."
        ),
    ] = None
