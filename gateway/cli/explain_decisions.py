"""`penstock explain`: which route, rule and model a request gets, in words, without a running gateway."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from gateway.cli.decision_records import records_since
from gateway.endpoints.specs import spec_of
from gateway.errors import ApiError
from gateway.pipeline.dry_run import DryRun, principal_of
from gateway.requests.parse import decode_body
from gateway.routing.explanation import explain, explain_placement
from gateway.routing.probe_result import Decision
from gateway.settings import SettingsError
from policies.load import load_policies
from policies.routing import Routing
from router.replay import decide


def explain_request(folder: Path, data: str, headers: Sequence[str], tenant: str, out: TextIO) -> int:
    """Print the explanation. Raises SettingsError for a body or a header that is not valid."""
    policies = load_policies(folder)
    given = dict(_header(text) for text in headers)

    async def decide() -> Decision:
        body = {"model": "auto", **decode_body(_data(data))}
        principal = principal_of(tenant)
        return await DryRun(policies).decide(body, endpoint=spec_of(body), headers=given, principal=principal)

    try:
        out.write(explain(asyncio.run(decide()), policies.version))
    except ApiError as error:
        raise SettingsError(f"the request is not valid: {error.message}") from None
    return 0


def explain_recorded(folder: Path, log: Path, number: str, out: TextIO) -> int:
    """Print why a recorded request went where it did. Raises SettingsError when it is not in the log."""
    policies = load_policies(folder)
    for record in records_since(log, None):
        if number in (record.id, record.trace):
            choice = decide(record.facts, Routing(policies), keep_tried=True)
            models = (record.model,) if record.model else ()
            decision = Decision(choice, models, status=record.status, cache=None)
            if record.version != policies.version:
                out.write(f"recorded under version {record.version}; the rules of {policies.version} say:\n")
            out.write(explain(decision, policies.version))
            out.write(f"recorded {record.reason or record.rule}\n")
            for placement in record.placements:
                out.write(explain_placement(placement))
            out.write("" if record.gain is None else f"gain     {record.gain:.3f}\n")
            return 0
    raise SettingsError(f"{log} has no request or trace {number!r}")


def _data(text: str) -> bytes:
    if not text.startswith("@"):
        return text.encode()
    try:
        return Path(text[1:]).read_bytes()
    except OSError as error:
        raise SettingsError(f"cannot read {text[1:]}: {error.strerror}") from None


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon:
        raise SettingsError(f"--header {text!r} must have the form 'NAME: VALUE'")
    return name.strip().lower(), value.strip()
