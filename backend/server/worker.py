"""`python -m backend.server.worker CONFIG.json --socket PATH`: one engine process for one model.

Progress goes to stdout as JSON lines, one sentence to stderr when it cannot serve. Exit codes: 0 drained
after SIGTERM, 2 the checkpoint or the configuration cannot be served, 1 anything else.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

import msgspec

from backend.config import EngineConfig
from backend.engine.capacity import runner_facts
from backend.engine.engine import Engine
from backend.engine.runner import ModelRunner
from backend.errors import AdapterError, CheckpointError
from backend.lora.store import AdapterLimits, AdapterStore
from backend.models import LoadedModel, load_model
from backend.server.connections import listen
from backend.server.messages import Hello
from backend.server.process import EngineServer, ServerLimits
from backend.server.spans import open_emitter
from backend.speculative.draft_length import step_clock
from backend.speculative.loading import load_drafters
from backend.structured.compiler import open_compiler
from backend.types import DraftOptions, Request, SamplingParams

logger = logging.getLogger("backend.server.worker")

EXIT_CANNOT_SERVE = 2
_WARM_UP_TOKENS = 8
_PROGRESS_STEP = 0.05


def main(arguments: list[str] | None = None) -> int:
    """Load, serve, drain. Returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="backend.server.worker", description="One engine process for one model."
    )
    parser.add_argument("config", type=Path, help="EngineConfig as a JSON file")
    parser.add_argument("--socket", type=Path, required=True, help="Unix socket to listen on")
    parser.add_argument(
        "--parent-pid", type=int, help="drain and exit when this process is no longer the parent"
    )
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    # Until the loop runs there is nothing to drain.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        config = read_config(options.config)
        report_progress("loading", 0.0)
        engine, hello = build_engine(config)
    except CheckpointError as error:
        sys.stderr.write(f"{error}\n")
        return EXIT_CANNOT_SERVE
    try:
        serve(engine, hello, config, options.socket, options.parent_pid)
    except Exception as error:  # noqa: BLE001 - the process ends; one line says why
        logger.critical("the engine died: %s: %s", type(error).__name__, error)
        return 1
    return 0


def read_config(path: Path) -> EngineConfig:
    """Raises CheckpointError when the file holds no EngineConfig."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=EngineConfig)
    except (OSError, msgspec.MsgspecError) as error:
        raise CheckpointError(
            f"{path} holds no engine configuration ({error}); start the engine anew"
        ) from None


def build_engine(config: EngineConfig) -> tuple[Engine, Hello]:
    """Load the model, allocate KV memory, warm up. Raises CheckpointError."""
    reported = 0.0

    def on_progress(fraction: float) -> None:
        nonlocal reported
        if fraction - reported >= _PROGRESS_STEP:
            reported = fraction
            report_progress("loading", fraction)

    model = load_model(config, on_progress)
    loaded = load_drafters(config, model)
    facts = runner_facts(config, model, loaded.page_bytes)
    adapters = open_adapters(config, model)
    storage = model.new_kv_storage(facts.num_pages)
    runner = ModelRunner(model, storage, facts, config.max_running, adapters)
    opened = loaded.open(storage)
    runner.observers += opened.observers
    report_progress("warming_up", 1.0)
    # In an engine of its own: neither prefix tree nor step-time estimates remember the slow first steps.
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
    )
    return Engine(
        config,
        runner,
        drafters=opened.drafters,
        adapters=adapters,
        grammars=open_compiler(config.checkpoint, facts.vocab_size, facts.eos_token_ids),
        work_clock=step_clock(model.device),
    ), hello


def open_adapters(config: EngineConfig, model: LoadedModel) -> AdapterStore:
    """The adapters that the configuration names, read and checked. Raises CheckpointError."""
    limits = AdapterLimits(config.adapter_slots, config.max_adapter_rank, config.adapter_host_bytes)
    bases = (config.model, config.checkpoint)
    store = AdapterStore(model.sites, limits, model.dtype, model.device, bases=bases)
    for name, folder in config.adapters.items():
        try:
            store.load_now(name, Path(folder))
        except AdapterError as error:
            raise CheckpointError(f"adapter {name!r} of model {config.model!r}: {error}") from None
    for name, known in config.restored_adapters.items():
        store.restore(name, Path(known.folder), known.digest)
    return store


def warm_up(engine: Engine, drafters: Sequence[str], max_model_tokens: int) -> None:
    """Compute a prompt and some tokens, so that the first request does not pay for what torch does only once.

    Once without drafts and once with each drafter's, whose first steps would look too dear to be taken again.
    """
    length = min(_WARM_UP_TOKENS, max_model_tokens // 2)  # half the context each for prompt and answer
    if length == 0:
        return
    params = SamplingParams(max_tokens=length, temperature=0.0, ignore_eos=True)
    for name in ("none", *drafters):
        prompt, draft = [0] * length, DraftOptions(drafter=name)
        engine.add(Request(request_id="warm-up", prompt_token_ids=prompt, params=params, draft=draft))
        while engine.has_work:
            engine.step()


def serve(engine: Engine, hello: Hello, config: EngineConfig, path: Path, parent_pid: int | None) -> None:
    """Listen on `path` and loop until SIGTERM, or until the parent is gone."""
    emitter = open_emitter(config)
    listener = listen(path)
    server = EngineServer(engine, hello, listener, ServerLimits(), emitter.emit if emitter else None)

    def on_signal(signum: int, frame: FrameType | None) -> None:
        server.stop()

    def on_beat() -> None:
        if parent_pid is not None and os.getppid() != parent_pid:
            server.stop()
        if not engine.has_work:
            gc.collect()

    server.on_beat = on_beat
    signal.signal(signal.SIGTERM, on_signal)
    # What is loaded stays: the collector need never look at it. Young objects die by reference count, so rare
    # collections suffice; the thorough ones happen above, while nobody waits.
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 50, 1000)
    report_progress("ready", 1.0)
    try:
        server.run()
    finally:
        path.unlink(missing_ok=True)
        engine.close()
        if emitter is not None:
            emitter.close()


def report_progress(phase: str, fraction: float) -> None:
    """One JSON line on stdout for whoever started this process."""
    sys.stdout.write(json.dumps({"phase": phase, "fraction": round(fraction, 3)}) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
