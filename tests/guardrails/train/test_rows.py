from __future__ import annotations

import json
from pathlib import Path

from guardrails.train.rows import CAPS, read_rows


def test_labels_follow_kind_and_source(tmp_path: Path) -> None:
    lines = [
        {"text": "a", "kind": "benign_trigger", "source": "qqp", "segment": "user"},
        {"text": "b", "kind": "benign", "source": "mmlu", "segment": "user"},
        {"text": "c", "kind": "jailbreak", "source": "own", "segment": "user"},
        {"text": "d", "kind": "indirect", "source": "own", "segment": "tool"},
        {"text": "e", "category": "hate", "label": 1, "source": "surge"},
        {"text": "f", "category": "safe_response", "label": 0, "source": "gptfuzz-responses"},
    ]
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    labels = {row.text: row.labels for row in read_rows([path])}
    assert not any(labels["a"].values()) and "harmful_topic" not in labels["a"]
    assert labels["b"]["harmful_topic"] is False
    assert labels["c"]["attack"] and labels["c"]["jailbreak"] and "override" not in labels["c"]
    assert labels["d"] == {"indirect": True}
    assert labels["e"]["hate"] and "violence" not in labels["e"]
    assert labels["f"] == {"harmful_topic": False}


def test_large_sources_are_capped(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    line = '{"text": "%d", "kind": "benign", "source": "banking77"}'
    path.write_text("\n".join(line % number for number in range(2 * CAPS["banking77"])))
    assert len(read_rows([path])) == CAPS["banking77"]
