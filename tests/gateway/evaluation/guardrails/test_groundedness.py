from __future__ import annotations

from typing import Any

import pytest

from gateway.evaluation.guardrails.groundedness import measure, tables
from gateway.evaluation.guardrails.inputs import GuardrailsPlan
from guardrails.checks.classifier import WEIGHTS

CLAIMS = [
    ("Anna Weber flew to Lisbon in March.", True),
    ("Anna Weber flew to Lisbon.", True),
    ("Peter Schulz drove 300 miles to Madrid.", False),
    ("The weather will be cloudy tomorrow afternoon.", False),
]


def plan(rows: list[dict[str, Any]]) -> GuardrailsPlan:
    return GuardrailsPlan(
        rows=tuple(rows), false_positive_rate=0.01, num_threads=1, max_evaded=0, weights=WEIGHTS
    )


def test_each_source_is_measured_beside_word_overlap() -> None:
    context = "In March Anna Weber flew to Lisbon for two days."
    rows = [
        {"context": context, "claim": claim, "supported": supported, "source": source, "document_id": source}
        for source in ("a", "b")
        for claim, supported in CLAIMS
    ]
    found = measure(rows, plan(rows))
    assert [each["source"] for each in found["sources"]] == ["a", "b"] and found["mean_auroc"] == 1
    for each in found["sources"]:
        assert (each["n"], each["overlap_auroc"], each["balanced_accuracy"]) == (4, 1, 1)
        assert each["auroc_interval"] == [1, 1] and each["supported_flagged"] == 0
        assert each["gain_interval"] == [0, 0] and each["overlap_balanced_accuracy"] == 1
    assert sum(table.row_count for table in tables(found)) == 2


@pytest.mark.parametrize("supported", [True, False])
def test_one_kind_of_claim_alone_has_no_area(supported: bool) -> None:
    rows = [{"context": "x y z", "claim": "x y z", "supported": supported, "source": "a"}]
    found = measure(rows, plan(rows))
    assert found["sources"][0]["auroc"] is None and found["mean_auroc"] is None
    assert sum(table.row_count for table in tables(found)) == 1
