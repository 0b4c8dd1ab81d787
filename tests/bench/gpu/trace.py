"""What a step of the real engine launches on a GPU, without one: the runner runs on tensors without values.

Launches of Triton are recorded with their grids, as for a GPU of the card's architecture. What torch computes
is recorded by its dispatcher, with FLOPs and bytes of products. Downloads give ones, and are counted.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from triton.runtime.jit import JITFunction

from backend.config import EngineConfig
from backend.engine.runner import ModelRunner
from backend.kernels import device as kernel_device
from backend.kernels.lora import SlotWeights
from backend.types import PAGE_TOKENS, Plan, Request, SamplingParams, ScheduledChunk, Sequence
from tests.backend.kernels.ahead import absent_device
from tests.bench.gpu.models import open_runner, random_model

ADAPTER_RANK = 16
PARAMS = {
    "greedy": SamplingParams(max_tokens=1 << 20, temperature=0.0),
    "filtered": SamplingParams(max_tokens=1 << 20, seed=1, temperature=0.8, top_k=50, top_p=0.9, min_p=0.02),
    "scored": SamplingParams(max_tokens=1 << 20, temperature=0.0, logprobs=5),
}
_NO_LAUNCH = ("empty", "detach", "alias", "lift_fresh", "_unsafe_view", "unbind", "split")


@dataclass(frozen=True)
class Kernel:
    """One launch."""

    op: str  # the folder of a kernel in Triton; "products" or "torch" for what torch launches
    name: str
    programs: int = 0  # of a grid in Triton
    num_bytes: int = 0  # of a product: what it reads and writes
    num_flops: int = 0


@dataclass
class Trace:
    """Everything that one step launched, copied and waited for."""

    kernels: list[Kernel] = field(default_factory=list)
    copies: Counter[str] = field(default_factory=Counter)  # uploads and downloads
    error: str = ""  # the operation that needs values, where recording ended

    def of(self, op: str) -> list[Kernel]:
        """The launches of one op."""
        return [kernel for kernel in self.kernels if kernel.op == op]


class _OnGpu(TorchFunctionMode):
    """Tensors on "meta" say that they are on a GPU, so that every branch on the device takes its path.

    So does what only knows the name of the device.
    """

    def __enter__(self) -> _OnGpu:
        self._was_interpreted, kernel_device._IS_INTERPRETED = kernel_device._IS_INTERPRETED, True
        super().__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        kernel_device._IS_INTERPRETED = self._was_interpreted
        super().__exit__(*error)

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        if func == Tensor.is_cuda.__get__:
            return args[0].is_meta
        return func(*args, **(kwargs or {}))


class _Recorder(TorchDispatchMode):
    def __init__(self, trace: Trace) -> None:
        super().__init__()
        self._trace = trace

    def __torch_dispatch__(
        self,
        func: OpOverload[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        kwargs = kwargs or {}
        name, packet = func.__name__.split(".")[0], func.overloadpacket
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        is_meta = any(tensor.is_meta for tensor in tensors) or kwargs.get("device") == torch.device("meta")
        if not is_meta:
            return func(*args, **kwargs)
        if name in ("_local_scalar_dense", "is_nonzero"):
            self._trace.copies["downloads"] += 1
            return 1
        if name == "_to_copy" and kwargs.get("device") == torch.device("cpu"):
            self._trace.copies["downloads"] += 1
            return torch.ones(args[0].shape, dtype=kwargs.get("dtype") or args[0].dtype)
        with self:  # under inference_mode some operations arrive undivided
            if (result := func.decompose(*args, **kwargs)) is not NotImplemented:
                return result
        result = func(*args, **kwargs)
        if name in ("_to_copy", "copy_") and not all(tensor.is_meta for tensor in tensors):
            self._trace.copies["uploads"] += 1
        elif packet in (torch.ops.aten.mm, torch.ops.aten.addmm, torch.ops.aten.bmm):
            self._trace.kernels.append(_product(name, tensors, result))
        elif not func.is_view and not name.startswith(_NO_LAUNCH):
            self._trace.kernels.append(Kernel("torch", name))
        return result


def _product(name: str, tensors: list[Tensor], result: Tensor) -> Kernel:
    num_bytes = sum(tensor.numel() * tensor.itemsize for tensor in (*tensors, result))
    return Kernel("products", name, 0, num_bytes, 2 * result.numel() * tensors[-2].shape[-1])


@contextlib.contextmanager
def only_recorded(arch: int, record: Callable[..., None]) -> Iterator[None]:
    """Launches of Triton call `record` and do not compile, as on a GPU of this architecture."""
    with absent_device(arch, []):
        run, JITFunction.run = JITFunction.run, record
        try:
            yield
        finally:
            JITFunction.run = run


@contextlib.contextmanager
def recording(arch: int) -> Iterator[Trace]:
    """Record what is launched meanwhile on tensors on the device "meta", as on a GPU of this architecture."""
    trace = Trace()

    def record(self, *args, grid, warmup, **options) -> None:  # noqa: ANN001, ANN002, ANN003
        op = self.fn.__module__.removeprefix("backend.kernels.").removesuffix(".kernel")
        trace.kernels.append(Kernel(op, self.fn.__name__.lstrip("_"), math.prod(grid)))

    with only_recorded(arch, record), _OnGpu(), _Recorder(trace):
        yield trace


@dataclass(frozen=True)
class Work:
    """The sequences of a step, all alike."""

    streams: int
    queries: int = 1  # tokens that each computes
    context: int = 1024
    draws: str = "greedy"  # a key of PARAMS
    adapters: int = 0  # different ones, in slots that sequences share in turn; 0: none


def runner_for(shape: dict[str, Any], work: Work, device: str) -> ModelRunner:
    """A runner with random weights, and memory for `work`."""
    model = random_model(shape, device, torch.bfloat16)
    num_pages = work.streams * -(-work.context // PAGE_TOKENS)
    config = EngineConfig(model="m", checkpoint="", max_running=work.streams, num_pages=num_pages)
    if work.adapters:
        for linear in {id(part.linear): part.linear for part in model.sites.values()}.values():
            like = torch.empty(0, dtype=torch.bfloat16, device=device)
            sizes = linear.in_features, linear.part_features
            linear.adapters = SlotWeights(work.adapters, *sizes, ADAPTER_RANK, like)
    return open_runner(model, config)


def traced(shape: dict[str, Any], work: Work, arch: int) -> Trace:
    """One step of `work` through the runner; a model's layers are all alike, so that few of them will do."""
    with _OnGpu():
        runner = runner_for(shape, work, "meta")
    with recording(arch) as trace:
        try:
            runner.run(plan_of(work))
        except (RuntimeError, NotImplementedError) as error:  # what waits for values cannot go on without
            named = re.search(r"(aten::|torch\.)(\w+)", str(error))
            trace.error = named[2] if named else str(error)
    return trace


def plan_of(work: Work) -> Plan:
    """The step."""
    pages = -(-work.context // PAGE_TOKENS)
    chunks = []
    for number in range(work.streams):
        request = Request(
            request_id=str(number), prompt_token_ids=[0] * work.context, params=PARAMS[work.draws]
        )
        own = list(range(number * pages, (number + 1) * pages))
        sequence = Sequence(request, [0] * work.context, work.context, pages=own, row=number)
        sequence.adapter_slot = number % work.adapters if work.adapters else -1
        chunks.append(ScheduledChunk(sequence, work.context - work.queries, work.queries))
    return Plan(chunks)
