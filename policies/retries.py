"""The `retry` of routes and rules: which failures of an upstream are tried again, and how often."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

import msgspec
from msgspec import Meta

RetryCause = Literal[
    "connect", "broken", "rate_limited", "server_error", "timeout", "unavailable", "key_refused"
]
RETRY_CAUSES: tuple[RetryCause, ...] = get_args(RetryCause)


class Retry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Calls of an upstream that are made again when one fails before the first content of its answer.

    Another one of several `targets` is asked at once; the same one after its `retry-after`, else after a
    random time of up to 0.1 s, then 0.2 s, 0.4 s and so on, at most 2 s. A `retry-after` of more than 5 s, or
    beyond the request's time limit, ends the retries.
    """

    attempts: Annotated[
        int, Meta(ge=0, le=5, description="Most calls of a model after its first one; 0 turns retries off.")
    ] = 2
    on: Annotated[
        list[RetryCause] | None,
        Meta(
            description="`connect`: no connection. `broken`: the connection or the answer breaks off, or is "
            "none. `rate_limited`: 429. `server_error`: 500 and 502. `timeout`: 408 and 504. `unavailable`: "
            "503 and 529. `key_refused`: 401 and 403. This one, and a `timeout` by the gateway's own limits, "
            "are worth only another one of several `targets`. Default: all."
        ),
    ] = None
    budget: Annotated[
        float,
        Meta(
            ge=0.0,
            le=1.0,
            description="Most retries of a model within a minute, as a share of its calls, in each gateway "
            "worker. 3 per second are always allowed.",
        ),
    ] = 0.1

    def covers(self, cause: RetryCause) -> bool:
        """Whether a failure of this cause is tried again."""
        return self.on is None or cause in self.on


class Hedge(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A second call where the first content of an answer is late, to another one of several `targets`.

    The first content wins. The other call is cancelled, and the tokens that it has used are charged too.
    """

    after: Annotated[
        Literal["p50", "p90", "p95", "p99"],
        Meta(
            description="Content is late after the time within which this share of the model's latest "
            "answers began (`p95`: 95 %), streams and others apart, once 20 are known."
        ),
    ] = "p95"
    after_s: Annotated[
        Annotated[float, Meta(gt=0, le=600)] | None, Meta(description="Seconds, in place of `after`.")
    ] = None
    budget: Annotated[
        float,
        Meta(
            ge=0.0,
            le=1.0,
            description="Most second calls and retries of a model within a minute, as a share of its calls, "
            "in each gateway worker. 3 per second are always allowed.",
        ),
    ] = 0.1


DEFAULT_RETRY = Retry()
NO_RETRY = Retry(attempts=0)
