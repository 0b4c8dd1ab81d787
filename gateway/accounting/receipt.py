"""What one request came to, in names and numbers: the ledger, the log and the metrics read it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import msgspec

from gateway.answer import Usage


class Charged(NamedTuple):
    """The calls of models that an exchange pays for, together: rejected answers count, cached ones do not."""

    usage: Usage
    usd: float = 0.0


NOTHING_CHARGED = Charged(Usage())


class Receipt(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One request that has ended, however it did. It holds nothing of any text."""

    request_id: str
    trace_id: str  # "" where it is not traced
    ended_s: float  # UNIX time
    duration_s: float  # from the request's first byte
    first_token_s: float | None  # from the start of the last model call; None without an answer
    endpoint: str  # its name in `policies.endpoints`, or "passthrough"
    tenant: str
    key_id: str  # first 8 hex digits of the key's digest; "" without keys
    user: str = ""  # digest of the end user that the request names; "" for none
    model: str  # that answered, or was asked last; "" where none was chosen
    target: str  # of the upstream's targets, the one that was asked last
    route: str = ""  # "" for a request that names a model
    status: int  # of the answer; 499 where the client left first
    error_type: str  # class of gateway.errors; "" where all went well
    input_tokens: int
    output_tokens: int
    cached_tokens: int  # of `input_tokens`
    cache_write_tokens: int  # of `input_tokens`
    reasoning_tokens: int  # of `output_tokens`
    is_estimated: bool  # some of the tokens
    machine_seconds: float  # of our engines
    cost_usd: float
    cache: str = ""  # a `gateway.response_cache.use.Outcome`; "" without a cache
    guardrails: str = ""  # verdicts, as `Verdicts` writes them
    failed_models: tuple[str, ...] = ()  # asked before `model`
    num_attempts: int  # calls of models, retries and fallbacks included
    policy_version: str


Receive = Callable[[Receipt], None]
"""Takes a receipt in the event loop, and must not wait."""
