"""Questions, answers and runs without a server, and a client that plays a script."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any

from backend.pico.tasks import Instance
from gateway.evaluation.client import Answer, ApiClient, Tokens
from gateway.evaluation.price import TokenPrice
from gateway.evaluation.runner import Outcome, Run, Runner, Subject, Verdict

PRICE = TokenPrice(Decimal("0.000001"), Decimal("0.000004"))
COUNTED = Tokens(10, 5, 2)
Script = Callable[[Mapping[str, Any]], Awaitable[Answer]]


def question(family: str = "arithmetic", tier: int = 1, prompt: str = "What is 1 + 1?") -> Instance:
    return Instance(family, tier, prompt, "2", key="1+1")


def answer(text: str = "2", tokens: Tokens | None = COUNTED, seconds: float = 0.5) -> Answer:
    return Answer(text, False, tokens, seconds)


def run_of(*outcomes: Outcome, subject: Subject | None = None, num_questions: int | None = None) -> Run:
    run = Run(subject or Subject("m", price=PRICE), len(outcomes) if num_questions is None else num_questions)
    for outcome in outcomes:
        run.add(outcome)
    return run


def outcome(verdict: Verdict, *, family: str = "arithmetic", tier: int = 1) -> Outcome:
    given = answer() if verdict in {"right", "wrong"} else None
    problem = "500: it broke" if verdict == "failed" else ""
    return Outcome(question(family, tier), verdict, given, problem)


class ScriptedClient(ApiClient):
    """Plays `script` instead of sending anything; remembers the bodies."""

    def __init__(self, script: Script) -> None:
        self.bodies: list[Mapping[str, Any]] = []
        self._script = script

    async def ask(self, request: Mapping[str, Any]) -> Answer:
        self.bodies.append(request)
        return await self._script(request)


async def play(
    script: Script, questions: Sequence[Instance], *, subject: Subject | None = None, concurrency: int = 3
) -> tuple[Run, ScriptedClient]:
    """Run the questions against the script; the calls of `progress` must match the outcomes."""
    client = ScriptedClient(script)
    run = Run(subject or Subject("m", price=PRICE), len(questions))
    reported: list[None] = []
    await Runner(client, concurrency, 99).run(run, questions, lambda: reported.append(None))
    assert len(reported) == len(run.outcomes)
    return run, client
