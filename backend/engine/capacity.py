"""RunnerFacts of a loaded model on this machine: KV pages, context length, revision, EOS ids."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import NamedTuple

import torch

from backend.config import EngineConfig
from backend.engine.runner_protocol import RunnerFacts
from backend.errors import CheckpointError
from backend.kv.manager import pages_for
from backend.kv.states import MAX_LOGGED, StateLayout
from backend.models.checkpoint_config import context_tokens
from backend.models.loaded import LoadedModel
from backend.types import PAGE_TOKENS

logger = logging.getLogger(__name__)

_CPU_SHARE, _CPU_CEILING_BYTES = 0.25, 2**30
_CUDA_STEP_SHARE = 0.05
"""The part of a GPU's memory that is kept for what a step computes, where that was not measured."""

_STATES_SHARE, _CHECKPOINTS_SHARE = 0.5, 0.25
"""The most of the KV memory that recurrent states of running requests take, and kept copies of them."""

_CHECKPOINTS_PER_ROW = 8
"""More checkpoints than that for each running request are of little use."""


def runner_facts(
    config: EngineConfig, model: LoadedModel, drafter_page_bytes: int = 0, step_bytes: int | None = None
) -> RunnerFacts:
    """What the engine needs to know. Raises CheckpointError if the model or the memory is too small.

    `drafter_page_bytes`: memory that drafters take for each page. `step_bytes`: what a step takes of a GPU;
    None: not measured.
    """
    from backend.tokenizer.files import read_eos_token_ids  # a model runs without a tokenizer too

    num_pages = num_pages_for(config, model, drafter_page_bytes, step_bytes)
    wanted = context_tokens(model.config, config.max_model_tokens)
    window, num_window_pages = max((own for own in model.config.windows if own is not None), default=0), None
    if window and window < wanted and model.kv_layout.states is None:
        num_pages, num_window_pages = split_pages(config, model, num_pages, window, drafter_page_bytes)
    states = model.kv_layout.states
    slots = None if states is None else state_slots(config, states, step_bytes)
    if states is not None and slots is not None:
        _tell_limits(config, states, slots)
    return RunnerFacts(
        vocab_size=model.config.vocab_size,
        num_pages=num_pages,
        max_model_tokens=_context_that_fits(config, wanted, num_pages),
        eos_token_ids=frozenset(read_eos_token_ids(Path(config.checkpoint))),
        revision=model.revision,
        kv_dtype=str(model.kv_layout.dtype).removeprefix("torch."),
        max_running=config.max_running if slots is None else slots.num_running,
        max_draft_tokens=None if slots is None else MAX_LOGGED - 1,
        num_checkpoints=None if slots is None else slots.num_checkpoints,
        window=window,
        num_window_pages=num_window_pages,
    )


def num_pages_for(
    config: EngineConfig, model: LoadedModel, drafter_page_bytes: int = 0, step_bytes: int | None = None
) -> int:
    """Pages of KV memory: `num_pages`, else as many as fit in `kv_cache_bytes` or its default.

    That memory holds the model's pages and what drafters keep for each. Raises CheckpointError if none fits.
    """
    states = model.kv_layout.states
    if config.num_pages is not None:
        num_pages, source = config.num_pages, f"num_pages is {config.num_pages!r}"
    else:
        page_bytes = model.kv_layout.page_bytes + drafter_page_bytes
        budget = config.kv_cache_bytes
        if budget is None:
            budget = _default_bytes(config, model.device, step_bytes)
        if states is not None:
            budget -= sum(state_slots(config, states, step_bytes)) * states.slot_bytes
        if config.kv_cache_bytes is None:
            budget = min(budget, _max_useful_pages(config, model) * page_bytes)
        num_pages, source = (
            budget // page_bytes,
            f"{budget} bytes are less than one KV page of {page_bytes} bytes",
        )
    if num_pages < 1:
        raise CheckpointError(f"{source}; raise kv_cache_bytes or num_pages of model {config.model!r}")
    return num_pages


