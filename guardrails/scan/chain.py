"""Several scanners of a stream in a row: each gets what the one before it has let through."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from guardrails.scan.scanner import Blocked, Scanner

Step = Callable[[str], str]


class ScannerChain:
    """Feeds a text in pieces through scanners in order; the result does not depend on how it was cut."""

    def __init__(self, scanners: Sequence[Scanner]) -> None:
        self._scanners = scanners

    def feed(self, text: str) -> str:
        """What can be sent after this piece. Raises Blocked with what can be sent before the block."""
        for number, scanner in enumerate(self._scanners):
            text = self._run(number, scanner.feed, text)
        return text

    def finish(self, text: str = "") -> str:
        """The rest: the text has ended with this piece. Raises Blocked as `feed` does."""
        for number, scanner in enumerate(self._scanners):
            text = self._run(number, scanner.finish, text)
        return text

    def _run(self, number: int, step: Step, text: str) -> str:
        try:
            return step(text)
        except Blocked as blocked:
            sent = blocked.sent
            for scanner in self._scanners[number + 1 :]:
                sent = scanner.finish(sent)
            raise Blocked(blocked.kind, blocked.start, sent) from None
