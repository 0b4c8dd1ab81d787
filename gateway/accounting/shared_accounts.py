"""Limits that hold over all workers and gateways, and what holds while their store is away.

All that a worker asks at the same time goes in one batch. Its own mirror of what it holds decides alone
while the store does not answer: no request waits then, and a task asks from time to time.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial

from backend.kept_running import keep_running
from gateway.accounting.accounts import MemoryAccounts, Settled
from gateway.accounting.counters import Counters, end_task
from gateway.accounting.holds import LEASE_S, Answer, HoldStore, Part
from gateway.accounting.lines import Line, State, Verdict, decide, used_keys
from gateway.errors import ApiError, Unavailable
from policies.tenants import OnFailure

logger = logging.getLogger(__name__)

RENEW_S = LEASE_S / 4
FIRST_PROBE_S, LAST_PROBE_S = 0.25, 2.0
PROBE_TIMEOUT_S = 1.0
"""No request waits for a probe, but the next batch does where the store has just become slow."""
MAX_BATCH = 64
"""Requests that reserve, and those that end, in one operation: a longer one would hold others up."""
MAX_SEEN = 100_000


@dataclass(slots=True)
class Seen:
    """What the store has said of a line last, and what has been done since."""

    line: Line
    key: str  # of the window
    used: int = 0
    held: int = 0
    own: int = 0  # of `held`, this worker's


@dataclass(slots=True, eq=False)
class _Asked:
    lines: Sequence[Line]
    answer: asyncio.Future[Verdict]


class SharedAccounts:
    """Implements Accounts. Use it inside one event loop."""

    def __init__(
        self,
        store: HoldStore,
        counters: Counters,
        on_failure: OnFailure = "share",
        on_fault: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`on_fault` gets "unavailable" when the store fails."""
        self.fault = ""
        self.owner = secrets.token_hex(8)
        self._store = store
        self._counters = counters
        self._on_failure, self._on_fault = on_failure, on_fault
        self._own = MemoryAccounts(counters)  # what the store knows of this worker, but for what waits
        self._asked: list[_Asked] = []
        self._ended: list[Settled] = []
        self._seen: dict[str, Seen] = {}
        self._shares: dict[str, int] = {}  # while the store is away, by window
        self._changed: set[str] = set()  # lines whose amounts the store may not know
        self._num_owners = 1
        self._is_known = False  # the store has a lease of this worker
        self._working: asyncio.Task[None] | None = None
        self._renewing: asyncio.Task[None] | None = None
        self._turn = asyncio.Lock()

    async def reserve(self, lines: Sequence[Line]) -> Verdict:
        """Count and set aside. Raises Unavailable where the policies refuse what cannot be counted."""
        if self.fault:
            return self._alone(lines)
        asked = _Asked(lines, asyncio.get_running_loop().create_future())
        self._asked.append(asked)
        self._wake()
        return await asked.answer

    def settle(self, ended: Sequence[Settled]) -> None:
        """Give back what was set aside, and count what was used; without waiting."""
        if self.fault:
            self._settle_alone(ended)
        else:
            self._ended += ended
            self._wake()

    async def close(self) -> None:
        """Tell what has not been told, and end the lease."""
        if self._renewing is not None:
            await end_task(self._renewing)
        if self._working is not None:
            await self._working
        with contextlib.suppress(ApiError):
            await self._store.leave(self.owner)

    def start(self) -> None:
        """Take a lease, so that the others know of this worker before its first request."""
        if self._renewing is None:
            self._renewing = asyncio.create_task(self._renew())

    def _wake(self) -> None:
        if self._working is None:
            self._working = asyncio.create_task(self._work())
        self.start()

    async def _work(self) -> None:
        """Until nothing waits."""
        try:
            while self._asked or self._ended:
                async with self._turn:
                    await self._batch()
        finally:
            self._working = None

    async def _batch(self) -> None:
        asked, self._asked = self._asked[:MAX_BATCH], self._asked[MAX_BATCH:]
        ended, self._ended = self._ended[:MAX_BATCH], self._ended[MAX_BATCH:]
        if self.fault:  # since they began to wait
            self._run_alone(asked, ended)
            return
        try:
            answer = await self._bounded(self._run(asked, ended), self._store.timeout_s)
        except Exception as failure:  # noqa: BLE001 - requests wait for the answer
            error = failure if isinstance(failure, ApiError) else Unavailable(type(failure).__name__)
            self._changed |= {line.name for each in asked for line in each.lines}
            self._fail(error)
            self._run_alone(asked, ended)
            return
        self._learn(asked, ended, answer)

    def _learn(self, asked: Sequence[_Asked], ended: Sequence[Settled], answer: Answer) -> None:
        self._num_owners = answer.num_owners
        for key, total in answer.sums.items():
            self._counters.know(key, total)
        self._note_ended(ended)
        for each, verdict in zip(asked, answer.verdicts, strict=True):
            self._note(each, verdict)

    async def _run(self, asked: Sequence[_Asked], ended: Sequence[Settled]) -> Answer:
        reserving = [[Part.of(line, self._counters, line.asked) for line in each.lines] for each in asked]
        given = [Part.of(each.line, self._counters, each.held, each.used) for each in ended]
        for _ in range(2):
            if not self._is_known:
                await self._register()
            answer = await self._store.run(self.owner, reserving, given)
            if answer.has_lease:
                return answer
            self._is_known = False  # it has lost it, and what it knew of the counters
            self._counters.tell_all()
        raise Unavailable("The store of limits keeps no lease.")

    def _note(self, asked: _Asked, verdict: Verdict) -> None:
        """Keep what the store has said, and pass it on."""
        granted = verdict.granted or [0] * len(asked.lines)
        given: list[Settled] = []
        for line, state, amount in zip(asked.lines, verdict.states, granted, strict=True):
            at_once, held = (amount, 0) if line.is_counted_at_once else (0, amount)
            if held:
                self._own.held[line.name] += held
                given.append(Settled(line, held, 0))
            key, own = used_keys(self._counters, line)[0], self._own.held[line.name]
            if len(self._seen) > MAX_SEEN:
                self._seen.clear()
            self._seen.pop(line.name, None)  # the latest come last
            self._seen[line.name] = Seen(line, key, state.used + at_once, state.held + held, own)
        if asked.answer.cancelled():  # its client has left
            self.settle(given)
        else:
            asked.answer.set_result(verdict)

    def _note_ended(self, ended: Sequence[Settled]) -> None:
        self._own.release(ended)
        for line, held, used in ended:
            if (seen := self._seen.get(line.name)) is not None:
                seen.used += used
                seen.held -= held
                seen.own -= held

    async def _register(self) -> None:
        await self._counters.sync()
        held = {name: 0 for name in self._changed} | dict(self._own.held)
        self._num_owners = await self._store.register(self.owner, held)
        self._changed.clear()
        self._is_known = True

    async def _bounded(self, work: Coroutine[None, None, Answer], timeout_s: float) -> Answer:
        """The answer within this time. Raises Unavailable."""
        task = asyncio.create_task(work)
        try:
            await asyncio.wait([task], timeout=timeout_s)
            for _ in range(5):  # a busy loop may have been late, not the store
                if task.done():
                    return task.result()
                await asyncio.sleep(0)
        finally:  # also when the lease is no longer kept: nothing may renew it after its end
            if not task.done():
                task.cancel()
                await asyncio.wait([task])
        raise Unavailable("The store of limits does not answer in time.")

    def _fail(self, error: ApiError) -> None:
        self._on_fault("unavailable")
        logger.warning("limits are not shared: %s", error.message)
        self.fault = error.message
        self._is_known = False
        self._shares.clear()

    async def _renew(self) -> None:
        restarted = partial(self._on_fault, "restarted")
        await keep_running("the lease of limits", self._keep_lease, logger, restarted)

    async def _keep_lease(self) -> None:
        """Renew the lease; while the store is away, ask whether it is back."""
        probe_s = FIRST_PROBE_S
        while True:
            try:
                async with self._turn:
                    await self._refresh()
            except ApiError as error:
                if not self.fault:
                    self._fail(error)
                probe_s = min(2 * probe_s, LAST_PROBE_S)
            else:
                if self.fault:
                    logger.info("limits are shared again")
                self.fault, probe_s = "", FIRST_PROBE_S
            await asyncio.sleep(probe_s if self.fault else RENEW_S)

    async def _refresh(self) -> None:
        """Renew the lease, and learn what others have used and set aside since. Raises Unavailable."""
        no_request_waits = bool(self.fault) or not self._is_known
        lines = [each.line._replace(asked=0, limit=None) for each in [*self._seen.values()][-MAX_BATCH:]]
        asked = [_Asked(lines, asyncio.get_running_loop().create_future())]
        timeout_s = PROBE_TIMEOUT_S if no_request_waits else self._store.timeout_s
        self._learn(asked, [], await self._bounded(self._renewed(asked), timeout_s))

    async def _renewed(self, asked: Sequence[_Asked]) -> Answer:
        answer = await self._run(asked, [])  # before it, the loss of a lease would not be found
        await self._register()
        return answer

    def _run_alone(self, asked: Sequence[_Asked], ended: Sequence[Settled]) -> None:
        self._settle_alone(ended)
        for each in asked:
            self._answer_alone(each)

    def _answer_alone(self, asked: _Asked) -> None:
        if asked.answer.cancelled():
            return
        try:
            asked.answer.set_result(self._alone(asked.lines))
        except Unavailable as error:
            asked.answer.set_exception(error)

    def _alone(self, lines: Sequence[Line]) -> Verdict:
        """What this worker may decide by itself. Raises Unavailable."""
        if self._on_failure == "refuse":
            raise Unavailable(
                "The limits of this tenant cannot be checked now, and the policies refuse requests then "
                "(replicas.on_failure). Send it again.",
                headers={"retry-after": "1"},
            )
        mine = [
            line if line.limit is None else line._replace(limit=self._share(line, line.limit))
            for line in lines
        ]
        untold = [int(self._counters.untold(used_keys(self._counters, line)[0])) for line in lines]
        states = [State(used, self._own.held[line.name]) for used, line in zip(untold, lines, strict=True)]
        verdict = decide(mine, states)
        self._own.grant(lines, verdict.granted)
        self._changed |= {line.name for line in lines}
        return verdict

    def _share(self, line: Line, limit: int) -> int:
        """What of a limit is this worker's in the present window, what it holds already included."""
        key, _, _ = used_keys(self._counters, line)
        if (known := self._shares.get(key or line.name)) is not None:
            return known
        seen = self._seen.get(line.name)
        if seen is None or seen.key != key:
            seen = Seen(line, key)
        if self._on_failure == "local":
            share = max(0, limit - seen.used)
        else:
            share = max(0, limit - seen.used - seen.held) // self._num_owners + seen.own
            if not key:  # what runs elsewhere may not have been heard of
                share = min(share, max(seen.own, limit // self._num_owners))
        self._shares[key or line.name] = share
        return share

    def _settle_alone(self, ended: Sequence[Settled]) -> None:
        self._own.settle(ended)
        self._changed |= {each.line.name for each in ended}
