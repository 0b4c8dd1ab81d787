"""What is asked about the sentences of an answer, and about a whole answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Literal

import msgspec

from guardrails.checks.groundedness import Documents, needs_check
from guardrails.screen.guard import EncoderFailed
from guardrails.screen.judge import failure_action, judge_sentences, needs_sentences
from guardrails.screen.screening import Screening
from guardrails.screen.segments import document
from guardrails.screen.threads import Threads, is_long
from guardrails.screen.verdicts import Judgement
from guardrails.text.sentences import split
from policies.guardrails import Segment

Holds = Literal["nothing", "sentence", "answer"]
"""How much of a stream is held back until it has been judged."""


class _Grounds:
    """The documents of a request, read when the first sentence needs them; shared by all choices."""

    def __init__(self, texts: Sequence[str], threads: Threads) -> None:
        self._texts = texts
        self._threads = threads
        self._in_thread = is_long(texts)
        self._read: Documents | None = None

    def __bool__(self) -> bool:
        return any(self._texts)

    async def support(self, sentence: str) -> float | None:
        """The documents' support of a sentence; None where there are no documents, or nothing is stated."""
        return await self._threads.run(lambda: self._support(sentence), self._in_thread)

    def _support(self, sentence: str) -> float | None:
        if self._read is None:
            self._read = Documents(self._texts)
        return self._read.support(sentence) if self._read and needs_check(sentence) else None


class AnswerChecks:
    """The checks of one profile on one choice of an answer; a copy is for another choice."""

    def __init__(self, screening: Screening) -> None:
        profile = screening.profile
        self._screening = screening
        self._judges = bool(needs_sentences(profile))
        self._grounding = profile.groundedness
        self._documents = _Grounds([], screening.threads)
        if self._grounding is not None:
            places = self._grounding.documents
            texts = [text for segment, text in screening.texts if segment in places]
            self._documents = _Grounds(texts, screening.threads)
        self._num_stated = self._num_unsupported = 0
        self.holds: Holds = _holds(screening)

    async def allowed(self, sentences: Sequence[str], *, grounds: bool) -> AsyncIterator[str]:
        """The sentences that may be sent. Raises Blocked before one that may not, or CheckFailed.

        `grounds`: whether documents must support them.
        """
        judged = await self._judged(sentences)
        for sentence, found in zip(sentences, judged, strict=True):
            self._screening.act_on(found)
            if grounds:
                await self._ground(sentence)
            yield sentence

    async def ask_hooks(self, text: str) -> None:
        """Hooks and named checks of a whole text, without what the request has masked."""
        if any(each.applies("answer") for each in self._screening.guard.asked):
            await self._screening.ask_hooks("answer", [("assistant", self._screening.masked(text))])

    async def judge_call(self, arguments: str) -> None:
        """Judge the texts in a call's arguments, and ask about all of them. Raises as `allowed` does."""
        if not arguments:
            return
        found: list[str] = []

        def note(segment: Segment, text: str, *, in_json: bool = False) -> str:
            found.extend(split(text))
            return text

        try:
            document(msgspec.json.decode(arguments), note)
        except (msgspec.DecodeError, RecursionError):
            note("assistant", arguments)
        async for _ in self.allowed(found, grounds=False):
            pass
        await self.ask_hooks(arguments)

    async def end(self, text: str) -> str:
        """What to append to an answer that has passed. Raises Blocked or CheckFailed."""
        if self.holds == "nothing" and text and (self._judges or self._documents):
            async for _ in self.allowed(split(text), grounds=True):
                pass
        if self.holds != "answer" and text:
            await self.ask_hooks(text)
        rules = self._grounding
        if (
            rules is None
            or rules.action != "note"
            or not self._num_unsupported
            or self._screening.profile.dry_run
            or self._screening.wants_json
        ):
            return ""
        counts = {"{count}": self._num_unsupported, "{total}": self._num_stated}
        note = rules.note
        for name, count in counts.items():
            note = note.replace(name, str(count))
        return note

    async def _judged(self, sentences: Sequence[str]) -> list[list[Judgement]]:
        if self._judges and sentences:
            try:
                return await judge_sentences(self._screening.guard, sentences, self._screening.threads)
            except EncoderFailed:
                self._screening.fail("encoder", "encoder", failure_action(self._screening.profile))
        return [[] for _ in sentences]

    async def _ground(self, sentence: str) -> None:
        rules = self._grounding
        support = await self._documents.support(sentence) if rules is not None and self._documents else None
        if rules is None or support is None:
            return
        await asyncio.sleep(0)  # an answer may bring many sentences at once
        self._num_stated += 1
        if support < rules.min_support:
            self._num_unsupported += 1
            self._screening.act("groundedness", "unsupported", rules)


def _holds(screening: Screening) -> Holds:
    profile = screening.profile
    if profile.dry_run:
        return "nothing"
    asked = (each.rules for each in screening.guard.asked if each.rules.answers)
    if any("block" in (rules.action, rules.on_failure) for rules in asked):
        return "answer"
    rules = [*needs_sentences(profile), *([profile.groundedness] if profile.groundedness else [])]
    return "sentence" if any(each.action == "block" for each in rules) else "nothing"


def checks_answers(screening: Screening) -> bool:
    """Whether anything of an answer is looked at."""
    profile = screening.profile
    return bool(
        profile.personal_data is not None
        or profile.groundedness is not None
        or needs_sentences(profile)
        or any(rules.answers for rules in profile.patterns.values())
        or any(each.rules.answers for each in screening.guard.asked)
    )


def holds_back(screening: Screening) -> bool:
    """Whether an answer may be other than what the model wrote, or come later."""
    profile = screening.profile
    if profile.dry_run:
        return False
    changes = profile.personal_data is not None and profile.personal_data.action != "flag"
    patterns = any(rules.answers and rules.action != "flag" for rules in profile.patterns.values())
    notes = profile.groundedness is not None and profile.groundedness.action == "note"
    return changes or patterns or notes or _holds(screening) != "nothing"
