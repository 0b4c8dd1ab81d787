"""Compilation beside the loop: what is refused, what survives, what is kept. Real sandboxes."""

from __future__ import annotations

import errno
import json
import subprocess
import time
from collections.abc import Iterator
from threading import Event

import pytest

from backend.errors import QueueFull, RequestError
from backend.structured import compiler as module
from backend.structured.compiler import GrammarCompiler, open_compiler, start
from backend.structured.sandbox import Sandbox, SandboxLimits
from backend.types import GrammarSpec
from tests.backend.structured.pico import PICO
from tests.backend.structured.schemas import huge_enum, nested_choices

LIMITS = SandboxLimits(time_s=1.0, max_bytes=600 << 20)
GOOD = GrammarSpec(kind="regex", text="[ab]+", param="guided_regex")


def spec(schema: object) -> GrammarSpec:
    return GrammarSpec(kind="json_schema", text=json.dumps(schema))


@pytest.fixture(scope="module")
def compiler() -> Iterator[GrammarCompiler]:
    found = GrammarCompiler(PICO, 1536, [2], LIMITS)
    yield found
    found.close()


def refusal(compiler: GrammarCompiler, hostile: GrammarSpec) -> RequestError:
    found = compiler.submit(hostile)
    with pytest.raises(RequestError) as refused:
        found.result(timeout=60)
    return refused.value


def test_a_compiled_grammar_is_kept_and_each_sequence_gets_its_own(compiler: GrammarCompiler) -> None:
    found = compiler.submit(GOOD)
    found.result(timeout=60)
    assert compiler.submit(GOOD) is found
    assert compiler.submit(GrammarSpec(kind="regex", text="[ab]+", thought="inside")) is not found
    assert start(found) is not start(found)


@pytest.mark.parametrize(
    ("hostile", "words"),
    [
        (spec(huge_enum(9000)), "takes longer than 1 s"),
        (GrammarSpec(kind="lark", text="start: nothing"), "unknown name"),
        (GrammarSpec(kind="regex", text="(?=a)b"), "look-around"),
        (GrammarSpec(kind="lark", text="\n" * 200_000), "takes longer than 1 s"),
        (GrammarSpec(kind="lark", text="root ::= ("), "refused"),
        (spec({"$ref": "#"}), "refused"),
        (spec({"enum": []}), "refused"),
        (spec(nested_choices(9)), "at most 262144"),
    ],
)
def test_hostile_ones_are_refused_and_the_next_is_served(
    compiler: GrammarCompiler, hostile: GrammarSpec, words: str
) -> None:
    error = refusal(compiler, hostile)
    is_kept = compiler.submit(hostile).done()
    assert is_kept == (words != "takes longer than 1 s"), "a limit may be met another time"
    assert words in str(error) and error.param == "response_format" and len(str(error)) < 500
    other = GrammarSpec(kind="regex", text=f"x{len(words)}+")
    assert compiler.submit(other).result(timeout=60) is not None


def test_memory_has_a_limit() -> None:
    tight = GrammarCompiler(PICO, 1536, [2], SandboxLimits(time_s=30, max_bytes=16 << 20))
    try:
        assert "memory" in str(refusal(tight, spec(huge_enum(9000))))
        tight.submit(GOOD).result(timeout=60)
    finally:
        tight.close()


def test_what_waits_and_what_is_kept_is_bounded(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    for pending in list(compiler._found.values()):  # of the tests before
        pending.exception(timeout=60)
    monkeypatch.setattr(module, "_MAX_CACHED", 2)
    for count in range(1, 5):
        compiler.submit(GrammarSpec(kind="regex", text="y" * count)).result(timeout=60)
    assert sum(future.done() for future in compiler._found.values()) <= 2
    monkeypatch.setattr(module, "_MAX_PENDING", 1)
    slow = compiler.submit(spec(huge_enum(8999)))
    with pytest.raises(QueueFull):
        compiler.submit(GrammarSpec(kind="regex", text="z"))
    with pytest.raises(RequestError):
        slow.result(timeout=60)


def test_without_a_process_to_be_had_grammars_are_refused_until_there_is_one() -> None:
    found = GrammarCompiler(PICO, 1536, [2], LIMITS)

    def exhausted(*args: object, **options: object) -> None:
        raise OSError(errno.EAGAIN, "Resource temporarily unavailable")

    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(subprocess, "Popen", exhausted)
            assert "temporarily unavailable" in str(refusal(found, GOOD))
        found.submit(GOOD).result(timeout=60)
    finally:
        found.close()


def test_what_is_slow_to_build_and_has_met_a_limit_is_compiled_anew(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_LONGEST_PAUSE_S", 0.0)
    wanted = GrammarSpec(kind="regex", text="a[ab]+")
    found = compiler.submit(wanted)
    found.result(timeout=60)
    one, other = start(found), start(found)
    one.advance(0)
    assert "too complex" in one.error and not other.error
    anew = compiler.submit(wanted)
    anew.result(timeout=60)
    assert anew is not found and compiler.submit(wanted) is anew


def test_closing_does_not_wait_for_anything() -> None:
    started_s = time.monotonic()
    GrammarCompiler(PICO, 1536, [2], LIMITS).close()
    assert time.monotonic() - started_s < 20


def test_a_checkpoint_without_a_tokenizer_has_no_compiler() -> None:
    assert open_compiler("/nowhere", 10, [2]) is None


def test_closing_ends_sandboxes_that_are_at_work(monkeypatch: pytest.MonkeyPatch) -> None:
    at_work = Event()
    reply = Sandbox._reply

    def noticed(self: Sandbox, process: subprocess.Popen[bytes], limit_s: float) -> bytes:
        if limit_s == 59:  # not the start
            at_work.set()
        return reply(self, process, limit_s)

    monkeypatch.setattr(Sandbox, "_reply", noticed)
    slow = GrammarCompiler(PICO, 1536, [2], SandboxLimits(time_s=59))
    found = slow.submit(spec(huge_enum(9000)))
    assert at_work.wait(timeout=60)
    slow.close()
    with pytest.raises(RequestError):
        found.result(timeout=0)
    assert all(sandbox._process is None for sandbox in slow._all)
