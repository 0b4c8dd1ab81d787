from __future__ import annotations

import random

from backend.speculative.prediction import PredictionDrafter
from tests.backend.speculative.sequences import running

PREDICTED = [random.Random(1).randrange(500) for _ in range(200)]


def steps_for(output: list[int], predicted: list[int], k: int = 10) -> tuple[int, int]:
    """Steps that decode `output` with drafts from the prediction, and how many drafted tokens were wrong."""
    drafter = PredictionDrafter()
    sequence = running([1, 2], output[:1], prediction_token_ids=predicted)
    steps, wrong = 1, 0
    while sequence.num_output_tokens < len(output):
        (draft,) = drafter.propose([sequence], [k])
        done = sequence.num_output_tokens
        rest = output[done:]
        right = next((i for i, t in enumerate(draft) if i >= len(rest) or t != rest[i]), len(draft))
        wrong += len(draft) - right
        sequence.tokens += rest[: right + 1]
        steps += 1
    return steps, wrong


def test_a_right_prediction_is_followed_to_its_end() -> None:
    steps, wrong = steps_for(PREDICTED, PREDICTED)
    assert steps <= 1 + -(-199 // 11) and wrong == 0


def test_insertions_deletions_and_replacements_cost_a_few_steps_each() -> None:
    strange = list(range(1000, 1020))
    for output in (
        PREDICTED[:80] + strange + PREDICTED[80:],
        PREDICTED[:80] + PREDICTED[110:],
        PREDICTED[:80] + strange[:5] + PREDICTED[85:],
        strange[:3] + PREDICTED,
        PREDICTED[:40] + PREDICTED[90:130] + PREDICTED[30:80],
    ):
        own = sum(token >= 1000 for token in output)
        steps, wrong = steps_for(output, PREDICTED)
        assert steps <= own + len(output) / 11 + 12, (steps, own)
        assert wrong <= 40


def test_a_wrong_prediction_is_left_at_once() -> None:
    output = list(range(1000, 1100))
    steps, wrong = steps_for(output, PREDICTED)
    assert steps == 100 and wrong == 0


def test_a_single_common_token_far_away_is_not_believed() -> None:
    drafter = PredictionDrafter()
    predicted = [5, *range(10, 60), 900, 901, 902, 903]

    def drafted(output: list[int]) -> list[int]:
        return drafter.propose([running([1], output, prediction_token_ids=predicted)], [3])[0]

    assert drafted([5, 900]) == drafted([5, 900, 901]) == []
    assert drafted([5, 900, 901, 902]) == [903]
    assert drafted([5, 10, 11, 12, 900]) == []
    assert drafted([5, 10, 11, 12, 900, 901]) == [902, 903], "it was right before"
    assert drafted([5, 10, 11, 12, 77, 14]) == [15, 16, 17]
