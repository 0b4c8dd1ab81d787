"""A check that a policy names, on the texts of a request or an answer, with a limit of time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from guardrails.cancellation import check_cancelled
from guardrails.checks.check import CHECKS, Find
from guardrails.findings import Finding
from guardrails.findings import Segment as Trust
from guardrails.screen.hooks import Direction, HookFailed, HookVerdict, identifier
from guardrails.screen.threads import ThreadPool, is_long
from policies.guardrails import CheckRules, Segment

logger = logging.getLogger(__name__)

_TRUST: dict[Segment, Trust] = {"system": "system", "user": "user", "assistant": "user", "tool": "tool"}


class NamedCheck:
    """One of a profile's `checks`."""

    def __init__(self, name: str, rules: CheckRules, find: Find, threads: ThreadPool) -> None:
        """`name`: the one that verdicts show; `threads`: a pool of its own for the code of a package."""
        self.rules = rules
        self._name = name
        self._find = find
        self._threads = threads
        self._is_built_in = rules.check in CHECKS

    def applies(self, direction: Direction) -> bool:
        """Whether the policy makes this check of requests, or answers."""
        return self.rules.requests if direction == "request" else self.rules.answers

    async def check(self, texts: Sequence[tuple[Segment, str]], tenant: str) -> HookVerdict:
        """The first finding. Raises HookFailed where the check cannot be made, or not in time."""
        in_thread = not self._is_built_in or is_long(text for _, text in texts)
        try:
            async with asyncio.timeout(self.rules.timeout_ms / 1000):
                found = await self._threads.of(tenant).run(lambda: self._first(texts), in_thread)
        except (TimeoutError, HookFailed) as failed:
            why = failed if isinstance(failed, HookFailed) else f"it took over {self.rules.timeout_ms} ms"
            logger.warning("the guardrail check %r cannot be made: %s", self._name, why)
            raise HookFailed(str(why)) from None
        return HookVerdict(flagged=False) if found is None else HookVerdict(True, identifier(found.kind))

    def _first(self, texts: Sequence[tuple[Segment, str]]) -> Finding | None:
        for segment, text in texts:
            check_cancelled()
            try:
                found: object = next(iter(self._find(text, _TRUST[segment])), None)
            except (Exception, SystemExit) as error:  # noqa: BLE001 - a package's code may raise anything
                raise HookFailed(f"it raised {type(error).__name__}") from None
            if found is not None:
                return _checked(found, text)
        return None


def _checked(found: object, text: str) -> Finding:
    """A finding as it should be. Raises HookFailed for anything else that a package may give."""
    if not isinstance(found, Finding):
        raise HookFailed(f"it gave a {type(found).__name__} in place of a Finding")
    kind: object = found.kind
    places: tuple[object, object] = (found.start, found.end)
    start, end = (each if isinstance(each, int) else -1 for each in places)
    if not isinstance(kind, str) or not 0 <= start <= end <= len(text):
        raise HookFailed("its finding has no kind, or is not in the text")
    return found
