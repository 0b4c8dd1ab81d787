from __future__ import annotations

import pytest

from gateway.routing.probe_result import Decision, failures
from policies.probes import Expectation, Probe
from policies.routing import Choice


@pytest.mark.parametrize(
    ("expected", "found", "fails"),
    [
        (["email"], ("email",), False),
        (["injection"], ("injection:override",), False),
        (["injection:override", "email"], ("email", "injection:override"), False),
        ([], (), False),
        ([], ("email",), True),
        (["email"], (), True),
        (["injection:jailbreak"], ("injection:override",), True),
        (["injection"], ("email", "injection:override"), True),
        (None, ("email",), False),
    ],
)
def test_everything_that_guardrails_find_is_expected(
    expected: list[str] | None, found: tuple[str, ...], fails: bool
) -> None:
    probe = Probe(expect=Expectation(guardrails=expected))
    assert len(list(failures(probe, Decision(Choice(""), guardrails=found)))) == fails
