"""Compilation with real sandboxes: refusals, recovery, caching, fairness."""

from __future__ import annotations

import errno
import json
import queue
import signal
import subprocess
import time
from collections.abc import Iterator
from threading import Event, Semaphore
from weakref import ref

import pytest

from backend.errors import QueueFull, RequestError, TryAgain
from backend.structured import compiler as module
from backend.structured import sandbox
from backend.structured.compiled_grammar import CompiledGrammar
from backend.structured.compiler import GrammarCompiler, new_grammar, open_compiler
from backend.structured.grammar_cache import GrammarCache
from backend.structured.sandbox import Sandbox, SandboxLimits
from backend.types import GrammarSpec
from tests.backend.structured.pico import PICO
from tests.backend.structured.schemas import huge_enum, nested_choices

LIMITS = SandboxLimits(time_s=1.0, max_bytes=600 << 20)
GOOD = GrammarSpec(kind="regex", text="[ab]+", param="guided_regex")


def spec(schema: object) -> GrammarSpec:
    return GrammarSpec(kind="json_schema", text=json.dumps(schema))


def regex(text: str) -> GrammarSpec:
    return GrammarSpec(kind="regex", text=text)


def slow(number: int) -> GrammarSpec:
    """Takes more than a minute on any machine; different numbers are different grammars."""
    return GrammarSpec(kind="lark", text="\n" * (200_000 + number))


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


def test_a_compiled_grammar_is_cached_and_each_sequence_gets_its_own_state(compiler: GrammarCompiler) -> None:
    found = compiler.submit(GOOD)
    found.result(timeout=60)
    assert compiler.submit(GOOD) is found
    assert compiler.submit(GrammarSpec(kind="regex", text="[ab]+", thought="inside")) is not found
    assert new_grammar(found) is not new_grammar(found)


@pytest.mark.parametrize(
    ("hostile", "words"),
    [
        (GrammarSpec(kind="lark", text="start: nothing"), "unknown name"),
        (GrammarSpec(kind="regex", text="(?=a)b"), "look-around"),
        (slow(0), "takes longer than 1 s"),
        (GrammarSpec(kind="lark", text="root ::= ("), "refused"),
        (spec({"$ref": "#"}), "refused"),
        (spec({"enum": []}), "refused"),
        (spec(nested_choices(9)), "at most 262144"),
    ],
)
def test_hostile_grammars_are_refused_and_the_next_is_served(
    compiler: GrammarCompiler, hostile: GrammarSpec, words: str
) -> None:
    error = refusal(compiler, hostile)
    assert compiler.submit(hostile).done(), "the refusal is cached"
    assert words in str(error) and error.param == "response_format" and len(str(error)) < 500
    other = GrammarSpec(kind="regex", text=f"x{len(words)}+")
    assert compiler.submit(other).result(timeout=60) is not None


