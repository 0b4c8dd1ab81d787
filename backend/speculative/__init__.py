"""Speculative decoding: drafters guess tokens, the model verifies them, the output stays what it was.

Here are all its tuning constants; limits of memory and work per step are beside the code that has them.
"""

PAUSE_STEPS = 64
"""Engine steps: the first pause after a loss or a failure; also between two measurements of an estimate."""

MAX_DOUBLINGS = 4
"""Exponential backoff: pauses double with each failure in a row, at most to 1,024 steps."""

FAST, SLOW = 0.9, 0.98
"""Weight that older observations keep in a moving average. Fast: step times and one sequence's acceptance.
Slow: a drafter's acceptance and realised gain; also, per token, what is left of a sequence's difference from
the average while nothing is drafted for it."""

PRIOR_ACCEPTANCE = 0.7
"""Probability that the first draft token is accepted, before anything is known."""

PRIOR_SAMPLES = 4.0
"""Observations that a prior counts for; also plain steps at a new batch size before the first with drafts."""

MIN_SPEEDUP = 1.05
"""Tokens per second, relative to plain steps, that drafts must promise."""

MAX_GROWTH = 2.0
"""Draft tokens of a step relative to the most that were measured, and a measured time relative to the
predicted one, at most: neither a wrong estimate nor one slow step costs much."""

EXPLORED = 4
"""Sequences, and draft tokens of each, that exploration tries although none are expected to pay."""

MIN_PATH_PROBABILITY = 0.3
"""A chain ends with the token that, by the drafter's own estimate, is reached less often."""

MIN_NODE_PROBABILITY = 0.06
"""Nodes that are reached less often are left out of a tree: they cost more than they gain."""

BRANCHES = 4
"""Most likely next tokens that are considered at each node of a tree."""
