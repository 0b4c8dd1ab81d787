"""Named checks of texts: what they find, and whatever a package's code may do."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from gateway.screening.threads import FairThreads
from guardrails.cancellation import Cancelled, check_cancelled
from guardrails.findings import Finding, Segment
from guardrails.scan.scanner import Blocked
from guardrails.screen.guard import Guard, no_vectors
from guardrails.screen.hooks import HookFailed
from guardrails.screen.named_check import NamedCheck
from guardrails.screen.screening import CheckFailed, Screening
from policies.guardrails import CheckRules, GuardrailProfile, PersonalDataRules

Find = Callable[[str, Segment], Iterable[Finding]]
SECRET = "canary-of-the-prompt"


def found(kind: Any = "kind", start: Any = 0, end: Any = 1) -> Finding:  # noqa: ANN401
    return Finding("own", kind, 1.0, start, end, "reason")


def word(text: str, segment: Segment) -> list[Finding]:
    at = text.find("bad")
    return [] if at < 0 else [found(segment, at, at + 3)]


def screening(find: Find, **rules: object) -> Screening:
    checks = {"own": CheckRules(check="of_a_package", **rules)}  # type: ignore[arg-type]
    profile = GuardrailProfile(checks=checks, personal_data=PersonalDataRules(kinds=["email"]))
    named = {name: NamedCheck(name, each, find, FairThreads()) for name, each in checks.items()}
    return Screening(Guard(profile, no_vectors, {}, threads=FairThreads(), checks=named))


def body(text: str, role: str = "user") -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": role, "content": text}]}


@pytest.mark.parametrize("text", ["bad", "very bad " * 2000, "é🦜 bad"])
async def test_a_finding_refuses(text: str) -> None:
    checked = screening(word)
    with pytest.raises(Blocked, match="check: own/user"):
        await checked.request_body(body(text))
    assert checked.verdicts.kinds == ("check:own/user",)


@pytest.mark.parametrize("text", ["", "good", "b a d", "BAD"])
async def test_others_pass(text: str) -> None:
    checked = screening(word)
    await checked.request_body(body(text))
    assert checked.verdicts.kinds == ()


async def test_flag_only_notes() -> None:
    checked = screening(word, action="flag")
    await checked.request_body(body("bad"))
    assert checked.is_flagged and not checked.is_blocked


async def test_segments_and_directions_are_the_policys() -> None:
    await screening(word).request_body(body("bad", "system"))
    await screening(word, requests=False).request_body(body("bad"))
    with pytest.raises(Blocked):
        await screening(word, segments=["system"]).request_body(body("bad", "system"))


async def test_it_gets_masked_text() -> None:
    seen: list[str] = []
    await screening(lambda text, _: seen.append(text) or []).request_body(body("I am a@b.de"))
    assert seen == ["I am [EMAIL_1]"]


def raising(error: BaseException) -> Find:
    def find(text: str, segment: Segment) -> list[Finding]:
        raise error

    return find


def late(text: str, segment: Segment) -> Iterable[Finding]:
    yield from ()
    raise ValueError(SECRET)


BROKEN: dict[str, Find] = {
    "raises": raising(ValueError(SECRET)),
    "raises while it is read": late,
    "exits": raising(SystemExit(3)),
    "recurses": raising(RecursionError()),
    "needs memory": raising(MemoryError()),
    "gives None": lambda *_: None,  # type: ignore[return-value]
    "gives text": lambda *_: [SECRET],  # type: ignore[list-item]
    "gives a number": lambda *_: 7,  # type: ignore[return-value]
    "begins before the text": lambda *_: [found(start=-1)],
    "ends behind it": lambda text, _: [found(end=len(text) + 1)],
    "ends before its beginning": lambda *_: [found(start=2, end=1)],
    "has a place of text": lambda *_: [found(start="0")],
    "has no place": lambda *_: [found(end=None)],
    "has no kind": lambda *_: [found(kind=None)],
}


@pytest.mark.parametrize("find", BROKEN.values(), ids=BROKEN)
async def test_a_broken_check_is_what_the_policy_makes_of_it(
    find: Find, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING), pytest.raises(CheckFailed, match=r"\Aown\Z"):
        await screening(find).request_body(body(SECRET))
    assert "the guardrail check 'own' cannot be made" in caplog.text and SECRET not in caplog.text
    lenient = screening(find, on_failure="allow")
    await lenient.request_body(body(SECRET))
    assert lenient.verdicts.kinds == ("check:own",) and lenient.is_flagged


async def test_a_kind_with_words_of_the_text_is_not_told() -> None:
    checked = screening(lambda *_: [found(kind=f"<{SECRET}>")])
    with pytest.raises(Blocked, match=r"\Acheck: own\Z"):
        await checked.request_body(body(SECRET))


async def test_a_slow_check_fails_in_time_and_learns_of_it() -> None:
    ended = threading.Event()

    def slow(text: str, segment: Segment) -> list[Finding]:
        try:
            while True:
                check_cancelled()
        except Cancelled:
            ended.set()
            raise

    with pytest.raises(CheckFailed):
        await screening(slow, timeout_ms=20).request_body(body("x"))
    assert await asyncio.to_thread(ended.wait, 10)


async def test_many_requests_at_the_same_time_keep_their_own_verdicts() -> None:
    checked = [screening(word, action="flag") for _ in range(40)]
    texts = ["bad" if number % 3 else "good" for number in range(40)]
    await asyncio.gather(*(each.request_body(body(text)) for each, text in zip(checked, texts, strict=True)))
    assert [each.is_flagged for each in checked] == [text == "bad" for text in texts]


async def test_the_first_finding_ends_the_search() -> None:
    seen: list[str] = []

    def find(text: str, segment: Segment) -> Iterable[Finding]:
        seen.append(text)
        yield found()
        raise AssertionError("asked for a second one")

    named = NamedCheck("own", CheckRules(check="known_attacks"), find, FairThreads())
    verdict = await named.check([("user", "a"), ("tool", "b")], "t")
    assert (verdict.flagged, verdict.reason, seen) == (True, "kind", ["a"])


async def test_a_packages_check_is_in_a_thread_with_a_limit_and_a_short_built_in_one_in_none() -> None:
    seen: list[str] = []

    def find(text: str, segment: Segment) -> Iterable[Finding]:
        seen.append(threading.current_thread().name)
        return []

    for check in ("known_attacks", "of_a_package"):
        await NamedCheck("own", CheckRules(check=check), find, FairThreads()).check([("user", "a")], "t")
    assert seen == [threading.current_thread().name, "screening"]
    rules, held = CheckRules(check="of_a_package", timeout_ms=1), threading.Event()
    with pytest.raises(HookFailed, match="it took over 1 ms"):
        await NamedCheck("own", rules, lambda *_: held.wait() or [], FairThreads()).check(
            [("user", "a")], "t"
        )
    held.set()