def test_a_grammar_over_a_limit_is_tried_again_later(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_NEGATIVE_CACHE_S", 0.0)
    assert "takes longer" in str(refusal(compiler, slow(1)))
    assert not compiler.submit(slow(1)).done()


def test_a_schema_that_compiles_too_slowly_is_refused() -> None:
    strict = GrammarCompiler(PICO, 1536, [2], SandboxLimits(time_s=0.05, max_bytes=600 << 20))
    try:
        assert "takes longer than 0.05 s of CPU" in str(refusal(strict, spec(huge_enum(9000))))
    finally:
        strict.close()


class Gates:
    """Replaces compilation: records each start, and blocks it until released."""

    def __init__(self, compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun: queue.Queue[str] = queue.Queue()
        self.let = Semaphore(0)

        def build(spec: GrammarSpec) -> CompiledGrammar:
            self.begun.put(spec.text)
            self.let.acquire(timeout=60)
            raise RequestError("only a test")

        monkeypatch.setattr(compiler, "_build", build)

    def begin(self, count: int) -> set[str]:
        return {self.begun.get(timeout=60) for _ in range(count)}


def test_tenants_take_turns_and_none_takes_all_sandboxes(monkeypatch: pytest.MonkeyPatch) -> None:
    found = GrammarCompiler(PICO, 1536, [2], LIMITS)
    gates = Gates(found, monkeypatch)
    greedy = [found.submit(regex(f"a{i}"), "a") for i in range(6)]
    assert gates.begin(2) == {"a0", "a1"} and gates.begun.empty()
    shared = found.submit(regex("a5"), "b")
    assert shared is greedy[5] and gates.begin(1) == {"a5"}, "b's turn comes before a's other jobs"
    last = found.submit(regex("c0"), "c")
    for _ in range(2):
        gates.let.release()
    begun = gates.begin(2)
    assert "c0" in begun and begun <= {"c0", "a2", "a3"}
    for _ in range(20):
        gates.let.release()
    for future in [*greedy, last]:
        assert isinstance(future.exception(timeout=60), RequestError)
    found.close()


def test_a_tenant_that_fills_the_queue_leaves_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_PENDING", 6)
    found = GrammarCompiler(PICO, 1536, [2], LIMITS)
    gates = Gates(found, monkeypatch)
    waiting = [found.submit(regex(f"a{i}"), "a") for i in range(6)]
    gates.begin(2)
    with pytest.raises(QueueFull):
        found.submit(regex("a6"), "a")
    others = [found.submit(regex(f"b{i}"), "b") for i in range(3)]
    with pytest.raises(QueueFull):
        for i in range(6):
            others.append(found.submit(regex(f"b1{i}"), "b"))
    gates.let.release(50)
    assert all(future.exception(timeout=60) for future in [*waiting, *others])
    found.close()


def test_memory_limit() -> None:
    tight = GrammarCompiler(PICO, 1536, [2], SandboxLimits(time_s=30, max_bytes=16 << 20))
    try:
        assert "memory" in str(refusal(tight, spec(huge_enum(9000))))
        tight.submit(GOOD).result(timeout=60)
    finally:
        tight.close()


def test_pending_and_cached_grammars_are_bounded(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    for pending in list(compiler._cache._entries.values()):  # of the tests before
        pending.exception(timeout=60)
    monkeypatch.setattr(compiler, "_cache", GrammarCache(1 << 20))
    for count in range(1, 30):
        compiler.submit(GrammarSpec(kind="regex", text="y" * count)).result(timeout=60)
    compiler.drop_failed()
    assert 0 < compiler._cache.num_bytes <= 1 << 20
    monkeypatch.setattr(module, "_MAX_PENDING", 1)
    pending = compiler.submit(slow(2))
    with pytest.raises(QueueFull):
        compiler.submit(GrammarSpec(kind="regex", text="z"))
    with pytest.raises(RequestError):
        pending.result(timeout=60)


def running_sandbox(found: GrammarCompiler) -> subprocess.Popen[bytes]:
    found.submit(GOOD).result(timeout=60)
    (process,) = [box._process for box in found._sandboxes if box._process is not None]
    return process


@pytest.fixture
def fresh() -> Iterator[GrammarCompiler]:
    found = GrammarCompiler(PICO, 1536, [2], SandboxLimits(time_s=0.3, max_bytes=600 << 20))
    yield found
    found.close()


def test_a_sandbox_without_a_cpu_refuses_no_grammar(fresh: GrammarCompiler) -> None:
    process = running_sandbox(fresh)
    process.send_signal(signal.SIGSTOP)
    compiled = fresh.submit(regex("[abc]+"))
    with pytest.raises(TimeoutError):
        compiled.result(timeout=0.6)  # twice the limit, without any CPU time
    process.send_signal(signal.SIGCONT)
    assert compiled.result(timeout=60) is not None


@pytest.mark.parametrize("is_busy", [False, True])
def test_a_killed_sandbox_is_replaced(fresh: GrammarCompiler, is_busy: bool) -> None:
    process = running_sandbox(fresh)
    if is_busy:
        process.send_signal(signal.SIGSTOP)
        compiled = fresh.submit(regex("[abc]+"))
        with pytest.raises(TimeoutError):
            compiled.result(timeout=0.05)
    process.kill()
    process.wait()
    assert fresh.submit(regex("[abc]+")).result(timeout=60) is not None


def no_process(*args: object, **options: object) -> None:
    raise OSError(errno.EAGAIN, "Resource temporarily unavailable")


@pytest.mark.parametrize(
    ("target", "name", "value", "words"),
    [
        (subprocess, "Popen", no_process, "temporarily unavailable"),
        (sandbox, "_MODULE", "backend.structured.absent", "ended while it started"),
    ],
)
def test_a_sandbox_that_does_not_start_is_tried_again(
    fresh: GrammarCompiler, target: object, name: str, value: object, words: str
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(target, name, value)
        with pytest.raises(TryAgain, match=words):
            fresh.submit(GOOD).result(timeout=60)
    assert fresh.submit(GOOD).result(timeout=60) is not None


def test_an_exhausted_grammar_that_is_slow_to_build_is_compiled_again(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MAX_REBUILD_S", 0.0)
    wanted = GrammarSpec(kind="regex", text="a[ab]+")
    found = compiler.submit(wanted)
    found.result(timeout=60)
    one, other = new_grammar(found), new_grammar(found)
    one.advance(0)
    assert "too complex" in one.error and not other.error
    again = compiler.submit(wanted)
    again.result(timeout=60)
    assert again is not found and compiler.submit(wanted) is again


def test_a_grammar_that_stays_large_is_refused() -> None:
    tight = GrammarCompiler(PICO, 1536, [2], SandboxLimits(time_s=30, max_compiled_bytes=1 << 20))
    try:
        error = refusal(tight, regex("a{9999}"))  # 5 MB
        assert "bytes of memory (limit 1048576)" in str(error)
        assert tight._cache.num_bytes < 1 << 20
        tight.submit(GOOD).result(timeout=60)
    finally:
        tight.close()


def test_a_grammar_that_met_a_limit_is_dropped_with_its_sequence(compiler: GrammarCompiler) -> None:
    wanted = regex("c[ab]+")
    found = compiler.submit(wanted)
    found.result(timeout=60)
    grammar = new_grammar(found)
    compiled = ref(found.result())
    grammar._token_budget.left_s = -1.0
    grammar.advance(0)
    assert grammar.error
    del found, grammar
    compiler.drop_failed()
    assert compiled() is None


def test_no_grammar_is_compiled_while_those_in_use_fill_the_memory() -> None:
    found = GrammarCompiler(PICO, 1536, [2], LIMITS, max_cached_bytes=1 << 20)
    try:
        large = found.submit(regex("a{9999}"))  # 5 MB
        large.result(timeout=60)
        in_use = new_grammar(large)
        del large
        small = found.submit(regex("b"))
        found._pool.submit(lambda: None).result(timeout=60)
        found.resume()
        assert not small.done()
        del in_use
        found.resume()
        assert small.result(timeout=60)
    finally:
        found.close()


def test_closing_does_not_wait_for_jobs() -> None:
    started_s = time.monotonic()
    GrammarCompiler(PICO, 1536, [2], LIMITS).close()
    assert time.monotonic() - started_s < 20


def test_a_checkpoint_without_a_tokenizer_has_no_compiler() -> None:
    assert open_compiler("/nowhere", 10, [2], 1 << 20) is None


def test_closing_kills_busy_sandboxes(monkeypatch: pytest.MonkeyPatch) -> None:
    at_work = Event()
    reply = Sandbox._reply

    def noticed(self: Sandbox, process: subprocess.Popen[bytes], limit_s: float) -> bytes:
        if limit_s == 59.0:  # not the start
            at_work.set()
        return reply(self, process, limit_s)

    monkeypatch.setattr(Sandbox, "_reply", noticed)
    monkeypatch.setattr(sandbox, "_STALL_LIMIT_S", 59.0)
    slow = GrammarCompiler(PICO, 1536, [2], SandboxLimits(time_s=59))
    found = slow.submit(spec(huge_enum(9000)))
    assert at_work.wait(timeout=60)
    slow.close()
    with pytest.raises(TryAgain):
        found.result(timeout=0)
    assert all(sandbox._process is None for sandbox in slow._sandboxes)
