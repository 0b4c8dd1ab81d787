"""Engines of two ranks behind the real gateway: the texts of one process, also when a rank dies."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

from tests.e2e.conftest import MODEL, StartServer
from tests.e2e.server import Server, command_line, descendants, wait_until
from tests.e2e.test_recovery import DRAWN, Kind, Stream, chat, run

ENGINE = """
    engine:
      checkpoint: builtin:pico-small
      dtype: float32
      kv_cache_bytes: 33554432
      num_threads: 2
      speculative:
        drafter: ngram
        drafters: {draft_model: {path: "builtin:pico-draft"}}
      adapters: {german: {path: "builtin:german"}}
"""
STAGES = "stages"
POLICIES = (
    f"models:\n  {MODEL}:{ENGINE}      parallel: {{tensor: 2}}\n"
    f"  {STAGES}:{ENGINE}      parallel: {{pipeline: 2}}\n  one:{ENGINE}"
)
TOKENS: dict[str, Any] = {"min_tokens": 96, "max_tokens": 96}
SCHEMA = {
    "type": "object",
    "properties": {"words": {"type": "string", "minLength": 60, "maxLength": 80}},
    "required": ["words"],
    "additionalProperties": False,
}


def kinds(model: str) -> list[Kind]:
    """What changes KV memory or weights in different ways."""
    strict = {"type": "json_schema", "json_schema": {"name": "w", "strict": True, "schema": SCHEMA}}
    return [
        chat(model, **TOKENS),
        chat(model, **TOKENS, **DRAWN, n=2, presence_penalty=0.5),
        chat(model, **TOKENS, **DRAWN, logprobs=True, top_logprobs=1),
        chat(f"{model}:german", **TOKENS),
        chat(model, **TOKENS, speculative={"drafter": "draft_model"}),
        chat(model, **TOKENS, prediction={"type": "content", "content": "apple, pear, stone, water, wheel"}),
        chat(model, response_format=strict, max_tokens=96),
    ]


def ranks(server: Server) -> list[int]:
    """The processes beside ranks 0."""
    return [pid for pid in descendants(server.process.pid) if b"backend.parallel.worker" in command_line(pid)]


def kill_rank_1(server: Server, streams: list[Stream]) -> None:
    for pid in ranks(server):
        os.kill(pid, signal.SIGKILL)


def test_two_ranks_say_what_one_process_says_and_one_may_die(
    start_server: StartServer, tmp_path: Path
) -> None:
    (tmp_path / "models.yaml").write_text(POLICIES)
    server = start_server("--policies", str(tmp_path))
    alone = [stream.answer() for stream in asyncio.run(run(server, kinds("one")))]
    split = [*kinds(MODEL), *kinds(STAGES)[:2]]
    alone += alone[:2]
    assert [stream.answer() for stream in asyncio.run(run(server, split))] == alone

    before = {*ranks(server)}
    assert len(before) == 2
    stormy = [stream.answer() for stream in asyncio.run(run(server, split, kill_rank_1))]
    assert stormy == alone  # on the engine of the same weights, or after the restart
    for model in (MODEL, STAGES):
        assert f"engine {model!r} exited (exit code 1)" in server.log

    def are_back() -> bool:
        return server.is_ready() and len({*ranks(server)} - before) == 2

    wait_until(are_back, 120, lambda: "no ranks came back")
    again = [stream.answer() for stream in asyncio.run(run(server, kinds(MODEL)[:2]))]
    assert again == alone[:2]
    assert server.terminate() == 0
