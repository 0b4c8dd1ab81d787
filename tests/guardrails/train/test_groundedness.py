"""Training keeps every coefficient on the side that its feature's meaning has."""

from __future__ import annotations

import json

import numpy as np

from guardrails.checks.groundedness import FEATURES, WEIGHTS
from guardrails.train.groundedness import SHIPPED, features, train

ROWS = [
    {"context": "Anna paid 20 euros in Rome.", "claim": claim, "supported": supported}
    for claim, supported in [
        ("Anna paid 20 euros.", True),
        ("Anna paid in Rome.", True),
        ("In Rome Anna paid 30 euros.", False),
        ("Yes, Bruno paid 20 euros.", False),
    ]
]


def test_what_is_fitted_separates_and_never_turns_a_feature_around() -> None:
    inputs, labels = features(ROWS), np.array([row["supported"] for row in ROWS])
    weights, bias = train(inputs, labels, np.array(["s"] * len(ROWS)))
    scores = inputs @ weights + bias
    assert scores[labels].min() > scores[~labels].max() and (weights >= 0).all()


def test_shipped_weights_saw_only_sources_that_may_ship() -> None:
    card = json.loads(WEIGHTS.read_text("utf-8"))
    assert set(card["weights"]) == set(FEATURES)
    assert all(source.startswith(SHIPPED) for source in card["sources"])
