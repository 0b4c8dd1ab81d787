"""Decisions as lines of JSON in a file, for `penstock replay`: values of variables, never a prompt's text."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import queue
import threading
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from backend.identifiers import CHOICE
from gateway.accounting.ledger import Ledger
from gateway.exchange.exchange import Exchange
from gateway.exchange.model_table import ModelTable
from gateway.exchange.turns import user_turns
from gateway.routing.condition_values import Facts
from policies.document import Policies
from policies.routing import Routing
from policies.variables import MAPS, SIGNALS, VARIABLES
from router.log import Label, Record

logger = logging.getLogger(__name__)

MAX_BYTES, NUM_KEPT = 1 << 28, 4
"""Size of one file, and how many full ones are kept beside it."""
MAX_WAITING = 10_000
"""Lines that wait for the disk; further ones are dropped, and counted in the log."""
_LIVE = sorted(name for name in MAPS if name.startswith("live."))
_NOT_RECORDED = {"request.user"}
"""Names of people."""


class LogFile:
    """Appends lines in a thread: the disk never delays a request. Several processes may share the file.

    At `max_bytes` it becomes PATH.1, that PATH.2 and so on; one that others have moved away is made again.
    """

    def __init__(self, path: str, max_bytes: int = MAX_BYTES, num_kept: int = NUM_KEPT) -> None:
        """Raises OSError when it cannot be opened."""
        self._path = Path(path)
        self._max_bytes = max_bytes
        self._num_kept = num_kept
        self._is_failing = False
        self._fd = self._open()
        self._lines: queue.Queue[bytes | None] = queue.Queue(MAX_WAITING)
        self._num_dropped = 0
        self._thread = threading.Thread(target=self._write, daemon=True, name=f"writes {Path(path).name}")
        self._thread.start()

    def add(self, line: bytes) -> None:
        """Write a line soon."""
        try:
            self._lines.put_nowait(line)
        except queue.Full:
            self._num_dropped += 1

    def close(self) -> None:
        """Write what waits."""
        self._lines.put(None)
        self._thread.join(timeout=5.0)
        if self._num_dropped:
            logger.error("%d decisions were not recorded: the disk was too slow", self._num_dropped)

    def _write(self) -> None:
        while (line := self._lines.get()) is not None:
            try:
                self._rotate(len(line))
                os.write(self._fd, line)
                self._is_failing = False
            except OSError as error:
                if not self._is_failing:  # once, not for each line of a full disk
                    logger.error("decisions cannot be recorded: %s", error.strerror)
                self._is_failing = True
        os.close(self._fd)

    def _open(self) -> int:
        return os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def _rotate(self, num_bytes: int) -> None:
        """Move a full file away, unless another process has; then write to the one that is there."""
        if not self._max_bytes:
            return
        if os.fstat(self._fd).st_size + num_bytes > self._max_bytes and self._is_current():
            fcntl.flock(self._fd, fcntl.LOCK_EX)  # released when it is closed
            if self._is_current():
                for number in range(self._num_kept - 1, 0, -1):
                    with contextlib.suppress(FileNotFoundError):
                        self._kept(number).replace(self._kept(number + 1))
                self._path.replace(self._kept(1))
        if not self._is_current():
            old, self._fd = self._fd, self._open()
            os.close(old)

    def _kept(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}")

    def _is_current(self) -> bool:
        try:
            found = self._path.stat()
        except FileNotFoundError:
            return False
        own = os.fstat(self._fd)
        return (found.st_dev, found.st_ino) == (own.st_dev, own.st_ino)


class DecisionLog:
    """What one version of the policies records."""

    def __init__(
        self, file: LogFile, models: ModelTable, policies: Policies, ledger: Ledger | None = None
    ) -> None:
        self._file = file
        self._version = policies.version
        self._has_texts = policies.observability.decision_texts
        self._facts = Facts(models, policies, ledger=ledger)
        self._names = [
            name for name in VARIABLES if name not in _NOT_RECORDED and not name.startswith(SIGNALS)
        ]
        routing = Routing(policies)
        used = [routing.conditions(name)[1] for name in ("", *policies.routes)]
        self._keys = {key for keys in used for key in keys if key[0] not in _LIVE}
        self._keys |= {(name, model) for name in _LIVE for model in policies.models}

    def note(self, exchange: Exchange) -> None:
        """Keep the values as they are when the decision is taken."""
        facts = self._facts.of(exchange, self._names, self._keys)
        exchange.noted = (time.monotonic(), facts)

    def record(self, exchange: Exchange) -> None:
        """Write the outcome, unless the request named no model that exists: that may be any text."""
        routed, error = exchange.routed, exchange.error
        if exchange.noted is None or routed is None:
            return
        began_s, facts = exchange.noted
        traceparent = exchange.asked.telemetry.traceparent.split("-")
        texts = user_turns(exchange.request) if self._has_texts else []
        model, chosen = ("" if each is None else each.name for each in (exchange.model, routed.model))
        record = Record(
            id=exchange.asked.request_id,
            trace=traceparent[1] if len(traceparent) > 1 else "",
            reason=exchange.reason,
            gain=None if routed.gain is None else round(routed.gain, 4),
            familiarity=None if routed.decision is None else routed.decision.values.get("familiarity"),
            prompt=texts[-1] if texts else "",
            facts=_plain(facts | dict(routed.signals)),
            version=self._version,
            model=model,
            chosen="" if chosen == model else chosen,
            route=routed.choice.route,
            rule=routed.choice.rule,
            status=200 if error is None else error.status,
            input_tokens=exchange.usage.prompt_tokens,
            output_tokens=exchange.usage.completion_tokens,
            placements=exchange.attempts.placements,
            duration_s=round(time.monotonic() - began_s, 4),
        )
        self._file.add(_line(record))

    def label(self, label: Label) -> None:
        """Write how good answers to a recorded request were."""
        self._file.add(_line(label))


def _line(value: Record | Label) -> bytes:
    try:
        return msgspec.json.encode(value) + b"\n"
    except UnicodeEncodeError:  # a lone surrogate in the prompt
        assert isinstance(value, Record)
        return msgspec.json.encode(msgspec.structs.replace(value, prompt="")) + b"\n"


def _plain(facts: dict[str, Any]) -> dict[str, Any]:
    """Without maps that are empty and an effort that may be any text; the time as ISO 8601."""
    if not CHOICE.fullmatch(facts["request.reasoning_effort"]):
        facts = {**facts, "request.reasoning_effort": ""}
    return {
        name: value.isoformat(timespec="seconds") if isinstance(value, datetime) else value
        for name, value in facts.items()
        if name not in MAPS or value
    }
