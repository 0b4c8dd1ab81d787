"""How one request uses the cache, and whether it may at all."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from numpy import float32
from numpy.typing import NDArray

from cache.classifiers import freshness, needs_context
from cache.entry import Labels
from cache.question import Question
from cache.verify.guards import Unreadable
from gateway.requests.types import ChatRequest
from gateway.response_cache.broadcast import Reader
from gateway.response_cache.flights import Flight
from gateway.response_cache.settings import CacheSettings
from guardrails.checks.personal_data.patterns import KINDS, PatternFinder

Outcome = Literal["exact", "semantic", "shared", "near", "miss", "bypass"]
"""Where the answer came from. `shared`: from an equal request under way; `near`: a stored one was a draft."""

HITS: frozenset[Outcome] = frozenset({"exact", "semantic", "shared"})
"""Outcomes without a model call of the request's own."""

TAGS_METADATA = "penstock-cache-tags"
"""Key of a request's `metadata`: comma-separated tags to invalidate its answer by."""

_PERSONAL_DATA = PatternFinder(KINDS)

MAX_CONTEXT_NEED = 0.8
"""A turn that is more likely to depend on earlier turns is not compared with others by meaning."""


@dataclass(slots=True, eq=False)
class CacheUse:
    """Filled by look_up, read by remember and account."""

    settings: CacheSettings
    question: Question
    may_write: bool
    asked_s: float
    num_choices: int = 1
    is_flagged: bool = False  # the request was, by a guardrail
    unreadable: Unreadable | None = None  # why the question is not compared by meaning
    entry_key: bytes = field(init=False)  # of the entry that the answer comes from, or goes to
    outcome: Outcome = "miss"
    guard: str = ""  # the name of the one that stopped the nearest answer
    flight: Flight | None = None  # led by this request
    share: Reader[Any] | None = None  # what reads an answer that other requests may read too

    def __post_init__(self) -> None:
        self.entry_key = self.question.key

    @property
    def is_semantic(self) -> bool:
        """Whether the question is compared with others by meaning, if it is self-contained."""
        return self.settings.mode == "semantic" and bool(self.question.text) and self.unreadable is None

    def is_comparable(self, vector: NDArray[float32], heads: Path | None) -> bool:
        """Whether the question, which means `vector`, depends neither on earlier turns nor on who asks.

        `heads`: the weights that read the vector; None: there are none of its encoder.
        """
        question = self.question
        need = needs_context(question.text, vector, question.history, heads)
        return need < MAX_CONTEXT_NEED and freshness(question.text, None) != "never"

    def is_stored(self, ends: Sequence[str]) -> bool:
        """Whether an answer whose choices end like this is stored, as far as it does not fail."""
        kinds = self.settings.store
        allowed = {"stop": True, "tool_calls": "tool_calls" in kinds, "length": "truncated" in kinds}
        is_whole = len(ends) == self.num_choices and all(allowed.get(end, False) for end in ends)
        return is_whole and ("personal" in kinds or not _is_personal(self.question.text))


def _is_personal(text: str) -> bool:
    """Whether a question is about the asker's own data, or holds an e-mail address or the like."""
    return freshness(text, None) == "never" or any(_PERSONAL_DATA.spans(text))


def bypass_reason(body: Mapping[str, Any], settings: CacheSettings) -> str:
    """Why a request neither reads nor writes the cache; "" when it does both."""
    if (body.get("n") or 1) != 1 and "choices" not in settings.store:
        return "n is not 1"
    temperature = body.get("temperature")
    if temperature is not None and temperature > settings.max_temperature:
        return "temperature is above the policy's max_temperature"
    return ""


def labels_of(request: ChatRequest, tenant: str, model: str) -> Labels:
    """By which the answer can be forgotten later. Raises InvalidRequest for too many tags."""
    user = request.safety_identifier or request.user or ""
    tags = [each.strip() for each in (request.metadata or {}).get(TAGS_METADATA, "").split(",")]
    found = tuple(dict.fromkeys(filter(None, tags)))
    return Labels(model, user_digest(tenant, user) if user else "", found)


def user_digest(tenant: str, user: str) -> str:
    """What stands for a tenant's end user in the cache: the id itself is not kept."""
    return hashlib.sha256(f"{tenant}\0{user}".encode("utf-8", "surrogatepass")).hexdigest()
