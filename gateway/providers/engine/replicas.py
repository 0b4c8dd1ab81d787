"""The engine processes that serve one model, and which of them gets a request."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from itertools import chain
from typing import NamedTuple

from backend.errors import AdapterError, AdapterExists, EngineUnavailable
from backend.lora.info import AdapterInfo
from backend.server.client import Refusal
from backend.server.engine_client import EngineClient
from backend.server.engine_messages import Adapters, EngineStats, Hello
from backend.server.quote import PageIndex, Quote, predict, prefix_digests, wait_s
from gateway.providers.engine.remote import Expected, refusal_beside
from router.log import Placement, ReplicaQuote

logger = logging.getLogger(__name__)

EQUAL_SECONDS = 2e-4
EQUAL_SHARE = 0.05
"""Predictions that differ by less than both together are equal: measured speeds differ by as much."""

ASSUMED_S_PER_TOKEN = 1e-4
"""Time of a prompt, while no replica has measured: what was sent counts from the first request on."""

WARM_S = 10.0
LEAST_SHARE = 0.1
"""A replica that has just come counts as slower, by up to 1 / LEAST_SHARE, until WARM_S have passed: its
cache is cold and its speeds are first guesses. So its share rises, and it is not flooded."""

RECHECK_S = 1.0
"""How often a request that waits looks for replicas that were not there when it came."""


class Load:
    """What one replica's next request waits for: its last heartbeat, and what was sent since."""

    __slots__ = ("num_requests", "num_tokens", "slowness", "stats", "wait_s")

    def __init__(self, stats: EngineStats, age_s: float = WARM_S) -> None:
        """`age_s`: how long the replica has been ready."""
        self.stats = stats
        self.slowness = 1.0 / max(LEAST_SHARE, min(1.0, age_s / WARM_S))
        self.num_tokens = 0
        self.num_requests = 0
        self.wait_s = wait_s(stats)

    def add(self, num_tokens: int, num_requests: int) -> None:
        """Count what was sent."""
        self.num_tokens += num_tokens
        self.num_requests += num_requests
        self.wait_s = wait_s(self.stats, self.num_tokens, self.num_requests)


@dataclass(frozen=True, slots=True)
class Prompt:
    """What decides where a request is computed first."""

    token_ids: Sequence[int]
    tenant_salt: str = ""
    adapter: str = ""  # its name
    max_tokens: int | None = None
    num_sequences: int = 1


