"""What the supervisor tells its workers: lines of JSON on their stdin, after the configuration."""

from __future__ import annotations

import msgspec

from gateway.processes.status import ProcessStatus
from gateway.settings import Settings
from policies.document import Policies


class StatusReport(msgspec.Struct, frozen=True, tag="statuses"):
    """The state of every engine and encoder process, by model name."""

    statuses: dict[str, ProcessStatus]


class Version(msgspec.Struct, frozen=True):
    """One version of the policies, with the settings that follow from it."""

    serial: int  # counts the versions that were tried, from 1
    policies: Policies
    settings: Settings
    metric_models: tuple[str, ...]  # labels of metrics, in the order in which they became known


class Prepare(msgspec.Struct, frozen=True, tag="prepare"):
    """Build what serves this version, and say so; requests still go to the current one."""

    version: Version


class Activate(msgspec.Struct, frozen=True, tag="activate"):
    """From now on requests begin with this version; or, if it is not `serial`'s time, discard it."""

    serial: int
    is_discarded: bool = False


class PolicyState(msgspec.Struct, frozen=True, tag="policies"):
    """What probes, metrics and operators are told: the policies' versions, and whether it leaves."""

    version: str = ""  # hash of the content of the current one
    previous: tuple[str, ...] = ()  # to which a rollback leads, the latest last
    num_reloads: int = 0
    num_failures: int = 0
    error: str = ""  # why the latest attempt failed; "" when it did not
    is_leaving: bool = False  # it drains soon: load balancers should send requests elsewhere
    is_rolled_back: bool = False  # the files say something else than what is served


class Reply(msgspec.Struct, frozen=True, tag="reply"):
    """The outcome of what a worker asked for."""

    ask_id: int
    is_done: bool
    message: str


ToWorker = StatusReport | Prepare | Activate | PolicyState | Reply

_decoder = msgspec.json.Decoder(ToWorker)


def encode(message: ToWorker) -> bytes:
    """One line."""
    return msgspec.json.encode(message) + b"\n"


def decode(line: bytes) -> ToWorker:
    """The inverse of `encode`. Raises msgspec.DecodeError."""
    message: ToWorker = _decoder.decode(line)
    return message
