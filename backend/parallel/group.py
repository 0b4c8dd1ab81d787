"""The processes of one engine: how they find each other, sum, and learn of each other's errors and ends.

Collectives run on gloo, on GPUs of their own on NCCL. Between two of them an error stays with its rank, which
takes part with zeros, until `settle` tells all: so no rank waits for one that gave up. A lost rank is fatal.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from threading import Thread
from typing import ParamSpec, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import TCPStore

from backend.errors import AdapterError, CheckpointError, EngineError
from backend.parallel.children import Children

_HEAD_BYTES = 4096
"""The length of a message and, of most, all else: what is broadcast first."""

_LENGTH_BYTES = 8
_ERROR_BYTES = 512
_FOREVER = timedelta(days=365)
"""Idle ranks wait for the next message; the end of a rank shows otherwise."""

_STOP_S = 5.0

_KNOWN_ERRORS: tuple[type[EngineError], ...] = (AdapterError, CheckpointError)

P = ParamSpec("P")
R = TypeVar("R")

logger = logging.getLogger(__name__)


class RankError(Exception):
    """Another rank could not compute its part."""


class Group:
    """This process as one of `size` ranks."""

    def __init__(self, children: Children | None = None) -> None:
        """A member of the default process group; `children`: ranks that this one started."""
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.num_collectives = 0
        self.is_closing = False
        self._children = children
        self._error: Exception | None = None
        self._backends = ["gloo"]
        if torch.cuda.is_available() and torch.cuda.device_count() >= self.local_size:
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", self.rank)))
            self._backends.append("nccl")  # for tensors on devices
        self._all = self._open(None)
        self.arrange(self.size)

    def arrange(self, width: int) -> None:
        """From now on each `width` ranks are a stage; `sum` and `gather` are among these."""
        self.width, self.num_stages = width, self.size // width
        self.stage, self.rank_in_stage = divmod(self.rank, width)
        self._stage = self._all
        if self.num_stages > 1 and width > 1:  # all ranks open all groups
            opened = [self._open(list(range(begin, begin + width))) for begin in range(0, self.size, width)]
            self._stage = opened[self.stage]

    def _open(self, ranks: list[int] | None) -> list[dist.ProcessGroup | None]:
        """By `_backends`; None: the default group."""
        return [
            None
            if ranks is None and backend == "gloo"
            else dist.new_group(ranks, backend=backend, timeout=_FOREVER)
            for backend in self._backends
        ]

    def watch(self) -> None:
        """End this process when the connection to rank 0 ends or, on rank 0, to any: also between steps."""
        self._watched = dist.new_group(backend="gloo", timeout=_FOREVER)
        peers = range(1, self.size) if self.rank == 0 else [0]
        self._watchers = {
            rank: Thread(target=self._wait_for_end, args=(rank,), daemon=True) for rank in peers
        }
        for watcher in self._watchers.values():
            watcher.start()

    def _wait_for_end(self, rank: int) -> None:
        try:
            dist.recv(torch.empty(1), rank, group=self._watched)  # sent by one that leaves
        except RuntimeError:
            if not self.is_closing:
                logger.critical("rank %s lost rank %s; the engine ends", self.rank, rank)
                os._exit(1)

    @property
    def local_size(self) -> int:
        """Ranks on this machine."""
        default = 1 if self._children is None else self.size
        return int(os.environ.get("LOCAL_WORLD_SIZE", default))

    def broadcast(self, payload: bytes = b"", source: int = 0) -> bytes:
        """The payload of rank `source`, on all ranks."""
        head = torch.zeros(_HEAD_BYTES, dtype=torch.uint8)
        if self.rank == source:
            first = len(payload).to_bytes(_LENGTH_BYTES, "little") + payload[: _HEAD_BYTES - _LENGTH_BYTES]
            head[: len(first)] = torch.frombuffer(bytearray(first), dtype=torch.uint8)
        self._run(dist.broadcast, head, source)
        length = int.from_bytes(head[:_LENGTH_BYTES].numpy().tobytes(), "little")
        start = head[_LENGTH_BYTES : _LENGTH_BYTES + length].numpy().tobytes()
        if length <= len(start):
            return start
        rest = bytearray(payload[len(start) :] if self.rank == source else length - len(start))
        self._run(dist.broadcast, torch.frombuffer(rest, dtype=torch.uint8), source)
        return payload if self.rank == source else start + bytes(rest)

    def share(self, tensor: Tensor) -> None:
        """Overwrite `tensor` with rank 0's, on all ranks."""
        self._run(dist.broadcast, tensor, 0, self._all[tensor.is_cuda])

    def attempt(self, compute: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R | None:
        """What `compute` gives; None if it fails, or anything has failed since the last `settle`."""
        if self._error is None:
            try:
                return compute(*args, **kwargs)
            except Exception as error:  # noqa: BLE001 - `settle` raises it, on all ranks
                self._error = error
        return None

    @contextmanager
    def together(self) -> Iterator[None]:
        """Where an error that no `attempt` caught ends the process: the others wait for this rank."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - the process ends
            logger.critical("rank %s cannot go on (%s: %s)", self.rank, type(error).__name__, error)
            os._exit(1)

    def fail(self, error: Exception) -> None:
        """Raise this at the next `settle`, on all ranks, unless there is an earlier one."""
        self._error = self._error or error

    def sum(self, part: Tensor | None, spare: Tensor) -> Tensor:
        """The sum of the stage's parts; who has none adds zeros in the memory of `spare`, of that shape."""
        if part is None:
            part = spare.zero_()
        if self.width > 1:
            self._run(dist.all_reduce, part, group=self._stage[part.is_cuda])
        return part

    def gather(self, part: Tensor) -> list[Tensor]:
        """The first stage's parts, by rank, on rank 0; nothing on others."""
        if self.stage:
            return []
        found = [torch.empty_like(part) for _ in range(self.width)] if self.rank == 0 else None
        self._run(dist.gather, part, found, group=self._stage[part.is_cuda])
        return found or []

    def receive(self, hidden: Tensor) -> Tensor:
        """What the stage before this one, of the first one the last, passes on, in the memory of `hidden`."""
        self._run(dist.recv, hidden, (self.rank - self.width) % self.size, self._all[hidden.is_cuda])
        return hidden

    def pass_on(self, hidden: Tensor) -> None:
        """Give the next stage what it is to receive."""
        self._run(dist.send, hidden, (self.rank + self.width) % self.size, self._all[hidden.is_cuda])

    def least(self, number: int) -> int:
        """The smallest of all ranks' numbers."""
        found = torch.tensor([number])
        self._run(dist.all_reduce, found, op=dist.ReduceOp.MIN)
        return int(found)

    def settle(self) -> None:
        """Raise what has failed since the last call: own errors, or that of another rank as its class."""
        error, self._error = self._error, None
        failed = torch.tensor([error is not None], dtype=torch.int32)
        self._run(dist.all_reduce, failed)
        if not failed:
            return
        text = b"" if error is None else f"{type(error).__name__}\n{error}".encode()[:_ERROR_BYTES]
        own = torch.zeros(_ERROR_BYTES, dtype=torch.uint8)
        own[: len(text)] = torch.frombuffer(bytearray(text), dtype=torch.uint8) if text else 0
        texts = [torch.empty_like(own) for _ in range(self.size)]
        self._run(dist.all_gather, texts, own)
        if error is not None:
            raise error
        told = [bytes(each.tolist()).rstrip(b"\0").decode(errors="replace") for each in texts]
        rank, message = next((rank, each) for rank, each in enumerate(told) if each)
        name, _, reason = message.partition("\n")
        kind: type[Exception] = {known.__name__: known for known in _KNOWN_ERRORS}.get(name, RankError)
        raise kind(reason if kind is not RankError else f"rank {rank}: {name}: {reason}")

    def close(self, *, kills: bool = False) -> None:
        """Leave the group; wait for the ranks that this one started, or kill them."""
        self.is_closing = True
        for rank, watcher in self._watchers.items():
            if not kills:
                self._run(dist.send, torch.zeros(1), rank, self._watched)
                watcher.join()
        if self._children is not None:
            self._children.close(0.0 if kills else _STOP_S)
        dist.destroy_process_group()

    def _run(self, collective: Callable[..., object], *args: object, **options: object) -> None:
        self.num_collectives += 1
        try:
            collective(*args, **options)
        except RuntimeError as error:
            logger.critical("rank %s lost another rank (%s); the engine ends", self.rank, error)
            os._exit(1)


def join() -> Group:
    """The group of torchrun's variables: RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    has_store = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"  # torchrun's own process has it
    address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = TCPStore(*address, size, rank == 0 and not has_store, _FOREVER, wait_for_workers=False)
    return _open(store, rank, size)


def start(size: int) -> Group:
    """The group of this process, as rank 0, and of others that it starts on this machine.

    Where torchrun's variables are set, the others are there. Raises CheckpointError for another number.
    """
    if "RANK" in os.environ:
        found = os.environ["RANK"], os.environ.get("WORLD_SIZE", "")
        if found != ("0", str(size)):
            raise CheckpointError(
                f"parallel asks for {size} ranks and this process is rank 0, but RANK is {found[0]!r} and "
                f"WORLD_SIZE {found[1]!r}; start the others as `python -m backend.parallel.worker`, or unset "
                "both"
            )
        return join()
    with socket.create_server(("127.0.0.1", 0)) as listener:  # the store's own would listen on all addresses
        port = listener.getsockname()[1]
        store = TCPStore(
            *("127.0.0.1", port, size, True, _FOREVER),
            wait_for_workers=False,
            master_listen_fd=listener.detach(),
        )
    children = Children(size, port)
    return _open(store, 0, size, children)


def _open(store: TCPStore, rank: int, size: int, children: Children | None = None) -> Group:
    hook = sys.excepthook  # which the next call replaces
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=_FOREVER)
    sys.excepthook = hook
    group = Group(children)
    group.watch()
    return group
