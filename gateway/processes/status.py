"""The progress of each engine and encoder process, as the supervisor sends it to the workers."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class RepeatedFailure(msgspec.Struct, frozen=True, kw_only=True):
    """A process has ended several times in a row in the same way."""

    cause: str  # without prompt text: it is shown to everyone
    count: int
    retry_at_s: float  # Unix time of the next start


ASLEEP = "asleep"
"""The phase of a process that does not run, as the load asks for none."""


class ProcessStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One engine or encoder process, as of its last progress line or exit."""

    phase: str  # "starting", "loading", "warming_up", "ready", "restarting", "asleep"
    fraction: float = 0.0  # of the phase, 0 to 1
    failure: RepeatedFailure | None = None


Statuses = Mapping[str, ProcessStatus]
"""By model name."""
