"""The `cache` section of the policy language: the defaults of all models, and each model's own values."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from policies.names import FilePath, Name

CacheMode = Literal["none", "exact", "semantic"]
CacheScope = Literal["tenant", "shared"]
Storable = Literal["personal", "flagged", "tool_calls", "truncated", "choices"]


class CacheRules(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How answers are stored and found again. What is left out is inherited, at last from `DEFAULTS`."""

    mode: Annotated[
        CacheMode | None,
        Meta(
            description="`none`: off. `exact`: only the same request again. `semantic`: also a last user "
            "turn that means the same, when the verifier allows it. Default: `none`."
        ),
    ] = None
    scope: Annotated[
        CacheScope | None,
        Meta(
            description="Who may get an answer: requests of the `tenant` that it was made for, or all "
            "(`shared`). Default: `tenant`."
        ),
    ] = None
    max_error_rate: Annotated[
        Annotated[float, Meta(gt=0, le=0.5)] | None,
        Meta(
            description="Highest share of all hits, exact ones included, that may be wrong. It sets the "
            "least probability of being right, as the verifier estimates it, at which an answer is served by "
            "meaning, as measured on a development stream (`cache/verify/REPORT.md`); of hits by meaning "
            "alone more are wrong. Below 0.002 none is served by meaning. Default: 0.01."
        ),
    ] = None
    ttl_s: Annotated[
        Annotated[float, Meta(gt=0, le=31_536_000)] | None,
        Meta(description="How long an answer may be served, in seconds. Default: 86400, a day."),
    ] = None
    max_temperature: Annotated[
        Annotated[float, Meta(ge=0.0, le=2.0)] | None,
        Meta(description="Requests with a higher `temperature` neither read nor write. Default: 1."),
    ] = None
    store: Annotated[
        list[Storable] | None,
        Meta(
            description="What is stored though it is not by default: answers to questions about the asker's "
            "own data or with an e-mail address, card number or the like (`personal`), what a guardrail has "
            "`flagged`, `tool_calls`, answers `truncated` at a limit of tokens, several `choices` (`n`). "
            "Default: none of them."
        ),
    ] = None
    verified_share: Annotated[
        Annotated[float, Meta(ge=0, le=0.5)] | None,
        Meta(
            description="Share of semantic hits that are also answered by the model, in the background, and "
            "compared: the evidence for the false-hit rate in the metrics. Default: 0.01."
        ),
    ] = None
    drafts: Annotated[
        bool | None,
        Meta(
            description="Give our engine a near hit that was not verified as a draft (`prediction`): "
            "faster where it was right, never another answer. Default: true."
        ),
    ] = None


class MemoryStore(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Entries in the memory of each gateway worker; gone with it."""

    max_bytes: Annotated[
        int, Meta(ge=1 << 16, description="Bound on entries, their vectors included. Default: 256 MiB.")
    ] = 1 << 28
    max_tenant_share: Annotated[
        float, Meta(gt=0, le=1, description="Largest share of `max_bytes` that one tenant may fill.")
    ] = 0.5
    snapshot_path: Annotated[
        FilePath | None,
        Meta(
            description="File that keeps the entries over a restart, relative to this file: written when the "
            "gateway drains, read when it starts. Each worker has one of its own, with its number at the end."
        ),
    ] = None


class RedisRules(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Entries shared by all workers and replicas through Redis."""

    url_env: Annotated[
        str,
        Meta(
            pattern=r"^[A-Za-z_][A-Za-z0-9_]*\Z",
            description="The environment variable with the URL, such as redis://:password@host:6379/0, "
            "rediss:// for TLS or unix://. Never write the URL into a file: it may hold a password.",
        ),
    ] = "PENSTOCK_REDIS_URL"
    prefix: Annotated[str, Meta(min_length=1, max_length=100, description="Of all names in Redis.")] = (
        "penstock:cache"
    )


class CacheSection(CacheRules, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Defaults of all models, and what they share."""

    encoder: Annotated[
        Name | None,
        Meta(description="The encoder model that compares meanings. Default: the only one there is."),
    ] = None
    verifier: Annotated[
        FilePath | None,
        Meta(
            description="Weights of the verifier, for another encoder than the one that ships: what "
            "`python -m cache.verify.train --encoder FOLDER --out FILE` wrote. Those of another encoder are "
            "refused."
        ),
    ] = None
    heads: Annotated[
        FilePath | None,
        Meta(
            description="Weights that tell whether a question depends on the turns before it, or its answer "
            "on the time, from `python -m cache.classifiers.train --encoder FOLDER --out FILE`. With another "
            "encoder than the one that ships and without them, only first turns are compared by meaning, and "
            "words alone tell how long an answer lives."
        ),
    ] = None
    memory: MemoryStore = MemoryStore()
    redis: Annotated[
        RedisRules | None,
        Meta(description="Share entries through Redis; each worker keeps its copy in `memory`."),
    ] = None
    operators: Annotated[
        list[str],
        Meta(
            description="Principals that may invalidate entries of every tenant; others only their own. "
            "`key-XXXXXXXX` as `penstock keys id` prints it."
        ),
    ] = []


DEFAULTS = CacheRules(
    mode="none",
    scope="tenant",
    max_error_rate=0.01,
    ttl_s=86400.0,
    max_temperature=1.0,
    store=[],
    verified_share=0.01,
    drafts=True,
)
