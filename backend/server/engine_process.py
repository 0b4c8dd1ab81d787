"""The engine process: `python -m backend.server.engine_process` (see serve.py)."""

from __future__ import annotations

import logging
import os
import secrets
import socket
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import torch

from backend.config import AttentionSpec, EngineConfig, LayerSpec
from backend.engine.capacity import runner_facts
from backend.engine.engine import Engine
from backend.engine.graphs import CudaCapture
from backend.engine.runner import ModelRunner
from backend.engine.sleep import Sleeper, device_memory
from backend.engine.step_memory import step_bytes
from backend.errors import AdapterError, CheckpointError
from backend.kernels.paged_attention import WIDEST_IN_TRITON
from backend.lora.store import AdapterLimits, AdapterStore
from backend.models.loaded import LoadedModel
from backend.parallel.mirror import MirroredModel, open_model
from backend.server.engine_messages import Hello
from backend.server.engine_server import EngineServer
from backend.server.serve import report_progress, run_process
from backend.server.spans import open_emitter
from backend.speculative.draft_length import step_clock
from backend.speculative.loading import load_drafters
from backend.structured.compiler import open_compiler
from backend.types import DraftOptions, Request, SamplingParams

logger = logging.getLogger(__name__)

_WARM_UP_TOKENS = 8
_PROGRESS_STEP = 0.05


def load(config: EngineConfig) -> Callable[[socket.socket], EngineServer]:
    """Load and warm up the engine. Raises CheckpointError, also where memory ends."""
    if config.card:
        os.environ["CUDA_VISIBLE_DEVICES"] = config.card  # CUDA reads it when it is first used
    try:
        engine, hello = build_engine(config)
    except (torch.OutOfMemoryError, MemoryError) as error:
        numbers = str(error).partition(" Of the allocated memory")[0]  # advice for torch's users follows
        raise CheckpointError(
            f"model {config.model!r} does not start, as memory has ended: {numbers} Lower max_running and "
            "max_batch_tokens, quantize the weights, or end what else has memory there; a reload needs room "
            "for the old engine and the new one, a restart of the gateway does not"
        ) from None
    sleeper = _open_sleeper(config, engine)
    return lambda listener: EngineServer(engine, hello, listener, spans=open_emitter(config), sleeper=sleeper)


def _open_sleeper(config: EngineConfig, engine: Engine) -> Sleeper | None:
    """What lets the engine sleep, if it is to."""
    if config.offload_after_s is None:
        return None
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        logger.info("offload_after_s of model %r has no effect on a CPU", config.model)
        return None
    assert isinstance(engine.runner, ModelRunner)
    return Sleeper(engine, engine.runner, config.offload_after_s, device_memory)


