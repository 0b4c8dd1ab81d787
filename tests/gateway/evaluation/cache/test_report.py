from __future__ import annotations

from io import StringIO

import numpy as np
from rich.console import Console

from gateway.evaluation.cache.replay import Outcome
from gateway.evaluation.cache.report import as_document, show
from gateway.evaluation.cache.results import PairResult, StreamResult


def test_a_stream_without_any_allowed_threshold_is_shown() -> None:
    outcome = Outcome(
        0.9, num_requests=10, num_exact_only=2, num_hits=4, num_false=1, num_semantic=2, saved_share=0.3
    )
    stream = StreamResult("s.jsonl", [outcome], [outcome], None, None, outcome, np.zeros((0, 2), np.float32))
    pair = PairResult(
        "p", "only", np.array([True]), np.ones(1, np.float32), np.ones(1, np.float32), np.array([False])
    )
    document = as_document([pair], [stream], "v", 0.01)
    assert document["streams"][0]["cosine_best"] is None
    assert document["streams"][0]["verifier_shipped"]["beyond_exact"] == 0.2
    text = StringIO()
    show(Console(file=text, width=150), document)
    assert "25.00 %" in text.getvalue() and "30.0 %" in text.getvalue()
    assert "best cosine" not in text.getvalue()
