"""What the guardrails of a model do to one request."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Iterable, Sequence
from typing import Any, Protocol

from guardrails.checks.patterns import LinearRule, words_rule
from guardrails.checks.personal_data.patterns import KINDS
from guardrails.masking import Masking
from guardrails.scan.chain import ScannerChain
from guardrails.scan.scanner import Blocked, Replacer, Scanner, scan
from guardrails.screen.guard import EncoderFailed, Guard, Vectors
from guardrails.screen.hooks import Direction, Hook, HookFailed, HookVerdict
from guardrails.screen.judge import failure_action, find_attacks, judge_request, read_texts
from guardrails.screen.named_check import NamedCheck
from guardrails.screen.segments import changed_body, texts, wants_json
from guardrails.screen.threads import is_long
from guardrails.screen.verdicts import Check, Judged, OnVerdict, Outcome, Unreadable, Verdicts
from guardrails.text.json_text import InJson
from policies.guardrails import (
    CheckRules,
    FailureAction,
    GuardrailProfile,
    HookRules,
    PatternRules,
    Segment,
)


class CheckFailed(Exception):
    """A check that the policy does not let texts pass without could not be made."""

    def __init__(self, check: str) -> None:
        super().__init__(check)
        self.check = check


class Action(Protocol):
    """Rules that say what follows from a finding."""

    @property
    def action(self) -> str:
        """`block`, or another word where the text may pass."""
        ...


class Screening:
    """The checks of one profile, applied to one exchange."""

    def __init__(self, guard: Guard, on_verdict: OnVerdict | None = None, tenant: str = "") -> None:
        self.guard = guard
        self.threads = guard.threads.of(tenant)
        self.profile = profile = guard.profile
        self.verdicts = Verdicts(on_verdict) if on_verdict else Verdicts()
        self.vectors: dict[str, Vectors] = {}  # of texts that have been encoded
        self.texts: list[tuple[Segment, str]] = []  # of the request, after masking
        self.wants_json = False  # the answer is to be a JSON document
        self._masking: Masking | None = None
        self._noted: Counter[str] = Counter()  # personal data that verdicts have
        if profile.personal_data is not None:
            rules = profile.personal_data
            kinds = KINDS if rules.kinds is None else tuple(rules.kinds)
            self._masking = Masking(kinds, "flag" if profile.dry_run else rules.action)

    @property
    def is_flagged(self) -> bool:
        """Whether something was found that went on unchanged: the answer is not stored."""
        return self.verdicts.has_unchanged

    @property
    def is_blocked(self) -> bool:
        """Whether the request was refused."""
        return self.verdicts.has_blocked

    async def request_body(self, body: dict[str, Any]) -> dict[str, Any]:
        """The body to go on with. Raises Blocked or CheckFailed."""
        try:
            in_thread = is_long(text for _, text in texts(body))
            changed = await self.threads.run(lambda: changed_body(body, self._change), in_thread)
        finally:
            self.note_personal_data()
        self.texts = texts(changed)
        self.wants_json = wants_json(body)
        await self._judge()
        await self.ask_hooks("request", self.texts)
        return changed

    def act(self, check: Check, kind: str, rules: Action) -> None:
        """Note a finding. Raises Blocked where the policy says so."""
        blocks = rules.action == "block" and not self.profile.dry_run
        self.verdicts.add(check, kind, "blocked" if blocks else "flagged")
        if blocks:
            raise Blocked(f"{check}: {kind}")

    def act_on(self, judged: Iterable[Judged | Unreadable]) -> None:
        """Note what was judged, and what could not be. Raises Blocked where the policy says so."""
        for each in judged:
            if isinstance(each, Judged):
                self.act(each.check, each.kind, each.rules)
                continue
            outcome: Outcome = "unreadable" if each.action == "allow" else "flagged"
            blocks = each.action == "block" and not self.profile.dry_run
            self.verdicts.add_unreadable(each.check, each.language, "blocked" if blocks else outcome)
            if blocks:
                raise Blocked(f"{each.check}: unreadable/{each.language}")

    def fail(self, check: Check, kind: str, on_failure: FailureAction) -> None:
        """Note a check that could not be made. Raises CheckFailed where the policy says so."""
        blocks = on_failure == "block" and not self.profile.dry_run
        self.verdicts.add(check, kind, "failed_closed" if blocks else "failed_open")
        if blocks:
            raise CheckFailed(kind)

    async def ask_hooks(self, direction: Direction, found: Sequence[tuple[Segment, str]]) -> None:
        """Ask hooks and named checks at the same time. Raises Blocked or CheckFailed."""
        hooks, checks = self.guard.hooks.items(), self.guard.checks.items()
        await asyncio.gather(
            *(self._ask(name, hook, direction, found) for name, hook in hooks if hook.applies(direction)),
            *(
                self._check(name, check, direction, found)
                for name, check in checks
                if check.applies(direction)
            ),
        )

    def answer_scanner(self, *, in_json: bool = False) -> ScannerChain:
        """For one text of an answer: patterns on what the model wrote, then masked values come back.

        `in_json`: the text is a JSON document, as the arguments of a tool call are.
        """
        scanners = [
            Scanner(self._pattern_rule(name, rules, in_json=in_json))
            for name, rules in self.profile.patterns.items()
            if rules.answers
        ]
        if self._masking is not None and self.profile.personal_data is not None:
            answers = self.profile.personal_data.answers
            scanners.append(self._masking.restorer(screens_answers=answers, in_json=in_json))
        return ScannerChain(scanners)

    def masked(self, text: str) -> str:
        """Text without the values that masking took out of the request."""
        return text if self._masking is None else self._masking.mask(text)

    def note_personal_data(self) -> None:
        """Count what masking has found since the last time."""
        if self._masking is None or self.profile.personal_data is None:
            return
        action = self.profile.personal_data.action
        outcome: Outcome = "blocked" if action == "block" else "changed"
        if action == "flag" or self.profile.dry_run:
            outcome = "flagged"
        new = self._masking.found - self._noted
        self._noted += new
        for kind in new.elements():
            self.verdicts.add("personal_data", kind, outcome)

    async def _judge(self) -> None:
        read = await read_texts(self.guard, self.texts, self.threads)
        rules = self.profile.injection
        self.act_on(await find_attacks(rules, read, self.threads) if rules is not None else ())
        try:
            judged = await judge_request(self.guard, read, self.vectors, self.threads)
        except EncoderFailed:
            self.fail("encoder", "encoder", failure_action(self.profile))
            return
        self.act_on(judged)

    async def _ask(
        self, name: str, hook: Hook, direction: Direction, found: Sequence[tuple[Segment, str]]
    ) -> None:
        chosen = _chosen(hook.rules, direction, found)
        if chosen:
            await self._follow("hook", name, hook.rules, hook.check(direction, chosen))

    async def _check(
        self, name: str, check: NamedCheck, direction: Direction, found: Sequence[tuple[Segment, str]]
    ) -> None:
        chosen = _chosen(check.rules, direction, found)
        if chosen:
            await self._follow("check", name, check.rules, check.check(chosen, self.threads.tenant))

    async def _follow(
        self, label: Check, name: str, rules: HookRules | CheckRules, verdict: Awaitable[HookVerdict]
    ) -> None:
        try:
            found = await verdict
        except HookFailed:
            self.fail(label, name, rules.on_failure)
            return
        if found.flagged:
            self.act(label, f"{name}/{found.reason}" if found.reason else name, rules)

    def _change(self, segment: Segment, text: str, *, in_json: bool = False) -> str:
        kind = f"{segment} json" if in_json else segment
        known = self.guard.known.of(self.threads.tenant, kind, text)
        if known.is_unchanged:
            return text
        before = self._num_found
        changed = self._searched(segment, text, in_json=in_json)
        known.is_unchanged = self._num_found == before and changed == text
        return changed

    @property
    def _num_found(self) -> int:
        return self.verdicts.num_added + (self._masking.num_noted if self._masking is not None else 0)

    def _searched(self, segment: Segment, text: str, *, in_json: bool) -> str:
        for name, rules in self.profile.patterns.items():
            if rules.requests and segment in rules.segments:
                text = scan(self._pattern_rule(name, rules, in_json=in_json), text)
        return text if self._masking is None else self._masking.mask(text, in_json=in_json)

    def _pattern_rule(self, name: str, rules: PatternRules, *, in_json: bool) -> Replacer:
        def replacement() -> str | None:
            if rules.action == "redact" and not self.profile.dry_run:
                self.verdicts.add("pattern", name, "changed")
                return f"[{name.upper()}]"
            self.act("pattern", name, rules)
            return None

        if rules.words is not None:
            rule = words_rule(rules.words, replacement)
        else:
            assert rules.regex is not None
            rule = LinearRule(rules.regex, replacement)
        return InJson(rule) if in_json else rule


def checks_requests(profile: GuardrailProfile) -> bool:
    """Whether anything of a request is looked at."""
    rules = (profile.personal_data, profile.injection, profile.harm, *profile.topics.values())
    own = [each.requests for each in profile.patterns.values()]
    own += [each.requests for each in profile.hooks.values()]
    return any(each is not None for each in rules) or any(own)


def _chosen(
    rules: HookRules | CheckRules, direction: Direction, found: Sequence[tuple[Segment, str]]
) -> list[tuple[Segment, str]]:
    """The texts that a hook or a named check gets: of an answer all."""
    return [each for each in found if direction == "answer" or each[0] in rules.segments]
