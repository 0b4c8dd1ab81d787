"""Replays decode steps as CUDA graphs: one launch instead of some hundred for each forward pass.

A graph is captured when a step of its key comes first: rows rounded up to 1, 2, 4, 8, then by 8, and the
longest context rounded up, on which the grid of attention depends. It reads static buffers alone, into which
each step is copied. Padding rows compute token 0 at the first place of the storage's last page, which no
sequence owns.

Eager are: steps with prompt chunks, drafts, adapters or observers; models with recurrent states, latent
attention, or pages of their own for layers with a window; and several GPUs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from backend.kernels.paged_attention import DeviceStep
from backend.kv.storage import KVStorage
from backend.layers.step_input import StepInput
from backend.models.loaded import LoadedModel
from backend.types import PAGE_TOKENS

logger = logging.getLogger(__name__)

Capture = Callable[[Callable[[], Tensor]], tuple[Tensor, Callable[[], None]]]
"""Records a function: the tensor that holds its result after each replay, and what replays it."""

_FIRST_CONTEXT, _CONTEXT_FACTOR = 2048, 4
"""The longest contexts of keys are 2,048 tokens, four times as many, and so on."""

_MOST_GRAPHS = 128
"""Each takes some MiB of a GPU's memory. Steps that would need more are eager."""


class CudaCapture:
    """Captures on a stream of its own; all graphs share one memory pool, as one runs at a time."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, function: Callable[[], Tensor]) -> tuple[Tensor, Callable[[], None]]:
        """Run the function, so that its kernels are compiled and loaded, then record it."""
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            function()
        torch.cuda.current_stream().wait_stream(self._stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
            result = function()
        return result, graph.replay


@dataclass(frozen=True, slots=True)
class _Graph:
    """A captured forward pass, and all that it reads."""

    step: StepInput
    result: Tensor  # [rows, D]
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
        self._num_rows, self._longest = limits
        self._spare_slot = (storage.num_pages - 1) * PAGE_TOKENS
        self._graphs: dict[tuple[int, int], _Graph] = {}

    @property
    def keys(self) -> list[tuple[int, int]]:
        """Rows and longest contexts of the graphs, in the order of their capture."""
        return list(self._graphs)

    def forward(self, step: StepInput) -> Tensor | None:
        """The step's hidden states [T, D], which the next call overwrites; None: it must run eagerly."""
        count = len(step.query_lens)
        if (
            self._capture is None
            or step.token_ids.shape[0] != count
            or step.trees
            or step.adapters is not None
        ):
            return None
        key = padded_rows(count), self._padded_context(step.on_device.longest_context)
        graph = self._graphs.get(key)
        if graph is None:
            if len(self._graphs) >= _MOST_GRAPHS:
                return None
            static = self._static_step(*key, step.on_device.page_table)
            self._fill(static, step)
            graph = self._captured(static)
            if graph is None:
                return None
            self._graphs[key] = graph
        self._fill(graph.step, step)
        graph.replay()
        return graph.result[:count]

    def _captured(self, static: StepInput) -> _Graph | None:
        """The graph of a step in static buffers; None, for good, where it cannot be captured."""
        assert self._capture is not None
        model, storage = self._model, self._storage
        try:
            result, replay = self._capture(
                lambda: model.forward(static.token_ids, model.open(static, storage))
            )
        except RuntimeError as error:
            logger.warning("decode steps run without CUDA graphs, as one cannot be captured: %s", error)
            self._capture = None
            self._graphs.clear()
            return None
        return _Graph(static, result, replay)

    def _padded_context(self, longest: int) -> int:
        padded = _FIRST_CONTEXT
        while padded < longest:
            padded *= _CONTEXT_FACTOR
        return min(padded, self._longest)

    def _static_step(self, rows: int, longest: int, page_table: Tensor) -> StepInput:
        """A step of padding rows."""
        device = page_table.device
        words = {"dtype": torch.int32, "device": device}
        on_device = DeviceStep(
            query_starts=torch.arange(rows + 1, **words),  # type: ignore[call-overload]
            context_lens=torch.ones(rows, **words),  # type: ignore[call-overload]
            rows=torch.full((rows,), self._num_rows, **words),  # type: ignore[call-overload]
            page_table=page_table,
            positions=torch.zeros(rows, **words),  # type: ignore[call-overload]
            ancestors=None,
            order=torch.arange(rows, **words),  # type: ignore[call-overload]
            chain_lens=[1] * rows,
            tree_lens=[],
            longest_context=longest,
        )
        return StepInput(
            token_ids=torch.zeros(rows, **words),  # type: ignore[call-overload]
            slots=torch.full((rows,), self._spare_slot, dtype=torch.int64, device=device),
            on_device=on_device,
            query_lens=[1] * rows,
            context_lens=[1] * rows,
            rows=[self._num_rows] * rows,
        )

    def _fill(self, static: StepInput, step: StepInput) -> None:
        """Copy a step into static buffers; the rows behind it become padding."""
        count = len(step.query_lens)
        own, new = static.on_device, step.on_device
        for target, source, padding in (
            (static.token_ids, step.token_ids, 0),
            (static.slots, step.slots, self._spare_slot),
            (own.context_lens, new.context_lens, 1),
            (own.rows, new.rows, self._num_rows),
            (own.positions, new.positions, 0),
        ):
            target[:count].copy_(source)
            if count < target.shape[0]:
                target[count:].fill_(padding)
        more = len(static.query_lens) - count
        # Attention on a CPU plans with the host's numbers; on a GPU nothing captured depends on them.
        static.context_lens[:] = [*step.context_lens, *[1] * more]
        static.rows[:] = [*step.rows, *[self._num_rows] * more]


def padded_rows(count: int) -> int:
    """1, 2, 4, 8, then the next multiple of 8."""
    return 1 << (count - 1).bit_length() if count <= 8 else -(-count // 8) * 8


def fits_graphs(storage: KVStorage, num_pages: int) -> bool:
    """Whether decode steps with this memory read nothing that a graph cannot: see the module's text.

    `num_pages` of the storage may have owners; padding needs one more.
    """
    layout = storage.layout
    is_shared = not any(shape.is_windowed for shape in layout.layers)
    has_values = all(shape.sides == 2 for shape in layout.layers)
    has_spare = storage.num_pages > num_pages
    return has_spare and is_shared and has_values and storage.states is None
