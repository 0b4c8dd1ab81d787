"""Files and batches as they are stored, in OpenAI's terms; times are Unix seconds."""

from __future__ import annotations

from typing import Literal

import msgspec

from policies.endpoints import ENDPOINTS

Status = Literal[
    "validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"
]
EndStatus = Literal["completed", "expired", "cancelled"]
BATCH_ENDPOINTS = (*(each.paths[0] for each in ENDPOINTS.values()), "/v1/moderations")
COMPLETION_WINDOWS_S = {"24h": 86400}


class StoredFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file without its content."""

    id: str
    purpose: str
    filename: str
    bytes: int
    created_at: int
    expires_at: int
    object: str = "file"
    status: str = "processed"


class Fault(msgspec.Struct, frozen=True):
    """What is wrong with a line of the input file; `line` counts from 1."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None


class Faults(msgspec.Struct, frozen=True):
    """The faults of a batch."""

    data: list[Fault]
    object: str = "list"


class Counts(msgspec.Struct, frozen=True):
    """Lines in all, and those that were answered with success and with an error."""

    total: int = 0
    completed: int = 0
    failed: int = 0


class InputDetails(msgspec.Struct, frozen=True):
    """Details of the input tokens."""

    cached_tokens: int = 0


class OutputDetails(msgspec.Struct, frozen=True):
    """Details of the output tokens."""

    reasoning_tokens: int = 0


class BatchUsage(msgspec.Struct, frozen=True):
    """Tokens of all answered lines."""

    input_tokens: int = 0
    input_tokens_details: InputDetails = InputDetails()
    output_tokens: int = 0
    output_tokens_details: OutputDetails = OutputDetails()
    total_tokens: int = 0

    def plus(self, other: BatchUsage) -> BatchUsage:
        """The sum."""
        cached = self.input_tokens_details.cached_tokens + other.input_tokens_details.cached_tokens
        thought = self.output_tokens_details.reasoning_tokens + other.output_tokens_details.reasoning_tokens
        return BatchUsage(
            self.input_tokens + other.input_tokens,
            InputDetails(cached),
            self.output_tokens + other.output_tokens,
            OutputDetails(thought),
            self.total_tokens + other.total_tokens,
        )


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """The public part of a batch."""

    id: str
    endpoint: str
    input_file_id: str
    created_at: int
    expires_at: int
    completion_window: str = "24h"
    object: str = "batch"
    status: Status = "validating"
    errors: Faults | None = None
    output_file_id: str | None = None
    error_file_id: str | None = None
    in_progress_at: int | None = None
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None
    request_counts: Counts = Counts()
    usage: BatchUsage = BatchUsage()
    metadata: dict[str, str] | None = None

    @property
    def is_open(self) -> bool:
        """Whether something remains to be done."""
        return self.status in ("validating", "in_progress", "finalizing", "cancelling")

    @property
    def output_id(self) -> str:
        """The id of its output file, the same whenever it is written."""
        return f"file-{self.id.removeprefix('batch_')}-output"

    @property
    def error_id(self) -> str:
        """The id of its error file, likewise."""
        return f"file-{self.id.removeprefix('batch_')}-errors"


class StoredBatch(msgspec.Struct, frozen=True):
    """A batch and what only the gateway needs."""

    number: int  # its row
    tenant: str
    output_ttl_s: int
    batch: Batch
