"""What guardrails found in one request and its answer, by check and kind; never the text itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from policies.guardrails import HarmRules, InjectionRules, TopicRules, UnreadableAction

Check = Literal[
    "personal_data",
    "injection",
    "harm",
    "pattern",
    "topic",
    "groundedness",
    "hook",
    "check",
    "encoder",
    "unread",
]
Outcome = Literal["flagged", "changed", "blocked", "failed_open", "failed_closed", "unreadable"]


@dataclass(frozen=True, slots=True)
class Judged:
    """Something that was found, and the rules that say what follows."""

    check: Check
    kind: str
    rules: InjectionRules | HarmRules | TopicRules


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A text in a language that a check has not been taught, and what follows."""

    check: Literal["injection", "harm"]
    language: str
    action: UnreadableAction


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found, and what followed; nothing of the text."""

    check: Check
    kind: str
    outcome: Outcome


MAX_FINDINGS = 100
"""How many of one request are listed; further ones count only."""

Judgement = Judged | Unreadable

OnVerdict = Callable[[str, Check, Outcome, str], None]
"""Gets all verdicts so far as text, the newest one's check and outcome, and the language if unreadable."""


def _ignore(text: str, check: Check, outcome: Outcome, language: str) -> None:
    """Tell no telemetry."""


class Verdicts:
    """Counts findings, and tells telemetry of each."""

    def __init__(self, on_verdict: OnVerdict = _ignore) -> None:
        self.findings: list[Finding] = []
        self._counts: Counter[str] = Counter()
        self._outcomes: set[Outcome] = set()
        self._changed: set[str] = set()
        self._on_verdict = on_verdict

    @property
    def num_added(self) -> int:
        """All findings."""
        return self._counts.total()

    def add(self, check: Check, kind: str, outcome: Outcome) -> None:
        """One finding, and what followed from it."""
        name = kind if check == "personal_data" else f"{check}:{kind}"
        self._counts[name] += 1
        if outcome == "changed":
            self._changed.add(name)
        self._outcomes.add(outcome)
        self._list(check, kind, outcome)
        self._on_verdict(str(self), check, outcome, "")

    def add_unreadable(self, check: Check, language: str, outcome: Outcome) -> None:
        """A text in a language that a check does not read, once for each, and what followed."""
        kind = f"unreadable/{language}"
        if f"{check}:{kind}" in self._counts:
            return
        self._counts[f"{check}:{kind}"] += 1
        self._on_verdict(str(self), check, "unreadable", language)
        self._outcomes.add(outcome)
        self._list(check, kind, outcome)
        if outcome != "unreadable":
            self._on_verdict(str(self), check, outcome, "")

    def _list(self, check: Check, kind: str, outcome: Outcome) -> None:
        if len(self.findings) < MAX_FINDINGS:
            self.findings.append(Finding(check, kind, outcome))

    @property
    def has_unchanged(self) -> bool:
        """Whether something was found that went on as it was."""
        return bool(self._outcomes & {"flagged", "failed_open"})

    @property
    def has_blocked(self) -> bool:
        """Whether something was found that must not pass."""
        return "blocked" in self._outcomes

    @property
    def kinds(self) -> tuple[str, ...]:
        """What was found, each once."""
        return tuple(sorted(self._counts))

    @property
    def changed(self) -> tuple[str, ...]:
        """What was masked or redacted, each once."""
        return tuple(sorted(self._changed))

    def __str__(self) -> str:
        """Kinds with counts, such as `email=2 injection:override=1`."""
        return " ".join(f"{kind}={count}" for kind, count in sorted(self._counts.items()))