def split_pages(
    config: EngineConfig, model: LoadedModel, num_pages: int, window: int, drafter_page_bytes: int
) -> tuple[int, int | None]:
    """Pages of the layers without a window and of those with one, in the memory of `num_pages` of both.

    Windows get what all running requests need, and as much again for cached prefixes, but no more than three
    quarters of `num_pages`: requests shorter than the window need as many pages there. None: no split.
    """
    least = pages_for(window) + 2
    wanted = 2 * (config.max_running * least + pages_for(config.max_batch_tokens))
    if config.num_pages is not None:
        return num_pages, wanted if wanted < num_pages else None
    layout = model.kv_layout
    full_bytes = layout.page_bytes - layout.window_page_bytes + drafter_page_bytes
    num_window_pages = min(wanted, num_pages * 3 // 4) if full_bytes else num_pages
    if num_window_pages < 2 * least:
        return num_pages, None
    useful = max(num_pages, _max_useful_pages(config, model))
    if not full_bytes:
        return useful, num_window_pages
    fitting = num_pages + (num_pages - num_window_pages) * layout.window_page_bytes // full_bytes
    if fitting > useful and config.kv_cache_bytes:
        num_window_pages += (fitting - useful) * full_bytes // layout.window_page_bytes
    return min(fitting, useful), num_window_pages


def _context_that_fits(config: EngineConfig, wanted: int, num_pages: int) -> int:
    fitting = num_pages * PAGE_TOKENS
    if fitting < wanted:
        asked = "the checkpoint's maximum" if config.max_model_tokens is None else "max_model_tokens"
        logger.warning(
            "the context is %s tokens, not %s as %s says: the KV memory holds no more; raise %s of model %r",
            *(fitting, wanted, asked, "kv_cache_bytes" if config.num_pages is None else "num_pages"),
            config.model,
        )
    return min(wanted, fitting)


class StateSlots(NamedTuple):
    """Slots of recurrent states, by use."""

    num_running: int
    num_checkpoints: int


def state_slots(config: EngineConfig, states: StateLayout, step_bytes: int | None = None) -> StateSlots:
    """One for each of `max_running`, and some checkpoints; fewer where memory is short.

    Raises CheckpointError if no request could run.
    """
    memory = config.kv_cache_bytes or _default_bytes(config, states.device, step_bytes)
    num_running = min(config.max_running, int(memory * _STATES_SHARE) // states.slot_bytes)
    if num_running < 1:
        raise CheckpointError(
            f"a recurrent state takes {states.slot_bytes} bytes, half of the KV memory is less; "
            f"raise kv_cache_bytes of model {config.model!r}"
        )
    room = int(memory * _CHECKPOINTS_SHARE) // states.slot_bytes if config.prefix_cache else 0
    return StateSlots(num_running, min(room, _CHECKPOINTS_PER_ROW * num_running))


def _tell_limits(config: EngineConfig, states: StateLayout, slots: StateSlots) -> None:
    size_mib, remedy = states.slot_bytes / 2**20, f"raise kv_cache_bytes of model {config.model!r}"
    if slots.num_running < config.max_running:
        logger.warning(
            "max_running is %s, not %s: half of the KV memory holds no more recurrent states of %.1f MiB; %s",
            *(slots.num_running, config.max_running, size_mib, remedy),
        )
    if config.prefix_cache and not slots.num_checkpoints:
        logger.warning(
            "prefixes are not cached: a quarter of the KV memory holds no recurrent state of %.1f MiB; %s",
            *(size_mib, remedy),
        )
    longest = MAX_LOGGED - 1
    if config.speculative.tree_nodes or config.speculative.max_tokens > longest:
        logger.warning(
            "drafts are chains of at most %s tokens, not as speculative.tree_nodes and max_tokens say: model "
            "%r has recurrent states",
            *(longest, config.model),
        )


def _max_useful_pages(config: EngineConfig, model: LoadedModel) -> int:
    """Pages for every running sequence at full length, and as many again for cached prefixes."""
    longest = config.max_model_tokens or model.config.max_position_tokens
    return 2 * config.max_running * -(-longest // PAGE_TOKENS)


def is_measured(config: EngineConfig, device: torch.device) -> bool:
    """Whether KV memory is what weights and steps leave of a GPU. Ranks count theirs without measuring."""
    is_counted = config.kv_cache_bytes is None and config.num_pages is None
    return is_counted and device.type == "cuda" and config.parallel.size == 1


def _default_bytes(config: EngineConfig, device: torch.device, step_bytes: int | None = None) -> int:
    """What weights and steps leave of the engine's share of a GPU, or a part of the host's memory.

    Raises CheckpointError with the numbers where the card has no room.
    """
    if device.type == "cuda":
        torch.cuda.empty_cache()
        free, total = torch.cuda.mem_get_info(device)
        own, share = torch.cuda.memory_reserved(device), int(total * config.gpu_memory)
        step = int(total * _CUDA_STEP_SHARE) if step_bytes is None else step_bytes
        left = min(free, share - own) - step
        if left <= 0:
            raise CheckpointError(
                f"model {config.model!r} may take {share} of {total} bytes of {device}, as gpu_memory is "
                f"{config.gpu_memory:g}; its weights take {own}, a step {step}, and {free} are free: raise "
                "gpu_memory, lower max_batch_tokens, end what else is on the card, or quantize the weights"
            )
        return left
    return min(int(_available_bytes() * _CPU_SHARE), _CPU_CEILING_BYTES)


def _available_bytes() -> int:
    """Free memory of the machine or, where that is less, of this process's cgroup."""
    available = _CPU_CEILING_BYTES * 4
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        if line.startswith("MemAvailable:"):
            available = int(line.split()[1]) * 1024
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii").strip()
        used = int(Path("/sys/fs/cgroup/memory.current").read_text(encoding="ascii"))
    except OSError:  # no cgroup v2
        return available
    return available if limit == "max" else max(0, min(available, int(limit) - used))