class Replicas:
    """Engines of the same configuration.

    A request goes where its answer is predicted to begin first: queue, uncached part of the prompt, one step.
    Where predictions are equal, rendezvous hashing by the prompt's first page decides (Thaler and
    Ravishankar, 1998), so that all workers and gateways send a prefix to the same replica.
    """

    def __init__(
        self,
        clients: Sequence[EngineClient],
        index: PageIndex | None = None,
        expected: Expected | None = None,
    ) -> None:
        """The `pages` of the clients must be of one index: of `index`, where there may be none yet.

        `expected`: of engines that run elsewhere.
        """
        self.clients: list[EngineClient] = []
        self.index = clients[0].pages.index if index is None else index
        self._expected = expected
        self._absent = EngineClient("/none")  # while there is none
        self._loads: list[Load] = []
        self._greeted: dict[EngineClient, Hello] = {}
        self._loading: set[asyncio.Task[None]] = set()
        for client in clients:
            self.add(client)

    def add(self, client: EngineClient) -> None:
        """Let one more answer."""
        self.clients.append(client)
        self._loads.append(Load(EngineStats()))
        client.on_adapters = partial(self._on_adapters, client)
        if client.is_remote:
            client.check = self._check
            client.on_hello = partial(self._compare, client)
            client.on_lost = self._compare

    def remove(self, client: EngineClient) -> None:
        """Ask it nothing more."""
        number = self.clients.index(client)
        del self.clients[number], self._loads[number]
        self._greeted.pop(client, None)
        client.on_adapters, client.on_lost = None, lambda: None
        self._compare()

    def _check(self, hello: Hello) -> Refusal | None:
        return None if self._expected is None else self._expected.refusal(hello)

    def _compare(self, newcomer: EngineClient | None = None) -> None:
        """Engines elsewhere must be alike: the first of those that serve decides, not one that comes."""
        known = [(client, client.hello) for client in self.clients if client.hello is not None]
        fit = [(client, hello) for client, hello in known if self._check(hello) is None]
        serving = [each for each in fit if each[0].refusal is None and each[0] is not newcomer]
        for first, wanted in (serving or fit)[:1]:
            for client, hello in fit:
                client.refuse(None if client is first else refusal_beside(hello, wanted, first.place))

    @property
    def first(self) -> EngineClient:
        """One that is ready if any is: where it does not matter which, since all serve the same."""
        found = next((client for client in self.clients if client.ready), None)
        return found or (self.clients[0] if self.clients else self._absent)

    @property
    def num_waiting(self) -> int:
        """Requests in their queues, as of their last heartbeats."""
        return sum(client.stats.num_waiting for client in self.clients)

    async def wait_ready(self, timeout_s: float) -> None:
        """Return once one is ready. Raises EngineUnavailable after `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s):
                while not self.first.ready:
                    await self._wait_any(self.clients or [self._absent])
        except TimeoutError:
            raise EngineUnavailable(f"no replica was ready within {timeout_s:g} s") from None

    async def _wait_any(self, clients: Sequence[EngineClient]) -> None:
        """Return when one of these is ready, or after RECHECK_S: there may be others by then."""
        waiting = [asyncio.ensure_future(client.wait_ready(RECHECK_S)) for client in clients]
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)

    def quote(self, prompt: Prompt) -> Quote | None:
        """What the prompt would cost the replica that would get it; None while none is ready."""
        placed = self._place(prompt)
        return None if placed is None else self._quote(prompt, placed.number, placed.cached[placed.number])

    def choose(self, prompt: Prompt, placements: list[Placement] | None = None) -> EngineClient:
        """The replica that gets this request, which counts as sent there. `first` while none is ready.

        Where there are several, why it is that one is added to `placements`.
        """
        if len(self.clients) == 1:
            return self.clients[0]
        placed = self._place(prompt)
        if placed is None:
            return self.first
        if placements is not None:
            placements.append(self._explained(prompt, placed))
        number = placed.number
        self._loads[number].add(len(prompt.token_ids) - placed.cached[number], prompt.num_sequences)
        return self.clients[number]

    def choose_among(self, prompt: Prompt, allowed: Collection[int]) -> EngineClient | None:
        """The same, of the replicas with these numbers alone; None while none of them is ready."""
        placed = self._place(prompt, allowed)
        if placed is None:
            return None
        self._loads[placed.number].add(
            len(prompt.token_ids) - placed.cached[placed.number], prompt.num_sequences
        )
        return self.clients[placed.number]

    async def load_adapter(self, name: str, path: str, *, replaces: bool, force: bool) -> None:
        """Load it on every replica; one that starts later takes it over.

        Raises AdapterError, or EngineUnavailable while one is away: it would come back with what it had. One
        on another machine may lack the files: then it is not asked for this adapter.
        """
        clients = self._changing()
        if not any(client.is_remote for client in clients):
            calls = [c.load_adapter(name, path, replaces=replaces, force=force) for c in clients]
            await self._on_all(calls)
            return
        digest, faults = "", list[str]()
        for client in clients:  # the first that has the files tells which weights they are
            try:
                info = await client.load_adapter(name, path, replaces=replaces, force=force, digest=digest)
                digest = info.digest
            except AdapterExists:
                raise
            except AdapterError as error:
                faults.append(f"the engine at {client.place}: {error}")
        if not digest:
            raise AdapterError("; ".join(faults))
        for fault in faults:
            logger.warning("adapter %r is not on every replica: %s", name, fault)

    async def unload_adapter(self, name: str) -> None:
        """Unload it everywhere. Raises AdapterError if none had it, EngineUnavailable while one is away."""
        await self._on_all([client.unload_adapter(name) for client in self._changing()], is_any_enough=True)

    def _changing(self) -> list[EngineClient]:
        """Replicas that must change together: one that sleeps starts with what the first one had."""
        found = [each for each in self.clients if each.ready or not each.may_sleep]
        if not found or (len(self.clients) > 1 and not all(client.ready for client in found)):
            raise EngineUnavailable("adapters change on all replicas or on none, and one is away")
        return found

    def _on_adapters(self, client: EngineClient, known: Adapters) -> None:
        """A replica that has just come may lack what the others were told to load.

        Or they lack what it has: one that has just started may answer a connection before one that works.
        """
        if client.hello is None or self._greeted.get(client) is client.hello:
            return
        self._greeted[client] = client.hello
        own = {info.name: info for info in known.adapters}
        theirs: dict[str, AdapterInfo] = {}
        for other in self.clients:
            if other is not client and other.ready:
                theirs |= other.adapters
            if other is not client and other.hello is not None and self._greeted.get(other) is other.hello:
                self._load_missing(other, own, other.adapters)
        self._load_missing(client, theirs, own)

    def _load_missing(
        self, client: EngineClient, wanted: Mapping[str, AdapterInfo], known: Collection[str]
    ) -> None:
        for name in wanted.keys() - known:
            task = asyncio.create_task(self._catch_up(client, wanted[name]))
            self._loading.add(task)
            task.add_done_callback(self._loading.discard)

    async def _catch_up(self, client: EngineClient, wanted: AdapterInfo) -> None:
        """Load it there too, but not the files of another adapter. Other workers may do the same."""
        try:
            await client.load_adapter(
                wanted.name, wanted.path, replaces=False, force=True, digest=wanted.digest
            )
        except AdapterExists:
            return
        except (AdapterError, EngineUnavailable) as error:
            at, why = (client.place, error) if client.is_remote else ("this machine", type(error).__name__)
            logger.warning("adapter %r is not on every replica: the engine at %s: %s", wanted.name, at, why)

    async def _on_all(self, calls: Sequence[Awaitable[AdapterInfo]], *, is_any_enough: bool = False) -> None:
        results = await asyncio.gather(*calls, return_exceptions=True)
        errors = [each for each in results if isinstance(each, BaseException)]
        if errors and not (is_any_enough and len(errors) < len(results)):
            raise errors[0]

    def _place(self, prompt: Prompt, allowed: Collection[int] | None = None) -> _Placed | None:
        """The best replica, and how it compares; None while none is ready."""
        numbers, hello = self._candidates(prompt.adapter, allowed)
        if hello is None:
            return None
        adapter = _adapter_digest(self.clients[numbers[0]], prompt.adapter) or ""
        digests = prefix_digests(hello, prompt.token_ids, prompt.tenant_salt, adapter)
        first_page = next(digests, None)
        pages = chain([first_page], digests) if first_page else ()
        by_pages = self.index.cached_tokens(pages, has_gaps=hello.has_states)
        cached = [by_pages[client.pages.number] for client in self.clients]
        seconds = self._seconds(numbers, len(prompt.token_ids), cached)
        limit_s = min(seconds) * (1 + EQUAL_SHARE) + EQUAL_SECONDS
        equal = [number for number, each_s in zip(numbers, seconds, strict=True) if each_s <= limit_s]
        number = _rendezvous(first_page or str(prompt.token_ids).encode(), equal, self._name)
        return _Placed(number, cached, dict(zip(numbers, seconds, strict=True)), len(equal))

    def _name(self, number: int) -> bytes:
        """A replica's name that all gateways have for it."""
        client = self.clients[number]
        return client.place.encode() if client.is_remote else number.to_bytes(2)

    def _candidates(self, adapter: str, allowed: Collection[int] | None) -> tuple[list[int], Hello | None]:
        """The replicas that are ready and whose pages are of the same kind as the first's; its greeting."""
        found: list[int] = []
        first: Hello | None = None
        wanted: tuple[str, ...] = ()
        for number, client in enumerate(self.clients):
            hello = client.hello
            if allowed is not None and number not in allowed:
                continue
            if hello is None or not client.ready or (digest := _adapter_digest(client, adapter)) is None:
                continue
            weights = hello.revision, hello.kv_dtype, digest
            if first is None:
                first, wanted = hello, weights
            if weights == wanted:
                found.append(number)
        return found, first

    def _explained(self, prompt: Prompt, placed: _Placed) -> Placement:
        num_equal = placed.num_equal
        reason = "least seconds" if num_equal == 1 else f"hash of the first page among {num_equal} equal ones"
        quotes = [self._compared(prompt, placed, number) for number in range(len(self.clients))]
        return Placement(chosen=placed.number, reason=reason, quotes=quotes)

    def _compared(self, prompt: Prompt, placed: _Placed, number: int) -> ReplicaQuote:
        client, load, cached = self.clients[number], self._loads[number], placed.cached[number]
        why_not = ""
        if number not in placed.seconds:
            lacks = _adapter_digest(client, prompt.adapter) is None
            why_not = "not ready" if not client.ready else "lacks the adapter" if lacks else "other weights"
        return ReplicaQuote(
            replica=number,
            seconds=round(placed.seconds.get(number, 0.0), 6),
            queue_tokens=client.stats.waiting_tokens + load.num_tokens,
            uncached_tokens=len(prompt.token_ids) - cached,
            cached_tokens=cached,
            why_not=why_not,
        )

    def _seconds(self, numbers: Sequence[int], num_tokens: int, cached: Sequence[int]) -> list[float]:
        """The predicted time to the first token; one that has measured nothing yet counts as the slowest."""
        loads, clients = self._loads, self.clients
        speeds = []
        for number in numbers:
            stats = clients[number].stats
            if loads[number].stats is not stats:
                loads[number] = Load(stats, time.monotonic() - clients[number].ready_since_s)
            speeds.append(stats.prefill_s_per_token)
        slowest_s = max(speeds) or ASSUMED_S_PER_TOKEN
        slowest_step_s = max(loads[number].stats.decode_step_s for number in numbers)
        return [
            loads[number].slowness
            * (
                loads[number].wait_s + (num_tokens - cached[number]) * speed_s
                if speed_s
                else (loads[number].num_tokens + num_tokens - cached[number]) * slowest_s + slowest_step_s
            )
            for number, speed_s in zip(numbers, speeds, strict=True)
        ]

    def _quote(self, prompt: Prompt, number: int, cached: int) -> Quote:
        load = self._loads[number]
        return predict(
            load.stats,
            len(prompt.token_ids),
            cached,
            max_tokens=prompt.max_tokens,
            sent_tokens=load.num_tokens,
            num_sent=load.num_requests,
        )


class _Placed(NamedTuple):
    number: int  # of the best replica
    cached: list[int]  # tokens of the prompt, by replica
    seconds: dict[int, float]  # predicted to the first token, by the number of each that could be chosen
    num_equal: int  # of these, as good as the best


def _adapter_digest(client: EngineClient, adapter: str) -> str | None:
    """ "" for the base model; None without the adapter."""
    if not adapter:
        return ""
    info = client.adapters.get(adapter)
    return None if info is None else info.digest


def _rendezvous(key: bytes, numbers: Sequence[int], name_of: Callable[[int], bytes]) -> int:
    """The same of these for each request with this key, whichever gateway asks."""
    if len(numbers) == 1:
        return numbers[0]
    return max(numbers, key=lambda number: blake2b(key + name_of(number), digest_size=8).digest())
