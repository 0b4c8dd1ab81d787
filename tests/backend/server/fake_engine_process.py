"""An engine process with the fake runner."""

from __future__ import annotations

import logging
import os
import signal
from pathlib import Path
from typing import Any

from backend.config import EngineConfig
from backend.engine.engine import Engine
from backend.server.engine_messages import Hello
from backend.server.engine_server import EngineServer, ServerLimits
from tests.backend.engine.fake_runner import FakeRunner
from tests.backend.server.listening import listen


def serve(path: Path, log: Path, options: dict[str, Any]) -> None:
    """Listen at `path` until SIGTERM; `log` gets what is written to stderr."""
    with log.open("ab") as file:
        os.dup2(file.fileno(), 2)
    logging.basicConfig(level=logging.INFO)
    runner = FakeRunner(**options.get("runner", {}))
    config = EngineConfig(model="fake", checkpoint="/none", **options.get("config", {}))
    facts = runner.facts
    hello = Hello(
        "fake", "/none", "r", facts.max_model_tokens, facts.vocab_size, facts.num_pages, "cpu", "float32"
    )
    server = EngineServer(
        Engine(config, runner), hello, listen(path), ServerLimits(**options.get("limits", {}))
    )
    signal.signal(signal.SIGTERM, lambda *_: server.stop())
    server.run()