def build_engine(config: EngineConfig) -> tuple[Engine, Hello]:
    """Load the model and all that it needs, allocate KV memory, warm up. Raises CheckpointError."""
    reported = 0.0

    def on_progress(fraction: float) -> None:
        nonlocal reported
        if fraction - reported >= _PROGRESS_STEP:
            reported = fraction
            report_progress("loading", fraction)

    model = open_model(config, on_progress)
    loaded = load_drafters(config, model)
    adapters = open_adapters(config, model)  # before KV memory is measured: slots take theirs on a GPU
    if isinstance(model, MirroredModel):
        config = model.with_common_pages(loaded.page_bytes)
    is_ahead = _is_ahead(config, model)
    has_graphs = is_ahead and not config.enforce_eager
    step = step_bytes(config, model, has_adapters=bool(adapters.infos), has_graphs=has_graphs)
    facts = runner_facts(config, model, loaded.page_bytes, step)
    storage = model.new_kv_storage(
        facts.num_pages + has_graphs,  # one for padding
        *(facts.num_states, config.model),
        num_window_pages=facts.num_window_pages,
    )
    capture = CudaCapture(model.device) if has_graphs else None
    runner = ModelRunner(model, storage, facts, facts.max_running, adapters, is_ahead, capture)
    opened = loaded.open(storage, capture, runner.late)
    runner.observers += opened.observers
    report_progress("warming_up", 1.0)
    runner.capture_graphs()
    # In a separate engine: prefix tree and step-time estimates must not remember the slow first steps.
    always = msgspec.structs.replace(config.speculative, adaptive=False)
    warmed = Engine(msgspec.structs.replace(config, speculative=always), runner, drafters=opened.drafters)
    warm_up(warmed, [drafter.name for drafter in opened.drafters], facts.max_model_tokens)
    hello = Hello(
        model=config.model,
        checkpoint=config.checkpoint,
        revision=facts.revision,
        max_model_tokens=facts.max_model_tokens,
        vocab_size=facts.vocab_size,
        num_pages=facts.num_pages,
        device=str(model.device),
        dtype=str(model.dtype).removeprefix("torch."),
        max_queue=config.max_queue,
        kv_dtype=facts.kv_dtype,
        has_states=facts.num_checkpoints is not None,
        instance=secrets.token_hex(8),
    )
    return Engine(
        config,
        runner,
        drafters=opened.drafters,
        adapters=adapters,
        grammars=open_compiler(
            config.checkpoint, facts.vocab_size, facts.eos_token_ids, config.grammar_cache_bytes
        ),
        work_clock=step_clock(model.device),
    ), hello


def _is_ahead(config: EngineConfig, model: LoadedModel) -> bool:
    """Whether steps are launched before the last one has been read.

    Ranks of a group run each step as the first one tells them. A sequence that ends in flight may leave in
    its pages what is not finite: attention that gathers whole pages would read that.
    """
    is_gpus = model.device.type == "cuda" and config.parallel.size == 1
    return is_gpus and not any(map(_gathers_pages, model.config.layers))


def _gathers_pages(layer: LayerSpec) -> bool:
    """Whether a GPU computes its attention in torch: the kernel reads a sequence's own slots alone."""
    attention = layer.mixer
    if not isinstance(attention, AttentionSpec):
        return False
    is_plain = attention.latent is None and attention.softcap is None
    return not is_plain or attention.head_dim > WIDEST_IN_TRITON


def open_adapters(config: EngineConfig, model: LoadedModel) -> AdapterStore:
    """An adapter store with the configured adapters. Raises CheckpointError when one cannot be loaded."""
    limits = AdapterLimits(config.adapter_slots, config.max_adapter_rank, config.adapter_host_bytes)
    bases = (config.model, config.checkpoint)
    placement = model.placement(config.adapter_slots) if isinstance(model, MirroredModel) else None
    store = AdapterStore(model.sites, limits, model.dtype, model.device, bases=bases, placement=placement)
    for name, folder in config.adapters.items():
        try:
            store.load_now(name, Path(folder), force=name in config.forced_adapters)
        except AdapterError as error:
            raise CheckpointError(f"adapter {name!r} of model {config.model!r}: {error}") from None
    for name, known in config.restored_adapters.items():
        store.restore(name, Path(known.folder), known.digest)
    return store


def warm_up(engine: Engine, drafters: Sequence[str], max_model_tokens: int) -> None:
    """Generate a few tokens, so that the first request does not pay for lazy initialisation and compilation.

    Once without drafts and once with each drafter: else its slow first steps would count as its usual cost.
    """
    length = min(_WARM_UP_TOKENS, max_model_tokens // 2)  # half of the context each for prompt and output
    if length == 0:
        return
    params = SamplingParams(max_tokens=length, temperature=0.0, ignore_eos=True)
    for name in ("none", *drafters):
        prompt, draft = [0] * length, DraftOptions(drafter=name)
        engine.add(Request(request_id="warm-up", prompt_token_ids=prompt, params=params, draft=draft))
        while engine.has_work:
            engine.step()


def main(arguments: list[str] | None = None) -> int:
    """Load, serve, drain. Returns the exit code."""
    return run_process("engine", EngineConfig, load, arguments)


if __name__ == "__main__":
    sys.exit(main())
