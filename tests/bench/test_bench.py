"""The arithmetic and command lines of the benchmarks, without any measurement."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import threading

import pytest

from tests.bench import load
from tests.bench.__main__ import BENCHMARKS
from tests.bench.faults import streamed_outcome, whole_outcome
from tests.bench.gateway import _milliseconds
from tests.bench.stopwatch import Stopwatch, median_and_quartiles
from tests.bench.targets import Target, parse_peer
from tests.e2e.server import free_port


def test_prompts_depend_on_their_arguments_alone() -> None:
    first = load.prompts(3, 20, seed=5, shared_words=10)
    assert (
        first == load.prompts(3, 20, seed=5, shared_words=10) != load.prompts(3, 20, seed=6, shared_words=10)
    )
    assert len({prompt.split(" ", 10)[10] for prompt in first}) == 3
    assert len({tuple(prompt.split(" ")[:10]) for prompt in first}) == 1
    assert {len(prompt.split()) for prompt in first} == {30}


def test_percentile_is_the_nearest_rank() -> None:
    values = [float(i) for i in range(100)]
    assert (load.percentile(values, 0.5), load.percentile(values, 0.99), load.percentile([7.0], 0.99)) == (
        50,
        99,
        7,
    )


def test_a_sample_knows_its_times() -> None:
    sample = load.Sample(10.0, (10.5, 10.6, 10.9), 5)
    assert sample.ttft_s == pytest.approx(0.5)
    assert sample.itl_s == pytest.approx(0.1)
    assert sample.gaps_s == pytest.approx([0.1, 0.3])


@pytest.mark.parametrize(("text", "value"), [("250.00us", 0.25), ("1.50ms", 1.5), ("2.00s", 2000.0)])
def test_wrk_times(text: str, value: float) -> None:
    assert _milliseconds(text) == pytest.approx(value)


def test_peers_are_read_from_the_command_line() -> None:
    peer = parse_peer("other=http://127.0.0.1:9/v1/#gpt some-gateway --port '9'")
    assert peer == Target("other", "http://127.0.0.1:9/v1", "gpt", ("some-gateway", "--port", "9"))


def _stream(*pieces: dict[str, object], done: bool = True) -> list[str]:
    lines = [f"data: {json.dumps(piece)}" for piece in pieces]
    return [*lines, "data: [DONE]"] if done else lines


def test_what_a_client_sees_of_a_failing_upstream() -> None:
    def delta(text: str, finish: str | None = None) -> dict[str, object]:
        return {"choices": [{"delta": {"content": text}, "finish_reason": finish}]}

    assert streamed_outcome(_stream(delta("echo"), delta("", "stop"))) == "whole"
    assert streamed_outcome(_stream(delta("part"), {"error": {"message": "x"}})) == "error event"
    assert streamed_outcome(_stream(delta("part"))) == "SILENT CUT"
    assert streamed_outcome(_stream(delta("part"), done=False)) == "SILENT CUT"
    assert streamed_outcome(_stream(delta("part"), delta("echo"), delta("", "stop"))) == "WRONG TEXT"
    assert whole_outcome('{"choices": [{"message": {"content": "echo"}}]}') == "whole"
    assert whole_outcome('{"choices": [{"message": {"content": null}}]}') == "BROKEN 200"
    assert whole_outcome('{"choi') == "BROKEN 200"


def test_a_stopwatch_separates_cpu_time_from_waiting() -> None:
    stopwatch = Stopwatch()
    threading.Event().wait(0.05)
    waited = stopwatch.read()
    assert waited.wall >= 0.05 > waited.processor
    while stopwatch.read().processor < waited.processor + 0.05:
        pass
    assert stopwatch.read().wall >= waited.wall + 0.04


def test_median_and_quartiles() -> None:
    assert median_and_quartiles([1.0, 0.9, 1.1, 2.0, 0.5]) == "1.000 (0.900 to 1.100)"
    assert median_and_quartiles([1.25]) == "1.250 (1.250 to 1.250)"


HELP = """
import contextlib, sys
from tests.bench.__main__ import main
for name in {names}:
    sys.argv = ["bench", name, "--help"]
    with contextlib.suppress(SystemExit):
        main()
"""


def test_every_benchmark_explains_itself() -> None:
    """In one process: importing torch for each takes longer than all the rest."""
    names = ["cache", "chaos", "engine", "gateway", "gpu", "prefix", "soak", "speculative", "stall", "step"]
    names += ["scheduler", "checkpoints"]
    command = [sys.executable, "-c", HELP.format(names=names)]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert re.findall(r"^usage: python -m tests.bench (\w+)", shown, re.M) == names


def test_help_lists_every_benchmark_without_importing_any() -> None:
    code = "import sys; sys.argv = ['bench', '--help']; from tests.bench.__main__ import main; main()"
    command = [sys.executable, "-X", "importtime", "-c", code]
    shown = subprocess.run(command, capture_output=True, text=True, check=True)
    assert all(f"    {name} " in shown.stdout for name in BENCHMARKS)
    assert "Engine against engine on one checkpoint" in shown.stdout
    assert "tests.bench.engine" not in shown.stderr and "torch" not in shown.stderr


async def test_the_substitutes_for_nginx_and_wrk() -> None:
    port = free_port()
    upstream = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.bench.instant_upstream", str(port)
    )
    try:
        async with asyncio.timeout(15):
            while True:
                try:
                    (await asyncio.open_connection("127.0.0.1", port))[1].close()
                    break
                except ConnectionRefusedError:
                    await asyncio.sleep(0.05)
        url = f"http://127.0.0.1:{port}/v1/chat/completions"
        arguments = ["-m", "tests.bench.http_load", url, "2", "1", "{}", '{"x": 1}']
        loader = await asyncio.create_subprocess_exec(
            sys.executable, *arguments, stdout=asyncio.subprocess.PIPE
        )
        out, _ = await loader.communicate()
    finally:
        upstream.terminate()
        await upstream.wait()
    assert b'"errors": 0' in out and b'"req/s"' in out
