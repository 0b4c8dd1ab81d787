"""Names, label values, bucket bounds and memory layout of the gateway's instruments.

All instruments of one (endpoint, model) are one block of counters, each at a fixed offset.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from guardrails.languages import LABELS
from policies.endpoints import ENDPOINTS as ENDPOINTS_BY_NAME
from policies.retries import RETRY_CAUSES as CAUSES

MODEL_ENDPOINTS: Final = (*ENDPOINTS_BY_NAME, "tokenize", "detokenize", "shadow", "batch", "passthrough")
ENDPOINTS: Final = (*MODEL_ENDPOINTS, "models", "other")
NO_MODEL: Final = "-"
STATUSES: Final = ("2xx", "4xx", "5xx", "client_closed", "broken")
"""The last one: an answer that had begun, and ended with an error."""
CACHE_OUTCOMES: Final = ("exact", "semantic", "shared", "near", "miss", "bypass")
CACHE_GUARDS: Final = (
    "several lines", "code", "long", "about text", "language", "numbers", "symbols", "case", "quoted",
    "words", "form",
    "languages", "negation", "opposites", "quantity", "hyphens", "roles", "one word", "small words",
)  # fmt: skip
"""Why a question is not compared by meaning, and why a near one is not served: see cache/verify/guards.py."""
CACHE_VERDICTS: Final = ("right", "wrong", "unsure")
GUARDRAIL_CHECKS: Final = (
    "personal_data", "injection", "harm", "pattern", "topic", "groundedness", "hook", "check", "encoder",
    "unread",
)  # fmt: skip
GUARDRAIL_OUTCOMES: Final = ("flagged", "changed", "blocked", "failed_open", "failed_closed")
"""The last two: the check itself could not be made, and the policy let the text pass, or not."""
GUARDRAIL_SERIES: Final = (
    *((check, outcome, "") for check in GUARDRAIL_CHECKS for outcome in GUARDRAIL_OUTCOMES),
    *((check, "unreadable", language) for check in ("injection", "harm") for language in LABELS),
)
"""Check, outcome, and the language of a text that the check does not read; what followed counts apart."""

ENCODER_SIGNALS: Final = ("domain", "freshness", "gain", "similarity")
"""Variables `signals.…` of conditions that cannot be read while the encoder does not answer."""

UPSTREAM_TROUBLES: Final = ("failing", "rate_limited", "key_refused")
"""Why an upstream is not asked for a while: see gateway/fleet/health.py."""
RETRY_CAUSES: Final = (*CAUSES, "hedge")
UPSTREAM_FAILURES: Final = ("429", "5xx", "timeout", "cut", "auth", "refused", "unusable", "4xx")
"""How one call of an upstream failed: see gateway/fleet/retries.py."""
TOKEN_KINDS: Final = ("input", "output", "cached", "reasoning", "estimated")
"""The last one: of input and output, in answers whose usage was not told to the end."""
CALL_ERRORS: Final = (
    "InvalidRequest",
    "Unauthorized",
    "Forbidden",
    "NotFound",
    "RateLimited",
    "ServerError",
    "UpstreamFailed",
    "Unavailable",
    "TimedOut",
    "ClientGone",
    "Cancelled",
    "other",
)
"""Classes of gateway.errors: why a model call failed. A closed set: no upstream's text becomes a label."""


FAULTS: Final = (
    ("redis_cache", "unavailable"),
    ("redis_cache", "entry_skipped"),
    ("redis_cache", "change_skipped"),
    ("redis_cache", "restarted"),
    ("counts", "unavailable"),
    ("counts", "value_skipped"),
    ("counts", "restarted"),
    ("limits", "unavailable"),
    ("limits", "restarted"),
    ("keys", "unreadable"),
    ("usage", "unavailable"),
    ("usage", "dropped"),
    ("usage", "restarted"),
)
"""Part and fault of what goes wrong beside the requests: values that could not be read, work begun again."""


@dataclass(frozen=True, slots=True)
class Histogram:
    """One counter per bucket (not cumulative), +Inf last, then the sum."""

    name: str
    help: str
    bounds: tuple[float, ...]
    offset: int

    @property
    def size(self) -> int:
        """Number of counters, the sum included."""
        return len(self.bounds) + 2


REQUESTS_OFFSET: Final = 0
CACHE_OFFSET: Final = REQUESTS_OFFSET + len(STATUSES)
VERDICTS_OFFSET: Final = CACHE_OFFSET + len(CACHE_OUTCOMES)
CACHE_GUARDS_OFFSET: Final = VERDICTS_OFFSET + len(CACHE_VERDICTS)
TOKENS_OFFSET: Final = CACHE_GUARDS_OFFSET + len(CACHE_GUARDS)
ERRORS_OFFSET: Final = TOKENS_OFFSET + len(TOKEN_KINDS)
SIGNALS_OFFSET: Final = ERRORS_OFFSET + len(CALL_ERRORS)
RETRIES_OFFSET: Final = SIGNALS_OFFSET + len(ENCODER_SIGNALS)
TROUBLES_OFFSET: Final = RETRIES_OFFSET + len(RETRY_CAUSES)
FAILURES_OFFSET: Final = TROUBLES_OFFSET + len(UPSTREAM_TROUBLES)
GUARDRAILS_OFFSET: Final = FAILURES_OFFSET + len(UPSTREAM_FAILURES)

DURATION: Final = Histogram(
    "penstock_request_duration_seconds",
    "From the request's first byte to the answer's last.",
    (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0),
    GUARDRAILS_OFFSET + len(GUARDRAIL_SERIES),
)
TTFT: Final = Histogram(
    "penstock_time_to_first_token_seconds",
    "From the request's first byte to the answer's first piece of text.",
    (0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.08, 0.15, 0.3, 0.6, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0),
    DURATION.offset + DURATION.size,
)
TARGET_TTFT: Final = replace(
    TTFT,
    name="penstock_upstream_first_content_seconds",
    help="From the start of a call to its first content, for each of an upstream's targets.",
)
"""In blocks of the targets, whose names are like "model at URL"."""
INTER_TOKEN: Final = Histogram(
    "penstock_inter_token_seconds",
    "Between two pieces of a streamed answer.",
    (0.0005, 0.001, 0.002, 0.004, 0.008, 0.015, 0.03, 0.06, 0.12, 0.25, 0.5, 1.0, 2.0, 5.0),
    TTFT.offset + TTFT.size,
)
OVERHEAD: Final = Histogram(
    "penstock_gateway_overhead_seconds",
    "The request's duration less the time spent in the model call.",
    (0.0001, 0.0002, 0.0003, 0.0005, 0.00075, 0.001, 0.0015, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 2.0),
    INTER_TOKEN.offset + INTER_TOKEN.size,
)
HISTOGRAMS: Final = (DURATION, TTFT, INTER_TOKEN, OVERHEAD)
BLOCK_SIZE: Final = OVERHEAD.offset + OVERHEAD.size
