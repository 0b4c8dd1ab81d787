"""Reversible placeholders: `[EMAIL_1]` in place of an address, the same for the same value in one request."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

import regex

from guardrails.personal_data import KINDS, is_valid, pattern_of
from guardrails.scanner import Blocked, Rule, Scanner, scan
from policies.guardrails import PersonalDataAction as Action
from policies.guardrails import PersonalDataKind

_PLACEHOLDER = rf"(?P<placeholder>\[(?:{'|'.join(kind.upper() for kind in KINDS)})_\d{{1,4}}\])"


class Masking:
    """The values of one request and their placeholders."""

    def __init__(self, kinds: Collection[PersonalDataKind], action: Action) -> None:
        """`mask`: placeholders, restored in the answer; `redact`: `[EMAIL]`; `flag`: only counted."""
        self.found: Counter[str] = Counter()  # by kind
        self._action = action
        self._request_rule = Rule(pattern_of(tuple(kinds)), self._replace)
        self._answer_rule = Rule(pattern_of(tuple(kinds), _PLACEHOLDER), self._restore)
        self._placeholders: dict[str, str] = {}
        self._values: dict[str, str] = {}

    def mask(self, text: str) -> str:
        """The text to send to a model. Raises Blocked."""
        return scan(self._request_rule, text)

    def restorer(self, *, screens_answers: bool) -> Scanner:
        """Puts the values back into an answer in pieces; it may raise Blocked while it is fed.

        `screens_answers`: the action applies to what the model wrote itself, too.
        """
        return Scanner(self._answer_rule if screens_answers else Rule(_ONLY_PLACEHOLDERS, self._restore))

    def _replace(self, match: regex.Match[str]) -> str | None:
        kind, value = str(match.lastgroup), str(match.group())
        if not is_valid(kind, value):
            return None
        self.found[kind] += 1
        if self._action == "block":
            raise Blocked(kind)
        if self._action == "flag":
            return value
        return self._placeholder(kind, value) if self._action == "mask" else f"[{kind.upper()}]"

    def _placeholder(self, kind: str, value: str) -> str:
        found = self._placeholders.get(value)
        if found is None:
            number = 1 + sum(name.startswith(f"[{kind.upper()}_") for name in self._values)
            found = self._placeholders[value] = f"[{kind.upper()}_{number}]"
            self._values[found] = value
        return found

    def _restore(self, match: regex.Match[str]) -> str | None:
        if match.lastgroup == "placeholder":
            placeholder = str(match.group())
            return self._values.get(placeholder, placeholder)
        kind, value = str(match.lastgroup), str(match.group())
        if not is_valid(kind, value):
            return None
        if value in self._placeholders:  # the caller's own
            return value
        self.found[kind] += 1
        if self._action == "block":
            raise Blocked(kind)
        return value if self._action == "flag" else f"[{kind.upper()}]"


_ONLY_PLACEHOLDERS = regex.compile(_PLACEHOLDER)
