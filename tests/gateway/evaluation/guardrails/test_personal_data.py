from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gateway.evaluation.guardrails.inputs import GuardrailsPlan
from gateway.evaluation.guardrails.personal_data import measure, tables
from gateway.settings import SettingsError


def span(start: int, end: int, kind: str) -> dict[str, Any]:
    return {"start": start, "end": end, "type": kind}


def plan() -> GuardrailsPlan:
    return GuardrailsPlan(rows=(), false_positive_rate=0.01, num_threads=1, max_evaded=0, weights=Path())


def test_what_is_found_missed_and_found_in_error() -> None:
    rows = [
        {"text": "Mail bob@example.com", "spans": [span(5, 20, "EMAIL_ADDRESS")], "source": "a"},
        {"text": "card 4111111111111112", "spans": [span(5, 21, "CREDIT_CARD")], "source": "a"},
        {"text": "from 8.8.8.8, 1.1.1.1", "spans": [span(5, 12, "IP_ADDRESS")], "source": "b"},
        {"text": "see bob@example.com", "spans": [span(0, 19, "SOMETHING")], "source": "b"},
        {"text": "see nothing", "source": "b"},
        {"text": "see 8.8.8.8", "source": "b"},
    ]
    found = measure(rows, plan())
    spans = {(each["source"], each["kind"]): each for each in found["spans"]}
    assert spans["a", "email"]["f1"] == 1 and spans["a", "card"]["recall"] == 0
    assert (spans["b", "ip"]["recall"], spans["b", "ip"]["precision"]) == (1, 0.5)
    assert spans["all", "all"]["n"] == 3 and spans["all", "all"]["num_found"] == 3
    assert found["ignored_types"] == {"SOMETHING": 1}
    assert found["without"][0]["share"] == 0.5
    assert sum(table.row_count for table in tables(found)) == len(spans) + 1


def test_a_city_inside_an_address_is_found() -> None:
    text = "Please deliver it to 12 Oak Street, Springfield 62704."
    found = measure([{"text": text, "spans": [span(21, 53, "ADDRESS")], "source": "a"}], plan())
    assert all(each["recall"] == each["precision"] == 1 for each in found["spans"] if each["n"])


def test_other_columns_are_refused() -> None:
    with pytest.raises(SettingsError, match="f:1: no evaluation has the columns label"):
        measure([{"text": "x", "label": 1, "source": "a", "_place": "f:1"}], plan())
