"""Replays steps as CUDA graphs: one launch instead of some hundred for each forward pass.

A graph is captured at start, or when a step of its key comes for the second time: rows rounded up to 1,
2, 4, 8, then by 8; the number of adapters; where drafts are verified also the tokens, and those of the row
with the most; and the longest context rounded up, on which the grid of attention depends. It reads weights,
KV memory and static buffers (graph_buffers.py), into which each step is copied; where layers get other memory
for adapters, graphs that read it are dropped. Padding writes to the storage's last page, which is not owned.

Eager are: steps with prompt chunks, draft trees or observers; models with recurrent states, latent
attention, or pages of their own for layers with a window; and several GPUs.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from backend.engine.graph_buffers import Key, StaticStep, first_keys, key_of, most_tokens
from backend.kernels.graph_keys import Capture
from backend.kv.storage import KVStorage
from backend.layers.step_input import StepInput
from backend.models.loaded import LoadedModel
from backend.types import PAGE_TOKENS

logger = logging.getLogger(__name__)

_MOST_GRAPHS = 128
"""Each takes some MiB of a GPU's memory. Steps that would need more are eager."""


class CudaCapture:
    """Captures on a stream of its own; all graphs share one memory pool, as one runs at a time."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._graphs = weakref.WeakSet[torch.cuda.CUDAGraph]()

    def __call__(self, function: Callable[[], Tensor]) -> tuple[Tensor, Callable[[], None]]:
        """Run the function, so that its kernels are compiled and loaded, then record it."""
        self._stream.wait_stream(torch.cuda.current_stream())
        try:
            with torch.cuda.stream(self._stream):
                function()
        finally:  # its buffers, which are given back where it fails, are read until then
            torch.cuda.current_stream().wait_stream(self._stream)
        if not self._graphs:  # a pool ends with its last graph
            self._pool = torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        capture = torch.cuda.graph(
            graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"
        )
        # Where a capture's end fails, torch leaves its stream the current one.
        with torch.cuda.stream(self._stream), capture:
            result = function()
        self._graphs.add(graph)
        return result, graph.replay


@dataclass(frozen=True, slots=True)
class _Graph:
    """A captured forward pass, and all that it reads."""

    static: StaticStep
    result: Tensor  # [T, D]
    replay: Callable[[], None]


class StepGraphs:
    """The graphs of one model and its KV memory."""

    def __init__(
        self, model: LoadedModel, storage: KVStorage, capture: Capture, limits: tuple[int, int]
    ) -> None:
        """`limits`: the number of rows of sequences, and the longest context.

        Row `limits[0]` of the page table belongs to padding, and so does the storage's last page.
        """
        self._model = model
        self._storage = storage
        self._capture: Capture | None = capture
        self._limits = limits
        shape = most_tokens(limits[0]), model.config.hidden_size
        self._result = torch.empty(shape, dtype=model.dtype, device=model.device)  # of all graphs
        self._spare = limits[0], (storage.num_pages - 1) * PAGE_TOKENS
        self._graphs: dict[Key, _Graph] = {}
        self._seen: set[Key] = set()
        self._most_graphs = _MOST_GRAPHS
        self._slots_version = 0
        self._adapts = True
        self._dropped: list[_Graph] = []  # one of them may be running yet

    @property
    def keys(self) -> list[Key]:
        """The keys of the graphs, in the order of their capture."""
        return list(self._graphs)

    def forward(self, step: StepInput, slots_version: int = 0) -> Tensor | None:
        """The step's hidden states [T, D], which the next call overwrites; None: it must run eagerly.

        Each token of the step is drawn after: it decodes, or verifies drafts. `slots_version` is another one
        where layers have other memory for adapters than before.
        """
        if slots_version != self._slots_version:
            self._slots_version, self._adapts = slots_version, True
            self._dropped = [self._graphs.pop(key) for key in self.keys if key.num_adapters]
        key = key_of(step, self._limits[1])
        if self._capture is None or key is None or (key.num_adapters and not self._adapts):
            return None
        graph = self._graphs.get(key)
        if graph is None:
            if key not in self._seen or len(self._graphs) >= self._most_graphs:
                self._seen.add(key)
                return None
            static = StaticStep(key, step.on_device.page_table, self._spare)
            static.fill(step)
            graph = self._captured(key, static)
            if graph is None:
                return None
        graph.static.fill(step)
        graph.replay()
        return graph.result[: step.token_ids.shape[0]]

    def capture_first(self, page_table: Tensor) -> None:
        """Capture what most steps need, before they come; the largest first, whose memory others share."""
        for key in first_keys(*self._limits):
            if (
                self._capture is not None
                and key not in self._graphs
                and len(self._graphs) < self._most_graphs
            ):
                self._captured(key, StaticStep(key, page_table, self._spare))

    def drop(self) -> None:
        """Forget all graphs: memory that they read goes away."""
        self._graphs.clear()
        self._dropped.clear()

    def _captured(self, key: Key, static: StaticStep) -> _Graph | None:
        """The key's graph; None, and for all of its kind, if it cannot be captured.

        Where memory is short for it, graphs that are there go on.
        """
        assert self._capture is not None
        try:
            result, replay = self._capture(lambda: self._compute(static.step_input))
        except torch.OutOfMemoryError as error:
            logger.warning("%d CUDA graphs of steps are all that memory holds: %s", len(self._graphs), error)
            self._most_graphs = len(self._graphs)
            return None
        except RuntimeError as error:
            kind = " with adapters" if key.num_adapters else ""
            logger.warning("decode steps%s run without CUDA graphs: one cannot be captured: %s", kind, error)
            self._adapts = False
            if not key.num_adapters:
                self._capture = None
                self._graphs.clear()
            return None
        self._graphs[key] = _Graph(static, result, replay)
        return self._graphs[key]

    def _compute(self, step: StepInput) -> Tensor:
        hidden = self._model.forward(step.token_ids, self._model.open(step, self._storage))
        return self._result[: hidden.shape[0]].copy_(hidden)


def fits_graphs(storage: KVStorage, num_pages: int) -> bool:
    """Whether decode steps with this memory read nothing that a graph cannot: see the module's text.

    `num_pages` of the storage may have owners; padding needs one more.
    """
    layout = storage.layout
    is_shared = not any(shape.is_windowed for shape in layout.layers)
    has_values = all(shape.sides == 2 for shape in layout.layers)
    has_spare = storage.num_pages > num_pages
    return has_spare and is_shared and has_values and storage.states is None
