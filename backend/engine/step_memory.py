"""What the largest step takes of a GPU's memory, found by computing it before KV memory is allocated."""

from __future__ import annotations

import logging
from typing import Protocol

import torch

from backend.config import EngineConfig
from backend.engine.capacity import is_measured, state_slots
from backend.engine.graphs import CudaCapture
from backend.engine.runner import ModelRunner
from backend.engine.runner_protocol import RunnerFacts
from backend.errors import CheckpointError, StepTooLarge
from backend.kernels.graph_keys import Capture
from backend.kv.manager import pages_for
from backend.kv.states import MAX_LOGGED
from backend.models.checkpoint_config import context_tokens
from backend.models.loaded import LoadedModel
from backend.types import Plan, Request, SamplingParams, ScheduledChunk, Sequence

logger = logging.getLogger(__name__)

_MARGIN = 8
"""A part of what was measured is added: 1/8, for fragments and the step that is launched behind."""

_PARAMS = SamplingParams(
    max_tokens=1 << 20,
    temperature=0.8,
    top_p=0.9,
    top_k=1000,
    min_p=0.01,
    repetition_penalty=1.1,
    presence_penalty=0.1,
    frequency_penalty=0.1,
    logit_bias={0: 0.1},
    logprobs=20,
)
"""All that makes a draw take memory."""


class StepMeter(Protocol):
    """Measures memory."""

    def begin(self) -> None:
        """Measure from here on."""
        ...

    def peak_bytes(self) -> int:
        """The most that was taken at once since `begin`, beyond what was in use then."""
        ...


class CardMeter:
    """Measures what torch's allocator takes of a GPU, with what it rounds up."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._before = 0

    def begin(self) -> None:
        """Measure from here on."""
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self._device)
        self._before = torch.cuda.memory_reserved(self._device)

    def peak_bytes(self) -> int:
        """The most that was taken at once since `begin`."""
        torch.cuda.synchronize(self._device)
        return torch.cuda.max_memory_reserved(self._device) - self._before


def step_bytes(
    config: EngineConfig, model: LoadedModel, *, has_adapters: bool, has_graphs: bool
) -> int | None:
    """Memory to keep for steps; None where KV memory does not depend on it. Raises CheckpointError."""
    if not is_measured(config, model.device):
        return None
    capture = CudaCapture(model.device) if has_graphs else None
    return measure_step(config, model, CardMeter(model.device), capture, has_adapters=has_adapters)


def measure_step(
    config: EngineConfig,
    model: LoadedModel,
    meter: StepMeter,
    capture: Capture | None = None,
    *,
    has_adapters: bool,
) -> int:
    """Memory that the first graphs and the largest step take beside weights and KV memory, and a margin.

    Raises CheckpointError where the device has no memory for it.
    """
    states, rows = model.kv_layout.states, config.max_running
    if states is not None:
        rows = state_slots(config, states).num_running
    plan = largest_plan(config, model, rows, has_adapters=has_adapters)
    facts = RunnerFacts(
        vocab_size=model.config.vocab_size,
        num_pages=1,
        max_model_tokens=context_tokens(model.config, config.max_model_tokens),
        eos_token_ids=frozenset(),
        revision="",
        kv_dtype="",
        max_running=rows,
    )
    storage = model.new_kv_storage(1 + (capture is not None), rows, config.model)  # one for padding
    meter.begin()
    try:
        runner = ModelRunner(model, storage, facts, rows, capture=capture)
        runner.capture_graphs()
        runner.run(plan)
    except StepTooLarge as error:
        raise CheckpointError(
            f"{model.device} has no memory for the largest step of model {config.model!r}, {plan.num_tokens} "
            f"tokens and {rows} requests, beside its weights ({error}): lower max_batch_tokens or "
            "max_running, end what else is on the card, or quantize the weights"
        ) from None
    peak = meter.peak_bytes()
    logger.info(
        "graphs and the largest step, %d tokens and %d requests, take %d bytes", plan.num_tokens, rows, peak
    )
    return peak + peak // _MARGIN


def largest_plan(config: EngineConfig, model: LoadedModel, rows: int, *, has_adapters: bool) -> Plan:
    """The step with the most tokens and draws: `rows` draw with drafts, the first one has a prompt too.

    All have the same page, at the end of the longest context: what they write is never read.
    """
    context = context_tokens(model.config, config.max_model_tokens)
    num_tokens = max(config.max_batch_tokens, rows)
    speculative, has_states = config.speculative, model.kv_layout.states is not None
    num_drafts = 0
    if speculative.drafter != "none":
        num_drafts = min(
            speculative.tree_nodes or speculative.max_tokens, context - 1, num_tokens // rows - 1
        )
    if has_states:
        num_drafts = min(num_drafts, MAX_LOGGED - 1)
    left = num_tokens - rows * (1 + num_drafts)
    chunks: list[ScheduledChunk] = []
    for row in range(rows):
        more = min(left, context - 1 - num_drafts)
        left -= more
        draft = () if more else (0,) * num_drafts
        # A state begins at the first token.
        start = 0 if has_states or row else context - 1 - num_drafts - more
        end = start + 1 + num_drafts + more
        sequence = Sequence(
            Request(request_id=str(row), prompt_token_ids=[], params=_PARAMS),
            [0] * (end - len(draft)),
            end - len(draft),
            pages=[0] * pages_for(end),
            row=row,
            adapter_slot=row % config.adapter_slots if has_adapters else -1,
        )
        chunks.append(ScheduledChunk(sequence, start, end - start, draft))
    return Plan(chunks, num_drafts=sum(len(chunk.draft) for chunk in chunks))
