from __future__ import annotations

from policies.retries import DEFAULT_RETRY, RETRY_CAUSES, Retry
from policies.routes import Action
from policies.routing import Choice


def test_all_causes_are_retried_by_default() -> None:
    assert all(DEFAULT_RETRY.covers(cause) for cause in RETRY_CAUSES)
    assert [cause for cause in RETRY_CAUSES if Retry(on=["connect"]).covers(cause)] == ["connect"]


def test_the_last_change_decides() -> None:
    first, last = Action(retry=Retry(attempts=1)), Action(retry=Retry(attempts=0))
    assert Choice("r").retry == DEFAULT_RETRY
    assert Choice("r", changes=(first, last, Action())).retry.attempts == 0
