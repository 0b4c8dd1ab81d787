from __future__ import annotations

import pytest

from gateway.accounting.admission import Admission
from gateway.accounting.ledger import Ledger
from gateway.errors import Forbidden, RateLimited
from policies.document import Policies
from policies.tenants import Limits, Tier


def admission(most: int, ledger: Ledger) -> Admission:
    return Admission(
        Policies(tiers={"default": Tier(models=["m"], limits=Limits(concurrent_requests=most))}), ledger
    )


def test_what_runs_counts_under_every_version_of_the_policies() -> None:
    ledger = Ledger()
    first = admission(2, ledger)
    first.enter("t", num_answers=2)
    second = admission(3, ledger)
    second.enter("t")
    for each in (first, second):
        with pytest.raises(RateLimited):
            each.enter("t")
    first.leave("t", num_answers=2)
    second.leave("t")
    assert not ledger.running


def test_a_refused_request_does_not_run() -> None:
    ledger = Ledger()
    with pytest.raises(Forbidden):
        admission(2, ledger).enter("t", "another")
    assert not ledger.running
