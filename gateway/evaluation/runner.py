"""Asks one model all questions, several at a time, and keeps the outcomes."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Literal

from backend.pico.tasks import FAMILIES, Instance
from gateway.evaluation.client import Answer, ApiClient, NotReachable, RequestFailed, Tokens
from gateway.evaluation.own.graders import Rubric
from gateway.evaluation.own.judge import Judge
from gateway.evaluation.own.rows import OwnQuestion
from gateway.evaluation.price import TokenPrice
from gateway.evaluation.questions import Question, has_tools, request_fields
from gateway.settings import SettingsError

HOPELESS_STATUSES = {401, 403, 404}
"""Wrong key or wrong name: every further request would end the same way."""
REFUSING_STATUSES = {400, 404, 422, 501}
"""Statuses with which servers refuse a feature; with any other, its name may be in the message by chance."""
TOO_MANY_REQUESTS = 429
FEW_REFUSALS = 5
"""After this many equal refusals, and nothing else, the model is taken for one that does not chat."""

Verdict = Literal["right", "wrong", "failed", "skipped"]


@dataclass(frozen=True, slots=True)
class Subject:
    """What is evaluated: a model, and its reasoning_effort ("": the server's default)."""

    model: str
    effort: str = ""
    price: TokenPrice | None = None

    @property
    def label(self) -> str:
        """The name in tables and plots."""
        return f"{self.model} ({self.effort})" if self.effort else self.model


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one question; `problem` says why there is no answer, or why it could not be graded."""

    question: Question
    verdict: Verdict
    answer: Answer | None = None
    problem: str = ""
    reason: str = ""  # in what it is wrong, as its grader says without quoting it
    remark: str = ""  # the judge's, which may quote it

    @property
    def tokens(self) -> Tokens:
        """Token counts, 0 where the server gave none."""
        return (self.answer and self.answer.tokens) or Tokens()


@dataclass(slots=True)
class Run:
    """One subject's evaluation; can be read while it runs."""

    subject: Subject
    num_questions: int
    outcomes: list[Outcome] = field(default_factory=list)
    verdicts: Counter[Verdict] = field(default_factory=Counter)
    wall_s: float = 0.0
    refusal_of_tools: str = ""  # the server's message; questions with tools are skipped after it
    gave_up_because: str = ""  # further requests would fail the same way

    def add(self, outcome: Outcome) -> None:
        """Record the outcome of a question."""
        self.outcomes.append(outcome)
        self.verdicts[outcome.verdict] += 1

    @property
    def is_complete(self) -> bool:
        """True when every question was answered, or skipped for a missing feature of the server."""
        done = len(self.outcomes) - self.verdicts["failed"]
        return done == self.num_questions and not self.gave_up_because

    @property
    def answers(self) -> list[Answer]:
        """All answers."""
        return [outcome.answer for outcome in self.outcomes if outcome.answer is not None]

    @property
    def problems(self) -> Counter[str]:
        """Messages of failed requests by count, in order of first appearance."""
        return Counter(outcome.problem for outcome in self.outcomes if outcome.verdict == "failed")

    @property
    def has_all_counts(self) -> bool:
        """True when the server counted the tokens of every answer; otherwise the cost is unknown."""
        return all(answer.tokens is not None for answer in self.answers)

    @property
    def has_counts(self) -> bool:
        """False when there are answers and the server counted the tokens of none of them."""
        return not self.answers or any(answer.tokens is not None for answer in self.answers)

    def cost_usd(self, outcomes: Sequence[Outcome] | None = None) -> Decimal | None:
        """Cost of these outcomes, by default all; None when price or token counts are unknown."""
        price = self.subject.price
        if price is None or not self.has_all_counts:
            return None
        tokens = sum_tokens(self.outcomes if outcomes is None else outcomes)
        return price.of(tokens.prompt, tokens.completion)


def sum_tokens(outcomes: Sequence[Outcome]) -> Tokens:
    """Total token counts."""
    return sum((outcome.tokens for outcome in outcomes), Tokens())


class Runner:
    """Evaluates one subject at a time through one client."""

    def __init__(
        self,
        client: ApiClient,
        concurrency: int,
        max_tokens: int,
        *,
        wants_logprobs: bool = False,
        judge: Judge | None = None,
    ) -> None:
        """`concurrency`: requests at once; `max_tokens`: of each; `judge`: of own questions."""
        self._judge = judge
        self._more = {"logprobs": True} if wants_logprobs else {}
        self._client = client
        self._concurrency = concurrency
        self._max_tokens = max_tokens

    async def run(self, run: Run, questions: Sequence[Question], progress: Callable[[], None]) -> None:
        """Ask all questions; fills `run` as answers arrive and calls `progress` after each."""
        began_s = time.perf_counter()
        waiting = iter(questions)
        try:
            async with asyncio.TaskGroup() as workers:
                for _ in range(min(self._concurrency, len(questions))):
                    workers.create_task(self._work(run, waiting, progress))
        finally:  # also on interruption: partial results are shown
            run.wall_s = time.perf_counter() - began_s

    async def _work(self, run: Run, waiting: Iterator[Question], progress: Callable[[], None]) -> None:
        while not run.gave_up_because and (question := next(waiting, None)) is not None:
            run.add(await self._outcome(run, question))
            progress()

    async def _outcome(self, run: Run, question: Question) -> Outcome:
        offers_tools = has_tools(question)
        if offers_tools and run.refusal_of_tools:
            return Outcome(question, "skipped")
        try:
            answer = await self._client.ask(self._request(run.subject, question))
        except RequestFailed as error:
            if offers_tools and _refuses(error, "tool"):
                run.refusal_of_tools = str(error)
                return Outcome(question, "skipped")
            if _is_hopeless(error, run.subject) or _is_all_that_came(error, run):
                run.gave_up_because = str(error)
            return Outcome(question, "failed", problem=str(error))
        if isinstance(question, OwnQuestion):
            return await self._graded(run, question, answer)
        return _graded(question, answer)

    async def _graded(self, run: Run, question: OwnQuestion, answer: Answer) -> Outcome:
        if not isinstance(question.grader, Rubric):
            grade = question.grader.grade(answer.text)
            return Outcome(question, "right" if grade.is_right else "wrong", answer, reason=grade.reason)
        if self._judge is None:
            raise SettingsError(
                "a question has a rubric, which a model must judge: name one with --judge MODEL"
            )
        try:
            found = await self._judge.grade(question.grader, answer.text)
        except RequestFailed as error:  # the answer is neither right nor wrong
            if isinstance(error, NotReachable) or error.status in HOPELESS_STATUSES:
                run.gave_up_because = str(error)
            return Outcome(question, "failed", answer, problem=str(error))
        verdict: Verdict = "right" if found.is_right else "wrong"
        reason = "" if found.is_right else "judged wrong"
        return Outcome(question, verdict, answer, reason=reason, remark=found.remark)

    def _request(self, subject: Subject, question: Question) -> dict[str, Any]:
        body = {"model": subject.model, "temperature": 0, **self._more, **request_fields(question)}
        if self._max_tokens:
            body["max_tokens"] = self._max_tokens
        if subject.effort:
            body["reasoning_effort"] = subject.effort
        return body


def _graded(question: Instance, answer: Answer) -> Outcome:
    try:
        is_right = FAMILIES[question.family].grade(question, answer.text)
    except Exception as error:  # noqa: BLE001 - an answer that breaks its grader is wrong
        return Outcome(question, "wrong", answer, f"cannot be graded: {type(error).__name__}: {error}")
    return Outcome(question, "right" if is_right else "wrong", answer)


def _refuses(error: RequestFailed, feature: str) -> bool:
    return error.status in REFUSING_STATUSES and feature in str(error).lower()


def _is_all_that_came(error: RequestFailed, run: Run) -> bool:
    """True for a refusal when the first requests of the run all ended with it."""
    return (
        400 <= error.status < 500
        and error.status != TOO_MANY_REQUESTS
        and not run.answers
        and run.problems[str(error)] == run.verdicts["failed"] >= FEW_REFUSALS - 1
    )


def _is_hopeless(error: RequestFailed, subject: Subject) -> bool:
    if isinstance(error, NotReachable) or error.status in HOPELESS_STATUSES:
        return True
    return bool(subject.effort) and _refuses(error, "reasoning_effort")
